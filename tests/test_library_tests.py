"""Tests of libraries are skipped only if they have passed with all that decides their result."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from library_tests import installed, record_name

pytestmark = pytest.mark.takes(32)

FILES = {
    "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['of_libraries', 'slow']\n",
    "images/environment.py": "",
    "images/horovod/requirements.txt": "horovod==1\n",
    "trainers/named.txt": "",
    "trainers/named.py": "import kfp_distributed.storage.behind\n",
    "storage/behind.py": "",
    "storage/imported.py": "import kfp_distributed.storage.next\n",
    "storage/next.py": "",
    "storage/program.py": "",
    "storage/other.py": "",
    "tests/conftest.py": "",
    "tests/helper.py": "from folder import of_helper\nfrom package import start\n",
    "tests/package/__init__.py": "",
    "tests/package/program.py": "",
    "tests/folder/of_helper.py": "",
    "tests/other.py": "",
    "tests/test_these.py": """
import os
import pytest
PROGRAM = '''
from kfp_distributed.storage import program
'''
if False:
    import helper
    from kfp_distributed.storage.imported import name

pytestmark = pytest.mark.of_libraries("trainers")

@pytest.mark.parametrize("number", [1, 2])
def test_passes(number):
    pass

@pytest.mark.slow
def test_may_fail():
    outcome = os.environ.get("OUTCOME", "")
    if outcome == "changed":
        open(__file__, "a").write("# changed while it ran")
    elif outcome:
        getattr(pytest, outcome)("as told")

@pytest.fixture
def teardown():
    yield
    assert "TEARDOWN" not in os.environ

def test_teardown(teardown):
    pass
