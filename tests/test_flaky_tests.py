"""Flaky tests are named and do not fail a run; broken tests do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from flaky_tests import summary

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
    options = {"PYTEST_ADDOPTS": "-p xdist -p running_tests", "PYTHONPATH": str(Path(__file__).parent)}
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **options}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("parallel", [(), ("-n", "2", "--dist", "loadfile")], ids=["one process", "two processes"])
def test_a_flaky_test_is_named_with_its_first_failure_and_does_not_fail_the_run(tmp_path, parallel):
    (tmp_path / "test_flaky.py").write_text(FLAKY.format(names=["one"]) + PASSING)
    first = run(tmp_path, "-q", *parallel, "test_flaky.py")
    assert first.returncode == 0, first.stdout
    log = tmp_path / "results" / "output-1.log"
    assert "the cause of one" in log.read_text()
    assert run(tmp_path).stdout.splitlines()[-2:] == ["flaky", f"test_flaky.py::test_flaky[one]: {log}"]


SKIPPED = """
import pathlib
import pytest

def test_skipped():
    file = pathlib.Path(__file__).with_name("operator-has-gone")
    if file.exists():
        pytest.skip("the cluster has no operator any more")
    file.touch()
    raise AssertionError
"""


@pytest.mark.parametrize("text", [BROKEN, SKIPPED], ids=["broken", "skipped when it runs again"])
def test_a_flaky_test_is_named_although_another_one_is_broken(tmp_path, text):
    (tmp_path / "test_these.py").write_text(FLAKY.format(names=["one"]) + text)
    assert run(tmp_path, "-q", "test_these.py").returncode == 1
    log = tmp_path / "results" / "output-1.log"
    assert run(tmp_path).stdout.splitlines()[-2:] == ["flaky", f"test_these.py::test_flaky[one]: {log}"]


def test_flaky_tests_of_several_runs_are_counted_together(tmp_path):
    (tmp_path / "test_first.py").write_text(FLAKY.format(names=["one", "two"]))
    (tmp_path / "test_second.py").write_text(FLAKY.format(names=["three"]))
    assert run(tmp_path, "-q", "test_first.py").returncode == 0
    assert run(tmp_path, "-q", "test_second.py").returncode == 1


@pytest.mark.parametrize("text", [BROKEN, FLAKY.format(names=["one", "two", "three"])], ids=["broken", "three flaky"])
def test_a_broken_test_or_too_many_flaky_ones_fail_the_run(tmp_path, text):
    (tmp_path / "test_these.py").write_text(text)
    assert run(tmp_path, "-q", "test_these.py").returncode == 1
    assert "flaky" not in run(tmp_path).stdout.splitlines()


def test_a_run_that_could_not_collect_its_tests_fails_at_once(tmp_path):
    (tmp_path / "test_these.py").write_text("import absent_module\n")
    done = run(tmp_path, "-q", "test_these.py")
    assert done.returncode == 2
    assert done.stdout.count("absent_module") < 5, "it ran twice"


def test_a_run_that_is_killed_shows_which_test_had_not_ended(tmp_path):
    killed = "import os, signal\n" + PASSING + "def test_killed():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    (tmp_path / "test_these.py").write_text(killed)
    assert run(tmp_path, "-q", "test_these.py").returncode != 0
    lines = run(tmp_path).stdout.splitlines()
    assert [line.partition(" s ")[2] or line for line in lines[-3:]] == [
        "test_these.py::test_passing",
        "not ended",
        "test_these.py::test_killed",
    ]


def test_a_summary_has_seconds_by_folder_and_the_longest_tests_first():
    record = [
        "10.0 start tests/a/test_one.py::test[x y]",
        "10.5 start tests/b/test_two.py::test",
        "12.0 passed tests/a/test_one.py::test[x y]",
        "12.0 end tests/a/test_one.py::test[x y]",
        "12.0 start tests/a/test_one.py::test_more",
        "15.5 end tests/b/test_two.py::test",
        "15.6",
    ]
    assert summary(record, 20.0) == [
        "seconds of tests, which ran side by side: tests/b 5, tests/a 2",
        "longest",
        "5 s tests/b/test_two.py::test",
        "2 s tests/a/test_one.py::test[x y]",
        "not ended",
        "8 s tests/a/test_one.py::test_more",
    ]
