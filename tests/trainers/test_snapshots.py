"""Snapshots of checkpoints, which are uploaded while the program goes on."""

import errno
import mmap
import os
import shutil
import threading
import time

import pytest

from kfp_distributed.storage import open_store
from kfp_distributed.storage.errors import StoreAway
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads, snapshots
from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import commit, delete_snapshots, drop, flush, keep
from kfp_distributed.trainers.runtime.checkpoints.snapshots import (
    RewrittenInPlace,
    leave_out,
    read_state,
    take_snapshot,
)
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import complete_checkpoints, save_checkpoint

pytestmark = pytest.mark.takes(2)


@pytest.fixture(autouse=True)
def links(monkeypatch):
    """Small folders are linked, too. A file system that clones files would not link them."""
    monkeypatch.setattr(folder_uploads, "COPIED_BYTES", 0)
    monkeypatch.setattr(snapshots, "clone_file", lambda *_: False)
    leave_out.cache_clear()
    yield
    delete_snapshots()
    folder_uploads.kept_folders.clear()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


REWRITES = (
    "not stored: the program rewrites files in folder in place while they are uploaded. From now on, they are copied "
    "first, and the training waits for the copy. To avoid this, write a new file and rename it, as with os.replace"
)


def write(folder, name, text):
    """Replace a file of a folder atomically."""
    unfinished = folder.with_name("unfinished")
    unfinished.write_text(text)
    unfinished.rename(folder / name)


def await_snapshots(folder, count):
    """Wait until there are so many snapshots, because they are deleted in the background."""
    deadline = time.monotonic() + 120
    while len(list(folder.with_name("folder-snapshots").iterdir())) != count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def content(folder):
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


class Sender:
    """Records what is sent. An upload does not end before `go` is set."""

    def __init__(self, name="", order=None):
        self.go, self.begun, self.sent, self.errors = threading.Event(), threading.Event(), [], []
        self._name, self._order = name, order if order is not None else []

    def __call__(self, snapshot, _):
        self.begun.set()
        assert self.go.wait(120)
        snapshot.continue_upload()
        if self.errors:
            raise self.errors.pop(0)
        snapshot.check()
        self.sent.append(content(snapshot.folder))
        self._order.append(self._name)


def take(folder, links=True):
    return take_snapshot(folder, folder.with_name("snapshot"), read_state(folder), links, False, leave_out)


def test_a_snapshot_keeps_what_the_program_replaces_and_deletes(folder):
    write(folder, "replaced", "1")
    write(folder, "deleted", "1")
    snapshot = take(folder)
    assert (snapshot.folder / "replaced").stat().st_ino == (folder / "replaced").stat().st_ino, "it is a link"
    write(folder, "replaced", "2")
    (folder / "deleted").unlink()
    snapshot.check()
    assert content(snapshot.folder) == {"replaced": "1", "deleted": "1"}


@pytest.mark.parametrize("text", ["2", "1", "22"])
def test_each_rewrite_in_place_is_detected_at_once(folder, text):
    """Also one of the same size in the same tick of the clock, which gets no other time by itself."""
    for number in range(20):
        (folder / "a").write_text("1")
        snapshot = take_snapshot(folder, folder.with_name(str(number)), read_state(folder), True, False, leave_out)
        (folder / "a").write_text(text)
        with pytest.raises(RewrittenInPlace, match="a was rewritten in place"):
            snapshot.check()


def test_a_file_from_the_future_is_copied(folder):
    """A rewrite may get an earlier time, so that the time says nothing."""
    (folder / "a").write_text("1")
    os.utime(folder / "a", (2**33, 2**33))
    snapshot = take(folder)
    (folder / "a").write_text("2")
    snapshot.check()
    assert content(snapshot.folder) == {"a": "1"}


