"""The environments of Horovod and PyTorch: tests take them as `make environments` has made them, and make none."""

import pytest
from environments import trainer_python

from kfp_distributed.trainers.requirements import variable_of


@pytest.mark.parametrize("image", ["horovod", "pytorch", "horovod-pytorch"])
@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_test_is_skipped_where_its_environment_is_not_there_and_fails_on_ci(
    tmp_path, monkeypatch, image, ci, outcome
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    monkeypatch.delenv(variable_of(image, "PYTHON"), raising=False)
    with pytest.raises(outcome, match=f"^no {image} on this machine: "):
        trainer_python.__wrapped__(image)
    assert [path for path in tmp_path.rglob("*") if path.is_dir() and path.name.startswith(image)] == []


def test_a_python_that_a_variable_names_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(variable_of("horovod", "PYTHON"), "/opt/python")
    assert trainer_python.__wrapped__("horovod") == "/opt/python"
