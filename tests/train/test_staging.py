"""Local folders of a step whose replicas are pods, staged in a real object store."""

from dataclasses import replace

import pytest
from step_lines import brief_lines

from kfp_distributed.components.train.run.staging import staged
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.storage import open_store
from kfp_distributed.storage.object_stores.embedded import embedded_object_store


@pytest.fixture
def request_(tmp_path, monkeypatch):
    """A request with a local dataset, and an object store for the staged folders."""
    data = tmp_path / "train"
    data.mkdir()
    (data / "dataset.json").write_text("{}")
    with embedded_object_store(tmp_path / "objects") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        open_store("s3://bucket").make_bucket()
        yield Request(str(data), str(tmp_path / "model"), {}, ("run",), checkpoint_uri="s3://bucket/jobs")


def train(request, *files, cancelled=False):
    """Read the dataset and write the files of a model, as the pods do."""
    assert open_store(request.train_uri).read("dataset.json") == b"{}"
    for file in files:
        open_store(request.model_uri).write(file, b"{}")
    if cancelled:
        raise KeyboardInterrupt


def staged_keys():
    return [entry.key.partition("/staged/")[2] for entry in open_store("s3://bucket/jobs").list()]


def test_the_model_is_downloaded_and_the_staged_objects_are_deleted(request_, tmp_path):
    with staged(request_, log) as visible:
        train(visible, "model.json", "weights/part-0")
    assert (tmp_path / "model" / "weights" / "part-0").read_text() == "{}"
    assert staged_keys() == []


def test_a_complete_model_that_cannot_be_downloaded_is_kept(request_, tmp_path, capsys):
    (tmp_path / "model").write_text("a file with the name of the folder")
    with pytest.raises(FileExistsError), staged(request_, log) as visible:
        train(visible, "model.json", "weights/part-0")
    assert staged_keys() == ["model_uri/model.json", "model_uri/weights/part-0"]
    assert brief_lines(capsys.readouterr().out) == [f"kept the complete model in {visible.model_uri}"]


def test_a_complete_model_of_a_failed_step_is_kept(request_):
    with pytest.raises(KeyboardInterrupt), staged(request_, log) as visible:
        train(visible, "model.json", cancelled=True)
    assert staged_keys() == ["model_uri/model.json"]


def test_an_incomplete_model_is_deleted(request_, capsys):
    with pytest.raises(KeyboardInterrupt), staged(request_, log) as visible:
        train(visible, "weights/part-0", cancelled=True)
    assert staged_keys() == []
    assert capsys.readouterr().out == ""


def test_a_missing_bucket_is_refused_and_not_created(request_):
    request = replace(request_, checkpoint_uri="s3://bukcet/jobs")
    with pytest.raises(ValueError, match=r"^checkpoint_uri='s3://bukcet/jobs' "), staged(request, log):
        pytest.fail("the block was entered")
    assert not open_store("s3://bukcet").bucket_exists()
