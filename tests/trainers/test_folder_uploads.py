import json
import shutil
import threading
import time

import numpy as np
import pytest

from kfp_distributed.storage.errors import StorageError, StoreAway
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads
from kfp_distributed.trainers.runtime.checkpoints.completeness import RenamedFiles, is_marked, is_written
from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import flush, keep
from kfp_distributed.trainers.runtime.outputs.metrics_file import read_epochs
from kfp_distributed.trainers.sync import record_epoch


@pytest.fixture
def folder(tmp_path):
    """A folder with one file. After the test, no folder is registered any more."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "before").write_text("x")
    yield folder
    folder_uploads.kept_folders.clear()


def content(folder):
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_a_folder_is_sent_when_it_has_changed(folder):
    sent = []
    keep(folder, lambda *_: sent.append(content(folder)))
    flush()
    assert sent == [], "the initial content counts as sent"
    (folder / "a").write_text("1")
    flush()
    flush()
    assert sent == [{"before": "x", "a": "1"}]
    (folder / "a").unlink()
    flush()
    assert sent[1:] == [{"before": "x"}]


def test_a_file_that_is_deleted_during_a_look_is_ignored(folder, monkeypatch, capsys):
    sent, listed = [], type(folder).rglob
    keep(folder, lambda *_: sent.append(content(folder)))
    (folder / "a").write_text("1")
    monkeypatch.setattr(type(folder), "rglob", lambda *of: [*listed(*of), folder / "deleted"])
    flush()
    assert sent == [{"before": "x", "a": "1"}]
    assert capsys.readouterr().out == ""


def test_a_folder_is_sent_once_it_has_not_changed_for_some_time(folder, monkeypatch):
    monkeypatch.setattr(folder_uploads, "LOOK_SECONDS", 0)
    sent = []
    keep(folder, lambda *_: sent.append(content(folder)))
    for text in ("1", "12", "123"):
        (folder / "a").write_text(text)
        flush(by_program=False)
    assert sent == [], "it has changed just now"
    flush(by_program=False)
    flush(by_program=False)
    assert sent == [{"before": "x", "a": "123"}]


def test_two_checks_in_a_row_do_not_make_a_folder_stable(folder, monkeypatch):
    sent, now = [], time.monotonic()
    monkeypatch.setattr(folder_uploads.time, "monotonic", lambda: now)
    keep(folder, lambda *_: sent.append(content(folder)))
    (folder / "a").write_text("half")
    flush(by_program=False)
    flush(by_program=False)
    assert sent == []
    now += folder_uploads.LOOK_SECONDS
    flush(by_program=False)
    assert sent == [{"before": "x", "a": "half"}]


def test_a_folder_that_always_changes_is_logged_once(folder, capsys):
    sent = []
    keep(folder, lambda *_: sent.append(content(folder)))
    for number in range(40):
        (folder / "a").write_text("1" * number)
        flush(by_program=False)
    assert sent == []
    message = f"{folder.name} is not stored: it changes at least every 2 s\n"
    assert capsys.readouterr().out == message


def test_a_growing_folder_is_sent_while_it_grows(folder):
    sent = []
    keep(folder, lambda *_: sent.append(content(folder)), append_only=True)
    for text in ("1", "12"):
        (folder / "a").write_text(text)
        flush(by_program=False)
    flush(by_program=False)
    assert sent == [{"before": "x", "a": "1"}, {"before": "x", "a": "12"}]


def test_only_the_changed_files_of_a_growing_folder_are_sent(folder):
    sent = []
    keep(folder, lambda _, changed: sent.append({file.name for file in changed}), append_only=True)
    (folder / "large").write_text("x" * 1000)
    for number in range(10):
        (folder / "small").write_text("x" * (number + 1))
        flush(by_program=False)
    assert sent == [{"large", "small"}, *[{"small"}] * 9]


def test_a_failed_upload_is_repeated(folder, capsys):
    away = StoreAway("http://store", "bucket", "key", "connection refused")
    sent, errors = [], [away, StorageError("", "", "key", "No space left on device"), FileNotFoundError("a")]

    def send(*_):
        if errors:
            raise errors.pop(0)
        sent.append(content(folder))

    keep(folder, send)
    (folder / "a").write_text("1")
    assert [flush(), flush(), flush()] == [False, True, True]
    assert sent == []
    assert flush()
    assert sent == [{"before": "x", "a": "1"}]
    assert "not stored: http://store, bucket 'bucket', key 'key': connection refused" in capsys.readouterr().out


@pytest.mark.takes(3)
def test_folders_are_sent_in_the_background(folder):
    sent = threading.Event()
    keep(folder, lambda *_: sent.set())
    threading.Thread(target=folder_uploads.poll_folders, daemon=True).start()
    (folder / "a").write_text("1")
    assert sent.wait(120)


@pytest.fixture
def checkpoints(folder, monkeypatch):
    """A folder of checkpoints; a list of its contents when it was sent, and whether each was a guess."""
    monkeypatch.setattr(folder_uploads, "LOOK_SECONDS", 0)
    sent, renamed = [], RenamedFiles(folder)

    def is_complete(files, changed):
        return is_marked(files, changed, renamed) and not is_written(folder)

    keep(folder, lambda snapshot, _: sent.append((content(snapshot.folder), snapshot.guessed)), is_complete=is_complete)
    return sent


def rename(folder, name, text):
    """Replace a file of a folder atomically."""
    unfinished = folder.with_name("unfinished")
    unfinished.write_text(text)
    unfinished.rename(folder / name)


def look(times=3):
    for _ in range(times):
        flush(by_program=False)


def test_a_checkpoint_that_nobody_commits_is_a_guess(folder, checkpoints):
    (folder / "a").write_text("1")
    look()
    assert checkpoints == [({"before": "x", "a": "1"}, True)]


def test_an_empty_folder_never_replaces_a_checkpoint(folder, checkpoints):
    (folder / "before").unlink()
    look()
    flush()
    assert checkpoints == []


def test_a_folder_that_loses_files_is_sent_only_if_the_program_commits_it(folder, checkpoints):
    (folder / "a").write_text("1")
    look()
    (folder / "before").unlink()
    look()
    assert checkpoints == [({"before": "x", "a": "1"}, True)]
    flush()
    assert checkpoints[1:] == [({"a": "1"}, False)]


def test_a_file_that_is_being_written_is_not_sent(folder, checkpoints):
    """The program pauses within a file for longer than two looks."""
    with (folder / "a").open("w") as file:
        file.write("first half")
        file.flush()
        look()
        assert checkpoints == []
        file.write(" and second half")
    look()
    assert checkpoints == [({"before": "x", "a": "first half and second half"}, True)]


def test_a_renamed_file_is_sent_at_once_and_is_no_guess(folder, checkpoints, tmp_path):
    (folder / "before").unlink()
    for number, unfinished in enumerate([folder / "a.tmp", tmp_path / "outside"]):
        unfinished.write_text(str(number))
        unfinished.rename(folder / "a")
        flush(by_program=False)
        assert checkpoints[number:] == [({"a": str(number)}, False)]
    (folder / "a").write_text("written in place")
    flush(by_program=False)
    assert len(checkpoints) == 2
    look()
    assert checkpoints[2:] == [({"a": "written in place"}, True)]


@pytest.mark.parametrize("suffixes", [("", ""), ("-1", "-2")], ids=["replaced", "new names"])
def test_files_that_are_renamed_one_by_one_are_a_guess(folder, checkpoints, suffixes):
    """The program pauses between the renames of two files, and never commits."""
    (folder / "before").unlink()
    first, second = suffixes
    for name in (f"weights{first}", f"optimizer{first}"):
        rename(folder, name, "1")
        look()
    both = {f"weights{first}": "1", f"optimizer{first}": "1"}
    assert checkpoints == [({f"weights{first}": "1"}, False), (both, True)]
    rename(folder, f"weights{second}", "2")
    flush(by_program=False)
    assert len(checkpoints) == 2, "half of the next checkpoint is not sent at once"
    look()
    assert checkpoints[2:] == [(both | {f"weights{second}": "2"}, True)]
    rename(folder, f"optimizer{second}", "2")
    flush(by_program=False)
    look()
    assert checkpoints[3:] == [(both | {f"weights{second}": "2", f"optimizer{second}": "2"}, True)]


def test_two_files_that_are_renamed_between_two_looks_are_a_guess(folder, checkpoints):
    (folder / "before").unlink()
    for name in ("weights", "optimizer"):
        rename(folder, name, "1")
    flush(by_program=False)
    assert checkpoints == []
    look()
    assert checkpoints == [({"weights": "1", "optimizer": "1"}, True)]


def test_a_renamed_folder_is_no_guess_once_it_is_alone(folder, checkpoints, tmp_path):
    """The program deletes the previous checkpoint after it has renamed the new one."""
    (folder / "before").unlink()
    for epoch in ("1", "2"):
        fresh = tmp_path / "fresh"
        fresh.mkdir()
        for name in ("weights", "optimizer"):
            (fresh / name).write_text(epoch)
        fresh.rename(folder / epoch)
        if epoch == "2":
            flush(by_program=False)
            assert len(checkpoints) == 1, "two folders are no state with a mark"
            shutil.rmtree(folder / "1")
        flush(by_program=False)
    assert checkpoints == [({f"{epoch}/weights": epoch, f"{epoch}/optimizer": epoch}, False) for epoch in ("1", "2")]


def test_a_program_that_commits_is_never_guessed_about(folder, checkpoints):
    (folder / "a").write_text("1")
    flush()
    (folder / "a").write_text("half of 2")
    look()
    assert checkpoints == [({"before": "x", "a": "1"}, False)]


def test_a_change_after_the_commit_is_logged_once(folder, checkpoints, capsys):
    """The program calls record_epoch before it writes the checkpoint of the epoch."""
    for text in ("1", "2"):
        flush()
        (folder / "a").write_text(text * int(text))
        look(40)
    assert checkpoints == [({"before": "x", "a": "1"}, False)]
    assert capsys.readouterr().out.count("the next call of flush() or record_epoch()") == 1


def test_a_program_that_commits_may_rename_several_files(folder, checkpoints):
    """Between two renames, the files belong to different checkpoints."""
    for epoch in ("1", "2"):
        rename(folder, "weights", epoch)
        if epoch == "2":
            look()
        rename(folder, "optimizer", epoch)
        flush()
    assert [(sent["weights"], sent["optimizer"], guessed) for sent, guessed in checkpoints] == [
        ("1", "1", False),
        ("2", "2", False),
    ]


def test_a_committed_checkpoint_that_could_not_be_sent_is_sent_later(folder):
    sent, errors = [], [StoreAway("http://store", "bucket", "key", "connection refused")]

    def send(snapshot, _):
        if errors:
            raise errors.pop()
        sent.append((content(snapshot.folder), snapshot.guessed))

    keep(folder, send, is_complete=lambda files, changed: False)
    (folder / "a").write_text("1")
    assert not flush()
    look()
    assert sent == [({"before": "x", "a": "1"}, False)]


def test_repeated_epochs_replace_the_recorded_ones(tmp_path, capsys):
    file = tmp_path / "training.json"
    assert read_epochs(file) == []
    for epoch, loss in ((1, 0.5), (2, 0.4), (3, 0.3), (2, 0.25)):
        record_epoch(file, "worker-0", epoch, 3, {"loss": loss})
    assert json.loads(file.read_text()) == {
        "replica": "worker-0",
        "epochs": [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}],
    }
    assert capsys.readouterr().out.splitlines()[-1] == "epoch 2/3 loss=0.2500"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"loss": 1}', '{"epochs": 3}', '{"epochs": [{"loss": 1}]}', '{"epochs": [1]}']
)
def test_a_metrics_file_of_another_form_is_ignored(tmp_path, capsys, text):
    file = tmp_path / "training.json"
    file.write_text(text)
    assert read_epochs(file) == []
    assert 'training.json has not the form {"replica": ' in capsys.readouterr().out


def test_a_metric_that_becomes_nan_is_named_once(folder, capsys):
    for epoch, loss in enumerate([0.5, float("nan"), float("nan")], 1):
        record_epoch(folder / "training.json", "worker-0", epoch, 3, {"accuracy": 0.9, "loss": loss})
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1/3 accuracy=0.9000 loss=0.5000",
        "warning: loss is nan in epoch 2: fill missing values, which are NaN in the rows, "
        "or set a smaller learning rate",
        "epoch 2/3 accuracy=0.9000 loss=nan",
        "epoch 3/3 accuracy=0.9000 loss=nan",
    ]


class Tensor:
    """A scalar that only `float` converts, such as a tensor of PyTorch."""

    def __float__(self):
        return 0.25


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.float32(0.5), 0.5),
        (np.float64("inf"), float("inf")),
        (np.int64(3), 3.0),
        (np.array(0.5, np.float16), 0.5),
        (Tensor(), 0.25),
        (True, 1.0),
        (7, 7.0),
    ],
)
def test_a_metric_is_any_number(tmp_path, value, number):
    record_epoch(tmp_path / "training.json", "worker-0", 1, 1, {"metric": value})
    assert read_epochs(tmp_path / "training.json") == [{"epoch": 1, "metric": number}]


def test_a_metric_is_a_scalar_of_tensorflow(tmp_path, capsys):
    import tensorflow as tf

    record_epoch(tmp_path / "training.json", "worker-0", 1, 1, {"loss": tf.constant(0.5), "rate": tf.Variable(0.25)})
    assert read_epochs(tmp_path / "training.json") == [{"epoch": 1, "loss": 0.5, "rate": 0.25}]
    assert capsys.readouterr().out == "epoch 1/1 loss=0.5000 rate=0.2500\n"


def test_a_nan_of_numpy_is_named(tmp_path, capsys):
    record_epoch(tmp_path / "training.json", "worker-0", 1, 3, {"loss": np.float32("nan")})
    assert "loss is nan in epoch 1" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["0.5", None, 10**400, [0.5, 0.25], np.array([0.5, 0.25]), {"a": 1}, 1j])
def test_a_metric_that_is_no_number_is_named_and_nothing_is_written(tmp_path, value):
    with pytest.raises(TypeError, match=r"'top'.*" + type(value).__name__):
        record_epoch(tmp_path / "training.json", "worker-0", 1, 3, {"loss": 0.5, "top": value})
    assert not (tmp_path / "training.json").exists()
