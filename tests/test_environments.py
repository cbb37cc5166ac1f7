"""Additional environments: tests use those of `make environments` and do not create any."""

import re
from pathlib import Path

import pytest
from environments import TEST_ENVIRONMENTS, environment, program, trainer_python

from kfp_distributed.trainers.programs.requirements import variable_of

pytestmark = pytest.mark.takes(7)

LOOK_UPS = {
    **dict.fromkeys(("horovod", "pytorch", "horovod-pytorch"), trainer_python.__wrapped__),
    **dict.fromkeys(TEST_ENVIRONMENTS, environment),
}


@pytest.mark.parametrize("name", LOOK_UPS)
@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_missing_environment_skips_a_test_and_fails_it_in_ci(tmp_path, monkeypatch, name, ci, outcome):
    monkeypatch.setenv("TESTS_CACHE_FOLDER", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    monkeypatch.delenv("TESTS_" + variable_of(name, "PYTHON"), raising=False)
    with pytest.raises(outcome, match=f"^no {name} on this machine: "):
        LOOK_UPS[name](name)
    assert [path for path in tmp_path.rglob("*") if path.is_dir() and path.name.startswith(name)] == []


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_missing_chromium_skips_a_test_and_fails_it_in_ci(tmp_path, monkeypatch, ci, outcome):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match=r"^no chromium on this machine: apt-get install chromium$"):
        program("chromium")


def test_make_environments_creates_all_environments():
    text = (Path(__file__).parents[1] / "Makefile").read_text()
    created = [name for names in re.findall(r"for name in ([\w. -]+);.*environment", text) for name in names.split()]
    assert created == [*LOOK_UPS]


def test_python_of_the_environment_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("TESTS_" + variable_of("horovod", "PYTHON"), "/opt/python")
    assert trainer_python.__wrapped__("horovod") == "/opt/python"
