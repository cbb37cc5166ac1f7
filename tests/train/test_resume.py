"""Resuming from another training, from one bucket of a real object store to another."""

import json
import re
import threading
import uuid
from dataclasses import replace

import pytest

from kfp_distributed.components.train.run.training_request.resume import (
    CopiedTraining,
    check_resume,
    copy_checkpoint,
    copy_newest,
    copy_training,
    training_folder,
)
from kfp_distributed.storage import open_store
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.folder import FolderStore
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.store import BYTES
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import (
    complete_checkpoints,
    reject_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from kfp_distributed.trainers.runtime.job_description import JobDescription

OTHER = "s3://other/jobs/train-1"


def description(folder="s3://own/jobs/train-2"):
    return JobDescription(
        name="train-2",
        program={},
        parameters={},
        train_uri="",
        validation_uri="",
        model_uri="",
        checkpoint_uri=f"{folder}/checkpoints",
        metrics_uri=f"{folder}/metrics",
        leader="worker-0",
        data_replicas=("worker-0",),
    )


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Another training with two complete checkpoints and an incomplete one. The bucket `own` does not exist yet."""
    with embedded_object_store(tmp_path / "objects") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        open_store("s3://other").make_bucket()
        checkpoints = open_store(f"{OTHER}/checkpoints")
        folder = tmp_path / "state"
        folder.mkdir()
        for epoch in (1, 2):
            (folder / "epoch").write_text(str(epoch))
            save_checkpoint(checkpoints, folder)
        checkpoints.write("00000003/epoch", b"3")
        open_store(f"{OTHER}/metrics").write("training.json", json.dumps({"epochs": [1, 2]}).encode())
        yield checkpoints


def test_complete_checkpoints_and_metrics_are_copied_once(other, tmp_path):
    own = description()
    assert check_resume(OTHER, own)
    open_store("s3://own").make_bucket()
    assert copy_training(OTHER, own) == CopiedTraining("00000002", ())
    assert [entry.key for entry in open_store(training_folder(own)).list()] == [
        "checkpoints/00000001.json",
        "checkpoints/00000001/epoch",
        "checkpoints/00000002.json",
        "checkpoints/00000002/epoch",
        "metrics/training-data.json",
        "metrics/training.json",
    ]
    assert json.loads(open_store(own.metrics_uri).read("training-data.json")) == [{}], "unknown in version 0.1"
    assert restore_checkpoint(open_store(own.checkpoint_uri), tmp_path / "restored") == "00000002"
    assert (tmp_path / "restored" / "epoch").read_text() == "2"
    assert not check_resume(OTHER, own)
    assert not check_resume("s3://deleted/jobs/train-1", own)


def test_a_rejected_checkpoint_is_not_taken_again(other, tmp_path):
    assert reject_checkpoint(other, "00000002") == "00000001"
    own = description()
    assert check_resume(OTHER, own)
    open_store("s3://own").make_bucket()
    assert copy_training(OTHER, own) == CopiedTraining("00000001", ("00000002",))
    assert complete_checkpoints(open_store(own.checkpoint_uri)) == ["00000001"]
    assert restore_checkpoint(open_store(own.checkpoint_uri), tmp_path / "restored") == "00000001"


def test_a_training_whose_checkpoints_are_all_rejected_is_refused(other):
    for name in ("00000001", "00000002"):
        other.write(f"{name}.failed", b"")
    with pytest.raises(ValueError, match=rf"^resume_from = '{OTHER}': .*00000002, 00000001.*\.failed"):
        check_resume(OTHER, description())
    with pytest.raises(StorageError, match="NoSuchBucket"):
        open_store("s3://own").list()


def test_the_log_names_the_checkpoint_that_is_taken_and_the_rejected_ones():
    text = CopiedTraining("00000001", ("00000003", "00000002")).describe("s3://other")
    assert re.findall(r"\d{8}", text) == ["00000001", "00000003", "00000002"]
    assert re.findall(r"\d{8}", CopiedTraining("00000001", ()).describe("s3://other")) == ["00000001"]


class InterruptedStore(FolderStore):
    """A store that fails after a number of copies."""

    def __init__(self, root, copies):
        super().__init__(root)
        self.copies = copies

    def write_from(self, key, source, content_type=BYTES):
        if not self.copies:
            raise StorageError("", "", key, "the store does not answer")
        self.copies -= 1
        return super().write_from(key, source, content_type)


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_an_interrupted_copy_is_not_a_checkpoint(tmp_path, copies):
    folder = tmp_path / "state"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).touch()
    source = open_store(str(tmp_path / "other"))
    save_checkpoint(source, folder)
    target = InterruptedStore(tmp_path / "own", copies)
    with pytest.raises(StorageError, match="the store does not answer"):
        copy_checkpoint(source, target, "00000001")
    assert complete_checkpoints(target) == []
    target.copies = 3
    copy_checkpoint(source, target, "00000001")
    assert complete_checkpoints(target) == ["00000001"]


def save_epoch(uri, state):
    """Save a checkpoint of three files whose content is new."""
    for name in ("a", "b", "c"):
        (state / name).write_text(uuid.uuid4().hex)
    save_checkpoint(open_store(uri), state)


class RotatingStore(FolderStore):
    """The checkpoints of a training that goes on: some epochs end between the first manifest and its files."""

    def __init__(self, root, state, epochs):
        super().__init__(root)
        self.state, self.epochs, self.lock = state, epochs, threading.Lock()

    def read_into(self, key, target):
        with self.lock:
            while "/" in key and self.epochs:
                self.epochs -= 1
                save_epoch(self.uri, self.state)
        return super().read_into(key, target)


@pytest.mark.parametrize(
    ("epochs", "copied"), [(0, ["3", "2", "1"]), (1, ["3", "2"]), (2, ["3"]), (3, ["6", "5", "4"])]
)
def test_a_copy_takes_a_complete_checkpoint_of_a_training_that_goes_on(tmp_path, epochs, copied):
    state = tmp_path / "state"
    state.mkdir()
    for _ in range(3):
        save_epoch(str(tmp_path / "other"), state)
    own = open_store(str(tmp_path / "own"))
    newest, rejected = copy_newest(RotatingStore(tmp_path / "other", state, epochs), own)
    assert rejected == ()
    assert [newest, complete_checkpoints(own)] == [f"0000000{copied[0]}", [f"0000000{name}" for name in copied]]
    assert restore_checkpoint(own, tmp_path / "restored") == newest


def test_without_resume_from_no_store_is_read():
    assert not check_resume("", description("s3://bucket/without/store"))


@pytest.mark.parametrize(
    ("resume_from", "cause"),
    [
        ("s3://other/jobs", "no complete checkpoint"),
        (f"{OTHER}/checkpoints", "no complete checkpoint"),
        ("s3://absent/train-1", "NoSuchBucket"),
        ("gs://bucket/train-1", "gs://bucket"),
    ],
)
def test_a_folder_without_a_complete_checkpoint_is_refused(other, resume_from, cause):
    with pytest.raises(ValueError, match=rf"^resume_from = '{resume_from}': .*{cause}.*CHECKPOINT_URI/JOB"):
        check_resume(resume_from, description())
    with pytest.raises(StorageError, match="NoSuchBucket"):
        open_store("s3://own").list()


def test_a_language_model_does_not_continue_the_training_of_another_run(other, tmp_path):
    tuned = replace(description(), program={"trainer": "language_model"})
    with pytest.raises(ValueError, match=f"^resume_from = '{OTHER}': language_model .* base_model .* export"):
        check_resume(OTHER, tuned)
    with pytest.raises(StorageError, match="NoSuchBucket"):
        open_store("s3://own").list()
    own = open_store(tuned.checkpoint_uri)
    own.make_bucket()
    save_checkpoint(own, tmp_path / "state")
    assert not check_resume(OTHER, tuned)  # A retry continues after its own checkpoints.


def test_the_folder_of_a_training_keeps_the_settings_of_its_uri():
    own = replace(description(), checkpoint_uri="s3://b/checkpoints/train-2/checkpoints?endpoint=http://h:1/")
    assert training_folder(own) == "s3://b/checkpoints/train-2?endpoint=http://h:1/"
