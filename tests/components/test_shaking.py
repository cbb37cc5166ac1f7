from kfp_distributed.components.shaking import shaken

STEP = "from kfp_distributed.a import work\nwork()"


def test_what_nothing_uses_is_gone_and_what_that_alone_used():
    sources = {
        "kfp_distributed/a.py": (
            "import json\nfrom kfp_distributed.b import Kind, LIMIT, spare, reached\n"
            "LEFT: int = 1\n"
            "def _by_spare():\n    return spare()\n"
            "def _calls_itself():\n    return _calls_itself()\n"
            "class Unused:\n    pass\n"
            "def work():\n    return json.dumps(LIMIT.reached)\n"
        ),
        "kfp_distributed/b.py": (
            "LIMIT, OTHER = 1, 2\ndef spare():\n    return 3\ndef reached():\n    return 4\nclass Kind:\n    pass\n"
        ),
        "kfp_distributed/c.py": "from kfp_distributed.b import LIMIT\n",
    }
    assert shaken(sources, [STEP]) == {
        "kfp_distributed/a.py": (
            "import json\nfrom kfp_distributed.b import LIMIT,reached\ndef work():return json.dumps(LIMIT.reached)"
        ),
        # `reached` is the name of an attribute somewhere, and two names of one assignment go together or not at all.
        "kfp_distributed/b.py": "LIMIT,OTHER=1,2\ndef reached():return 4",
        "kfp_distributed/c.py": "",
    }


def test_what_programs_may_import_stays():
    sources = {"kfp_distributed/a.py": "def work():0", "kfp_distributed/b.py": "def read():0\nLIMIT=1"}
    assert shaken(sources, [STEP], ["kfp_distributed/b.py"]) == sources


def test_a_name_that_is_written_as_a_text_is_used():
    sources = {"kfp_distributed/a.py": "def work():return getattr(0,'later')\ndef later():0"}
    assert shaken(sources, [STEP]) == sources


def test_what_another_module_imports_from_here_stays_imported():
    sources = {
        "kfp_distributed/__init__.py": "from kfp_distributed.b import tool",
        "kfp_distributed/a.py": "from kfp_distributed import tool\ndef work():return tool",
        "kfp_distributed/b.py": "def tool():0",
    }
    assert shaken(sources, [STEP]) == sources


def test_what_the_step_itself_imports_or_reaches_by_another_module_stays():
    sources = {
        "kfp_distributed/a.py": "from kfp_distributed.b import tool",
        "kfp_distributed/b.py": "from kfp_distributed.c import reached\ndef tool():0",
        "kfp_distributed/c.py": "def reached():0",
    }
    step = "from kfp_distributed.a import tool\nfrom kfp_distributed import b\nb.reached()"
    assert shaken(sources, [step]) == sources


def test_a_function_that_is_registered_stays():
    sources = {"kfp_distributed/a.py": "import atexit\n@atexit.register\ndef bye():0\ndef work():0"}
    assert shaken(sources, [STEP]) == sources
