"""The cache of rewritten assertions is shared by the processes of pytest-xdist. Each parametrized test has cases."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from collection import read, rewrite

SOURCE = "def test_compares():\n    number = 1\n    assert number == {}\n"


def run(folder, *arguments, **variables):
    """Run the tests of a folder with the plugin. Return the code and the lines of pytest."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    environment |= {"PYTHONPATH": str(Path(__file__).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    command = [sys.executable, "-m", "pytest", "-p", "collection", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_the_cache_is_what_pytest_itself_writes(tmp_path, request):
    file = tmp_path / "test_a.py"
    file.write_text(SOURCE.format(1))
    assert run(tmp_path)[0] == 0
    (cached,) = tmp_path.glob("__pycache__/*-pytest-*.pyc")
    header, program = cached.read_bytes()[:16], read(file)
    cached.unlink()
    rewrite(file, request.config)
    assert cached.read_bytes()[:16] == header
    assert read(file) == program
    assert program is not None
    file.write_text(SOURCE.format(2))
    assert read(file) is None
    rewrite(file, request.config)
    assert read(file) not in (None, program)


def test_a_test_without_cases_is_an_error(tmp_path):
    """The cases of some tests are read from files. By default such a test is skipped."""
    (tmp_path / "test_a.py").write_text("import pytest\n@pytest.mark.parametrize('x', [])\ndef test_a(x):\n    pass\n")
    configuration = Path(__file__).parents[1] / "pyproject.toml"
    code, lines = run(tmp_path, "-c", str(configuration), "--rootdir", str(tmp_path), "test_a.py")
    assert (code, "ERROR test_a.py" in lines) == (2, True), lines


@pytest.mark.parametrize("wrong", ["", "assert (\n"])
def test_each_process_rewrites_its_part(tmp_path, wrong):
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(SOURCE.format(1))
    (tmp_path / "test_e.py").write_text(wrong)
    (tmp_path / "conftest.py").write_text("""
import collection
before = collection.rewrite
def rewrite(file, config):
    with open(config.rootpath / config.workerinput["workerid"], "a") as log:
        log.write(file.name + " ")
    before(file, config)
collection.rewrite = rewrite
""")
    code, lines = run(tmp_path, "-p", "xdist", "-n", "2")
    assert code == (1 if wrong else 0), lines
    assert (tmp_path / "gw0").read_text().split() == ["test_a.py", "test_c.py", "test_e.py"]
    assert (tmp_path / "gw1").read_text().split() == ["test_b.py", "test_d.py"]


def test_garbage_is_collected_in_tests():
    assert gc.isenabled()


def test_a_cache_that_is_not_to_be_written_is_not(tmp_path):
    (tmp_path / "test_a.py").write_text(SOURCE.format(1))
    assert run(tmp_path, "-p", "xdist", "-n", "2", PYTHONDONTWRITEBYTECODE="1")[0] == 0
    assert not (tmp_path / "__pycache__").exists()


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path):
    (tmp_path / "test_a.py").write_text(SOURCE.format(1))
    (tmp_path / "__pycache__").write_text("")  # Root may write into any folder.
    assert run(tmp_path, "-p", "xdist", "-n", "2")[0] == 0