@pytest.mark.parametrize("code", [errno.EPERM, errno.EXDEV])
def test_files_are_copied_where_links_are_not_possible(folder, monkeypatch, code):
    def link(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    (folder / "part").mkdir()
    (folder / "part" / "a").write_text("1")
    snapshot = take(folder)
    (folder / "part" / "a").write_text("2")
    snapshot.check()
    assert content(snapshot.folder) == {"part/a": "1"}


def test_the_target_of_a_link_inside_the_folder_is_in_the_snapshot(folder):
    write(folder, "step-1", "1")
    (folder / "latest").symlink_to("step-1")
    snapshot = take(folder)
    write(folder, "step-2", "2")
    (folder / "latest").unlink()
    (folder / "latest").symlink_to("step-2")
    (folder / "step-1").unlink()
    snapshot.check()
    assert content(snapshot.folder) == {"step-1": "1", "latest": "1"}


def test_a_folder_that_changes_during_the_snapshot_has_none(folder):
    write(folder, "a", "1")
    state = read_state(folder)
    write(folder, "a", "22")
    with pytest.raises(OSError, match="folder changed during the snapshot"):
        take_snapshot(folder, folder.with_name("snapshot"), state, True, False, leave_out)
    assert not folder.with_name("snapshot").exists()


def test_commit_does_not_wait_and_only_the_newest_waiting_one_is_sent(folder):
    send = Sender()
    keep(folder, send)
    write(folder, "a", "1")
    commit()
    assert send.begun.wait(120)
    for text in ("2", "3", "4"):
        write(folder, "a", text)
        commit()
        await_snapshots(folder, 2)  # One is uploaded and one waits.
    send.go.set()
    assert flush()
    assert send.sent == [{"a": "1"}, {"a": "4"}]
    await_snapshots(folder, 0)


def test_what_a_failing_store_did_not_take_is_sent_again_by_the_thread(folder, monkeypatch):
    monkeypatch.setattr(folder_uploads, "RETRY_SECONDS", 0.01)
    send, sent = Sender(), threading.Event()
    send.go.set()
    send.errors = [StoreAway("http://store", "bucket", "key", "connection refused")] * 3

    def send_and_tell(*arguments):
        send(*arguments)
        sent.set()

    keep(folder, send_and_tell)
    write(folder, "a", "1")
    commit()
    assert sent.wait(120)
    assert send.sent == [{"a": "1"}]


def test_a_deleted_snapshot_does_not_end_the_thread(folder, tmp_path):
    """What deletes it is a program that clears its working directory."""
    later = Sender()
    later.go.set()
    keep(folder, lambda snapshot, _: shutil.rmtree(snapshot.folder.parent))
    (tmp_path / "later").mkdir()
    keep(tmp_path / "later", later)
    write(folder, "a", "1")
    write(tmp_path / "later", "b", "1")
    assert flush()
    assert later.sent == [{"b": "1"}]


def test_a_deleted_snapshot_that_waits_is_replaced(folder):
    send = Sender()
    send.go.set()
    send.errors = [StoreAway("http://store", "bucket", "key", "connection refused")]
    keep(folder, send)
    write(folder, "a", "1")
    assert not flush()
    shutil.rmtree(folder.with_name("folder-snapshots"))
    write(folder, "a", "2")
    assert flush()
    assert send.sent == [{"a": "2"}]


def test_a_small_snapshot_waits_until_there_is_a_newer_one(folder, monkeypatch):
    monkeypatch.setattr(folder_uploads, "COPIED_BYTES", 1)
    send = Sender()
    send.go.set()
    send.errors = [StoreAway("http://store", "bucket", "key", "connection refused")]
    keep(folder, send)
    write(folder, "a", "1")
    assert not flush()
    folder.with_name("folder-snapshots").joinpath("2").touch()  # So there can be no second snapshot.
    write(folder, "a", "2")
    flush()
    assert send.sent == [{"a": "1"}]


def test_the_error_of_each_folder_is_logged_once(folder, tmp_path, capsys):
    checkpoints, metrics = Sender(), Sender()
    (tmp_path / "metrics").mkdir()
    keep(folder, checkpoints)
    keep(tmp_path / "metrics", metrics)
    for sender, name in ((checkpoints, "weights"), (metrics, "loss")):
        sender.go.set()
        sender.errors = [OSError(name)] * 3
    write(folder, "a", "1")
    write(tmp_path / "metrics", "b", "1")
    for _ in range(3):
        flush()
    assert capsys.readouterr().out == "not stored: weights\nnot stored: loss\n"


def test_the_checkpoint_is_not_stored_before_its_metrics(folder, tmp_path):
    order = []
    metrics, checkpoints = Sender("metrics", order), Sender("checkpoint", order)
    (tmp_path / "metrics").mkdir()
    keep(tmp_path / "metrics", metrics)
    keep(folder, checkpoints, is_complete=lambda *_: False)
    for sender in (metrics, checkpoints):
        sender.go.set()
    metrics.errors = [StoreAway("http://store", "bucket", "key", "connection refused")]
    write(folder, "a", "1")
    write(tmp_path / "metrics", "training.json", "1")
    assert not flush()
    assert order == []
    assert flush()
    assert order == ["metrics", "checkpoint"]


def test_the_metrics_of_a_replaced_checkpoint_go_with_it(folder, tmp_path):
    """At each time, the stored metrics are those of the stored checkpoint or newer."""
    order, stored = [], []
    metrics, checkpoints = Sender("metrics", order), Sender("checkpoint", order)
    (tmp_path / "metrics").mkdir()
    keep(tmp_path / "metrics", metrics)
    keep(folder, checkpoints, is_complete=lambda *_: False)
    checkpoints.go.set()
    for epoch in ("1", "2", "3"):
        write(folder, "a", epoch)
        write(tmp_path / "metrics", "training.json", epoch)
        commit()
        assert metrics.begun.wait(120)
    metrics.go.set()
    assert flush()
    stored = [sent["training.json"] for sent in metrics.sent], [sent["a"] for sent in checkpoints.sent]
    assert stored == (["1", "3"], ["1", "3"])
    assert order == ["metrics", "checkpoint"] * 2


def test_a_program_that_rewrites_in_place_never_gets_a_mixed_checkpoint(folder, tmp_path, capsys):
    """It writes two files one after the other. Both always have the same number in a checkpoint."""
    store, begun = open_store(str(tmp_path / "store")), threading.Event()

    def send(snapshot, _):
        begun.set()
        save_checkpoint(store, snapshot.folder, snapshot.check, snapshot.guessed)

    keep(folder, send, is_complete=lambda *_: False)
    stored = set()
    for number in range(1, 41):
        for name in ("weights", "optimizer"):
            (folder / name).write_text(f"{number:04d}" * 200_000)
        commit()
    assert flush()
    for name in complete_checkpoints(store):
        assert store.read(f"{name}/weights") == store.read(f"{name}/optimizer")
        stored.add(int(store.read(f"{name}/weights")[:4]))
    assert 40 in stored
    assert capsys.readouterr().out.count("rewrites files in folder in place") == 1


@pytest.mark.parametrize("by_program", [True, False])
def test_a_rewrite_during_the_upload_is_logged_and_sent_next(folder, monkeypatch, capsys, by_program):
    monkeypatch.setattr(folder_uploads, "LOOK_SECONDS", 0)
    sent = []

    def send(snapshot, _):
        if not sent:
            (folder / "a").write_text("changed")
        sent.append(content(snapshot.folder)["a"])
        snapshot.check()

    keep(folder, send)
    (folder / "a").write_text("1")
    for _ in range(5):
        flush(by_program=by_program)
    assert sent == ["changed"] * 2
    assert capsys.readouterr().out.splitlines() == [
        "not stored: a was rewritten in place before it was stored",
        REWRITES,
    ]


def test_a_mapped_file_is_copied(folder):
    """A program may change it without a change of its time."""
    send = Sender()
    keep(folder, send, is_complete=lambda *_: False)
    (folder / "a").write_bytes(b"1" * mmap.PAGESIZE)
    with (folder / "a").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0:1] = b"1"
        commit()
        mapped[0:1] = b"2"
        send.go.set()
        assert flush()
    assert send.sent[0]["a"][0] == "1"


