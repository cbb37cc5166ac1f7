"""Flaky tests are named and do not fail a run; broken tests do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.takes(3)

PROGRAM = Path(__file__).parents[1] / "tools" / "flaky_tests.py"
FLAKY = """
import pathlib
import pytest

@pytest.mark.parametrize("name", {names})
def test_flaky(name):
    file = pathlib.Path(__file__).with_name(name)
    if not file.exists():
        file.touch()
        raise AssertionError("the cause of " + name)
"""
BROKEN = "def test_broken():\n    assert False\n"
PASSING = "def test_passing():\n    pass\n"


def run(folder, *arguments):
    command = [sys.executable, PROGRAM, folder / "results", *arguments]
    # Of the plugins, these runs need one. To load all of them takes seconds.
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("parallel", [(), ("-n", "2", "--dist", "loadfile")], ids=["one process", "two processes"])
def test_a_flaky_test_is_named_with_its_first_failure_and_does_not_fail_the_run(tmp_path, parallel):
    (tmp_path / "test_flaky.py").write_text(FLAKY.format(names=["one"]) + PASSING)
    first = run(tmp_path, "-q", *parallel, "test_flaky.py")
    assert first.returncode == 0, first.stdout
    log = tmp_path / "results" / "flaky-1.log"
    assert "the cause of one" in log.read_text()
    assert run(tmp_path).stdout.splitlines() == ["flaky", f"test_flaky.py::test_flaky[one]: {log}"]


def test_flaky_tests_of_several_runs_are_counted_together(tmp_path):
    (tmp_path / "test_first.py").write_text(FLAKY.format(names=["one", "two"]))
    (tmp_path / "test_second.py").write_text(FLAKY.format(names=["three"]))
    assert run(tmp_path, "-q", "test_first.py").returncode == 0
    assert run(tmp_path, "-q", "test_second.py").returncode == 1


@pytest.mark.parametrize("text", [BROKEN, FLAKY.format(names=["one", "two", "three"])], ids=["broken", "three flaky"])
def test_a_broken_test_or_too_many_flaky_ones_fail_the_run(tmp_path, text):
    (tmp_path / "test_these.py").write_text(text)
    assert run(tmp_path, "-q", "test_these.py").returncode == 1
    assert run(tmp_path).stdout == ""


def test_a_run_that_could_not_collect_its_tests_fails_at_once(tmp_path):
    (tmp_path / "test_these.py").write_text("import absent_module\n")
    done = run(tmp_path, "-q", "test_these.py")
    assert done.returncode == 2
    assert done.stdout.count("absent_module") < 5, "it ran twice"
