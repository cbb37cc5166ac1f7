"""Local folders of a step whose replicas are pods: through a real object store, there and back."""

import pytest
from step_lines import brief_lines

from kfp_distributed.components.train.launch import Request
from kfp_distributed.components.train.staging import staged
from kfp_distributed.storage import open_store
from kfp_distributed.storage.embedded import embedded_object_store


@pytest.fixture
def request_(tmp_path, monkeypatch):
    """With its data on this machine, and a bucket for what pods are to see."""
    data = tmp_path / "train"
    data.mkdir()
    (data / "dataset.json").write_text("{}")
    with embedded_object_store(tmp_path / "objects") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield Request(str(data), str(tmp_path / "model"), {}, ("run",), checkpoint_uri="s3://bucket/jobs")


def train(request, *files, cancelled=False):
    """What the pods do, as far as an object store sees it."""
    assert open_store(request.train_uri).read("dataset.json") == b"{}"
    for file in files:
        open_store(request.model_uri).write(file, b"{}")
    if cancelled:
        raise KeyboardInterrupt


def kept():
    return [entry.key.partition("/staged/")[2] for entry in open_store("s3://bucket/jobs").list()]


def test_the_model_comes_home_and_nothing_is_left(request_, tmp_path):
    with staged(request_) as visible:
        train(visible, "model.json", "weights/part-0")
    assert (tmp_path / "model" / "weights" / "part-0").read_text() == "{}"
    assert kept() == []


def test_a_whole_model_that_cannot_be_brought_home_stays(request_, tmp_path, capsys):
    (tmp_path / "model").write_text("a file where the folder is to be")
    with pytest.raises(FileExistsError), staged(request_) as visible:
        train(visible, "model.json", "weights/part-0")
    assert kept() == ["model_uri/model.json", "model_uri/weights/part-0"]
    assert brief_lines(capsys.readouterr().out) == [f"the model is whole, and stays in {visible.model_uri}"]


def test_a_whole_model_of_a_step_that_fails_stays(request_):
    with pytest.raises(KeyboardInterrupt), staged(request_) as visible:
        train(visible, "model.json", cancelled=True)
    assert kept() == ["model_uri/model.json"]


def test_what_is_no_whole_model_goes(request_, capsys):
    with pytest.raises(KeyboardInterrupt), staged(request_) as visible:
        train(visible, "weights/part-0", cancelled=True)
    assert kept() == []
    assert capsys.readouterr().out == ""