""",
    "tests/test_unmarked.py": "def test_unmarked():\n    pass\n",
    # What is installed: a package of this Python, and an environment with a package and the time of its creation.
    "site/package-1.dist-info/METADATA": "",
    "cache/kfp-distributed/horovod-1/lib/python3.11/site-packages/package-1.dist-info/METADATA": "",
    "cache/kfp-distributed/horovod-1/complete": "",
}
PARALLEL = ("-p", "xdist", "-n", "2", "--dist", "loadfile")


def run(folder, *arguments, **variables):
    """Run the tests of a folder, and return how many have passed and were skipped as unchanged."""
    import_path = os.pathsep.join(map(str, (folder / "site", Path(__file__).parent)))
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TESTS_")},
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p library_tests",
        "PYTHONPATH": import_path,
        "TESTS_CACHE_FOLDER": str(folder / "cache"),
        **variables,
    }
    command = [sys.executable, "-m", "pytest", "-rA", *arguments]
    output = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False).stdout
    names = {"test_these.py": "marked", "test_unmarked.py": "unmarked"}
    passed = [names[line.split("/")[1].split("::")[0]] for line in output.splitlines() if line.startswith("PASSED ")]
    skipped = "4 tests of libraries were skipped: unchanged since they passed" in output
    return passed.count("marked"), passed.count("unmarked"), skipped


RECORDS = "cache/kfp-distributed/library-tests"
ALL, UNCHANGED = (4, 1, False), (0, 1, True)


def write(folder):
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "cache" / "kfp-distributed" / "horovod").symlink_to("horovod-1")
    return folder


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    """A folder whose tests have passed, in parallel."""
    folder = write(tmp_path_factory.mktemp("passed") / "repository")
    assert run(folder, *PARALLEL) == ALL
    return folder


@pytest.fixture
def clone(passed, tmp_path):
    return Path(shutil.copytree(passed, tmp_path / "clone", symlinks=True))


@pytest.mark.parametrize("how", [(), PARALLEL], ids=" ".join)
def test_unchanged_tests_are_skipped_in_any_clone(clone, how):
    assert run(clone, *how) == UNCHANGED


def test_changed_tests_run(clone):
    (clone / "storage" / "next.py").write_text("# changed")
    assert run(clone) == ALL


@pytest.fixture
def name(tmp_path, monkeypatch):
    """A function that returns the name of the record of a folder, which a change is to change."""
    folder = write(tmp_path / "repository")
    monkeypatch.syspath_prepend(folder / "site")

    def record(root=folder):
        installed.cache_clear()
        return record_name(root / "tests" / "test_these.py", ["trainers"], root, root / "cache" / "kfp-distributed")

    yield record
    installed.cache_clear()


def test_other_files_and_the_place_change_nothing(tmp_path, name):
    before = name()
    for path in ("tests/other.py", "tests/test_unmarked.py", "storage/other.py", "trainers/__pycache__/a.pyc"):
        (tmp_path / "repository" / path).parent.mkdir(exist_ok=True)
        (tmp_path / "repository" / path).write_text("# changed")
    assert name() == before
    assert name(Path(shutil.copytree(tmp_path / "repository", tmp_path / "a" / "clone", symlinks=True))) == before


@pytest.mark.parametrize("path", [path for path in FILES if "other" not in path and "unmarked" not in path])
def test_each_change_of_a_file_counts(tmp_path, name, path):
    before = name()
    file = tmp_path / "repository" / path
    if file.name == "METADATA":  # Another version of a package.
        file.parent.rename(str(file.parent).replace("package-1", "package-2"))
    else:
        file.write_text(FILES[path] + "# changed\n")
    assert name() != before


def test_each_change_of_a_folder_or_of_python_counts(tmp_path, name, monkeypatch):
    names = [name()]
    (tmp_path / "repository" / "trainers" / "new.txt").touch()
    names.append(name())
    cache = tmp_path / "repository" / "cache" / "kfp-distributed"
    (cache / "horovod-1").rename(cache / "horovod-2")
    (cache / "horovod").unlink()
    (cache / "horovod").symlink_to("horovod-2")
    names.append(name())
    (cache / "pytorch").symlink_to("horovod-2")
    names.append(name())
    monkeypatch.setattr("sys.version", "3.99")
    names.append(name())
    assert len(set(names)) == 5


@pytest.mark.parametrize(
    ("arguments", "variables", "marked", "unmarked"),
    [
        (("--all-libraries",), {}, 4, 1),
        (("tests/test_these.py",), {}, 4, 0),
        ((), {"TESTS_HOROVOD_PYTHON": "/opt/python"}, 4, 1),
    ],
)
def test_they_run_in_any_case(clone, arguments, variables, marked, unmarked):
    assert run(clone, *arguments, **variables) == (marked, unmarked, False)


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (PARALLEL, {"OUTCOME": "fail"}),
        ((), {"OUTCOME": "skip"}),
        ((), {"OUTCOME": "changed"}),
        ((), {"TEARDOWN": "fails"}),
        (("-k", "not may_fail"), {}),
        (("tests/test_these.py::test_passes",), {}),
    ],
)
def test_no_record_without_a_whole_file_that_has_passed(tmp_path, arguments, variables):
    folder = write(tmp_path)
    run(folder, *arguments, **variables)
    assert list(folder.glob(f"{RECORDS}/*")) == []


def test_a_run_of_the_last_failed_tests_leaves_no_record(tmp_path):
    folder = write(tmp_path)
    run(folder, OUTCOME="fail")
    assert run(folder, "--lf")[0] == 1
    assert list(folder.glob(f"{RECORDS}/*")) == []


def test_the_records_that_were_used_last_are_kept(clone):
    records = clone / RECORDS
    (used,) = records.iterdir()
    for number in range(150):
        (records / f"{number}").touch()
        os.utime(records / f"{number}", (number, number))
    os.utime(used, (0, 0))
    assert run(clone) == UNCHANGED
    (clone / "pyproject.toml").write_text(FILES["pyproject.toml"] + "# changed\n")
    assert run(clone) == ALL
    names = {record.name for record in records.iterdir()}
    assert len(names) == 100
    assert used.name in names
    assert {name for name in names if len(name) < 4} == {str(number) for number in range(52, 150)}


def test_the_mark_names_paths_that_exist(clone):
    shutil.rmtree(clone / "trainers")
    assert run(clone) == (0, 0, False)