def test_flush_gives_up_an_older_checkpoint(folder):
    send = Sender()
    keep(folder, send, is_complete=lambda *_: False)
    write(folder, "a", "1")
    commit()
    assert send.begun.wait(120)
    write(folder, "a", "2")
    flushed = threading.Thread(target=flush)
    flushed.start()
    await_snapshots(folder, 2)
    send.go.set()
    flushed.join(120)
    assert send.sent in ([{"a": "2"}], [{"a": "1"}, {"a": "2"}])
    assert send.sent[-1] == {"a": "2"}


def test_a_process_that_leads_no_more_stores_nothing_of_what_waits(folder):
    send = Sender()
    keep(folder, send, is_complete=lambda *_: False)
    write(folder, "a", "1")
    commit()
    assert send.begun.wait(120)
    write(folder, "a", "2")
    commit()
    drop()
    send.go.set()
    assert flush(by_program=False)
    assert flush()
    assert send.sent == []
    await_snapshots(folder, 0)
    write(folder, "a", "3")  # It leads again.
    commit()
    assert flush()
    assert send.sent == [{"a": "3"}]


def test_snapshots_of_an_earlier_start_are_deleted(folder):
    left = folder.with_name("folder-snapshots") / "7"
    left.mkdir(parents=True)
    keep(folder, Sender())
    assert not left.parent.exists()


def test_a_fork_deletes_no_snapshots(folder):
    send = Sender()
    keep(folder, send)
    write(folder, "a", "1")
    commit()
    if not (child := os.fork()):
        delete_snapshots()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.with_name("folder-snapshots").exists()
    delete_snapshots()
    assert not folder.with_name("folder-snapshots").exists()
    send.go.set()
    flush()  # The upload has ended. Otherwise the next test that calls flush in this process would wait for it.


def test_the_keras_trainers_replace_the_files_of_their_checkpoint(folder):
    """Also if a position within an epoch has the number of the checkpoint before."""
    tf_keras = pytest.importorskip("tf_keras")
    from kfp_distributed.storage.dataset import Column, DatasetManifest, Label
    from kfp_distributed.trainers.epochs.position import Position
    from kfp_distributed.trainers.keras_training.keras_fit import compile_model, keep_checkpoints

    columns = (Column("x", "number", "float32", (), (), 0.0, 1.0),)
    manifest = DatasetManifest("train", columns, Label("label", ("a", "b")), (), (0, 0), 0, "test", shuffled=True)
    model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(1,))])
    compile_model(model, tf_keras.optimizers.Adam(), 1, "classification")
    save = keep_checkpoints(model, str(folder), manifest)[1]
    save(Position(1))
    for number, position in enumerate([Position(1, 3), Position(1, 4), Position(2)]):
        target = folder.with_name(f"snapshot-{number}")
        snapshot = take_snapshot(folder, target, read_state(folder), True, False, leave_out)
        before = {file: file.read_bytes() for file in target.rglob("*") if file.is_file()}
        model.set_weights([weights + 1 for weights in model.get_weights()])
        save(position)
        snapshot.check()
        assert {file: file.read_bytes() for file in target.rglob("*") if file.is_file()} == before
