import json
import os
from dataclasses import replace

import pytest
from faulty_proxy import Fault, faulty_proxy

from kfp_distributed.storage import open_store
from kfp_distributed.storage.folder import FolderStore
from kfp_distributed.storage.uri import parse_endpoint
from kfp_distributed.trainers.runtime.checkpoints import stored_checkpoints
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import (
    CheckpointNumbers,
    NoUsableCheckpoint,
    complete_checkpoints,
    reject_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)

pytestmark = pytest.mark.takes(2)


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def save(store, tmp_path):
    """Return a function that saves a text as a checkpoint of one file."""

    def save(text):
        folder = tmp_path / "local"
        (folder / "part").mkdir(parents=True, exist_ok=True)
        (folder / "part" / "weights").write_text(text)
        save_checkpoint(store, folder)
        return complete_checkpoints(store)

    return save


def restore(store, tmp_path):
    folder = tmp_path / "restored"
    folder.mkdir(exist_ok=True)
    (folder / "left over").write_text("x")
    number = restore_checkpoint(store, folder)
    return number, {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_without_a_checkpoint_the_folder_is_empty(store, tmp_path):
    assert restore(store, tmp_path) == ("", {})


def test_the_latest_three_checkpoints_are_kept(store, save, tmp_path):
    assert [save(text) for text in ("one", "two", "three", "four")] == [
        ["00000001"],
        ["00000002", "00000001"],
        ["00000003", "00000002", "00000001"],
        ["00000004", "00000003", "00000002"],
    ]
    names = ["00000002", "00000003", "00000004"]
    assert [entry.key for entry in store.list()] == [
        key for name in names for key in (f"{name}.json", f"{name}/part/weights")
    ]
    assert restore(store, tmp_path) == ("00000004", {"part/weights": "four"})


class ListedStore(FolderStore):
    """A store that records what is listed."""

    def __init__(self, root):
        super().__init__(root)
        self.listed = []

    def children(self, folder=""):
        self.listed.append(("children", folder))
        return super().children(folder)

    def list(self, prefix=""):
        self.listed.append(("list", prefix))
        return super().list(prefix)


def test_only_the_files_of_a_deleted_checkpoint_are_listed(tmp_path):
    """A checkpoint may have very many files."""
    store, folder = ListedStore(tmp_path / "store"), tmp_path / "local"
    folder.mkdir()
    listed = []
    for text in ("one", "two", "three", "four", "four"):
        (folder / "weights").write_text(text)
        save_checkpoint(store, folder)
        listed.append(tuple(store.listed))
        store.listed.clear()
    level = ("children", "")
    assert listed == [*[(level,)] * 3, (level, ("list", "00000001/")), (level, ("list", "00000005/"))]
    assert complete_checkpoints(store) == ["00000004", "00000003", "00000002"]
    assert reject_checkpoint(store, "00000004") == "00000003"
    assert restore_checkpoint(store, tmp_path / "restored") == "00000003"
    assert {name for name, _ in store.listed} == {"children"}


def test_the_same_content_is_no_newer_checkpoint(store, save, tmp_path):
    """A program that saves what it has restored, and is killed, has not advanced: its restarts count."""
    assert [save(text) for text in ("one", "one", "two", "two")][1:] == [["00000001"], *[["00000002", "00000001"]] * 2]
    keys = ["00000001.json", "00000001/part/weights", "00000002.json", "00000002/part/weights"]
    assert [entry.key for entry in store.list()] == keys
    overwrite(store)
    save("two")
    assert restore(store, tmp_path) == ("00000002", {"part/weights": "two"}), "it is repaired"
    assert reject_checkpoint(store, "00000002") == "00000001"
    assert save("two")[0] == "00000003", "the rejected one is not restored any more"


def test_a_guess_that_the_program_commits_is_no_guess_any_more(store, save, tmp_path):
    save("one")
    for guessed in (True, False):
        save_checkpoint(store, tmp_path / "local", guessed=guessed)
        assert json.loads(store.read("00000001.json"))["guessed"] is False
    (tmp_path / "local" / "more").write_text("2")
    for guessed in (True, True, False):
        save_checkpoint(store, tmp_path / "local", guessed=guessed)
        assert complete_checkpoints(store) == ["00000002", "00000001"]
        assert json.loads(store.read("00000002.json"))["guessed"] is guessed


def test_an_incomplete_upload_is_ignored_and_deleted_by_the_next_one(store, save, tmp_path):
    save("one")
    store.write("00000002/part/weights", b"half")  # Killed before the manifest.
    store.write("00000002/other", b"half")
    assert restore(store, tmp_path) == ("00000001", {"part/weights": "one"})
    assert save("two") == ["00000002", "00000001"]
    assert save("three") == ["00000003", "00000002", "00000001"]
    assert save("four") == ["00000004", "00000003", "00000002"]
    assert save("five") == ["00000005", "00000004", "00000003"]
    assert {entry.key[:8] for entry in store.list()} == {"00000003", "00000004", "00000005"}


def test_a_sharded_checkpoint_that_is_being_stored_keeps_its_number_and_its_files(store, save, monkeypatch):
    begun = CheckpointNumbers()
    monkeypatch.setattr(stored_checkpoints, "checkpoint_numbers", begun)
    save("one")
    sharded = begun.begin_sharded(1)
    store.write(f"{sharded}/unique/rank-0", b"1")
    assert save("two") == ["00000003", "00000001"]
    later = begun.begin_sharded(1)
    assert later == "00000004"
    assert store.read(f"{sharded}/unique/rank-0") == b"1"
    begun.unfinished -= {sharded, later}
    assert save("three") == ["00000004", "00000003", "00000001"]
    assert not store.exists(f"{sharded}/unique/rank-0")


def test_a_folder_that_changes_during_the_upload_does_not_become_a_checkpoint(store, save, tmp_path):
    def check():
        raise OSError("local changed during the upload")

    save("one")
    with pytest.raises(OSError, match="changed during the upload"):
        save_checkpoint(store, tmp_path / "local", check)
    assert restore(store, tmp_path) == ("00000001", {"part/weights": "one"})


def test_a_broken_link_is_left_out(store, save, tmp_path, capsys):
    save("one")
    (tmp_path / "local" / "lost").symlink_to("pruned")
    (tmp_path / "local" / "newest").symlink_to("part")
    save_checkpoint(store, tmp_path / "local")
    assert restore(store, tmp_path) == ("00000002", {"part/weights": "one", "newest/weights": "one"})
    assert "lost is a link to pruned, which does not exist" in capsys.readouterr().out


def overwrite(store):
    store.write("00000002/part/weights", b"twx")


def remove(store):
    store.delete(["00000002/part/weights"])


@pytest.mark.parametrize("damage", [overwrite, remove])
def test_the_previous_checkpoint_replaces_a_damaged_one(store, save, tmp_path, capsys, damage):
    save("one")
    save("two")
    damage(store)
    assert restore(store, tmp_path) == ("00000001", {"part/weights": "one"})
    assert "cannot use checkpoint 00000002" in capsys.readouterr().out


def test_only_objects_of_checkpoints_count_and_are_deleted(store, save, tmp_path):
    foreign = ["foobarzz.json", "00000009.json.bak", "notes/00000009.json", "000000091.json"]
    for key in foreign:
        store.write(key, b"{}")
    for text in ("one", "two", "three", "four"):
        save(text)
    assert restore(store, tmp_path)[0] == "00000004"
    assert [entry.key for entry in store.list() if entry.key in foreign] == sorted(foreign)


def test_a_manifest_of_version_0_1_is_read(store, save, tmp_path):
    save("one")
    store.write("00000001.json", json.dumps(json.loads(store.read("00000001.json"))["files"]).encode())
    assert restore(store, tmp_path) == ("00000001", {"part/weights": "one"})


def test_damaged_checkpoints_are_named_and_the_training_does_not_start_over(store, save, tmp_path):
    save("one")
    save("two")
    store.delete(["00000001/part/weights"])
    store.write("00000002.json", b"half")
    with pytest.raises(NoUsableCheckpoint, match=r"00000002: .*; 00000001: "):
        restore(store, tmp_path)
    assert complete_checkpoints(store) == ["00000002", "00000001"]


def test_a_rejected_checkpoint_is_not_restored_again(store, save, tmp_path):
    save("one")
    assert reject_checkpoint(store, "00000001") == "", "there is no other one"
    save("two")
    save("three")
    assert reject_checkpoint(store, "00000003") == "00000002"
    assert restore(store, tmp_path) == ("00000002", {"part/weights": "two"})
    assert save("four")[0] == "00000004"
    assert reject_checkpoint(store, "00000002") == "", "a newer one was stored since"
    assert restore(store, tmp_path) == ("00000004", {"part/weights": "four"})
    names = ("00000004", "00000002", "00000001")
    assert [reject_checkpoint(store, name) for name in names] == ["00000002", "00000001", ""]


def test_a_rejected_checkpoint_does_not_take_the_place_of_one_that_can_be_loaded(store, save, tmp_path):
    for text in ("one", "two", "three"):
        save(text)
    assert [reject_checkpoint(store, name) for name in ("00000003", "00000002")] == ["00000002", "00000001"]
    assert save("four") == ["00000004", "00000003", "00000002", "00000001"]
    store.write("00000004/part/weights", b"damaged")
    assert restore(store, tmp_path) == ("00000001", {"part/weights": "one"})
    save("five")
    assert save("six") == ["00000006", "00000005", "00000004"]
    assert {entry.key[:8] for entry in store.list()} == {"00000006", "00000005", "00000004"}


def test_checkpoints_after_which_each_start_failed_are_good_again(store, save, tmp_path):
    for text in ("one", "two", "three"):
        save(text)
    assert [reject_checkpoint(store, name) for name in ("00000003", "00000002", "00000001")] == [
        "00000002",
        "00000001",
        "",
    ]
    assert restore(store, tmp_path) == ("00000003", {"part/weights": "three"})


def test_a_checkpoint_that_is_deleted_while_it_is_downloaded_is_replaced_by_a_newer_one(store, save, tmp_path):
    """The leader goes on while another replica starts."""
    save("one")
    download = store.download_folder

    def download_slowly(*arguments, **callbacks):
        store.download_folder = download
        for text in ("two", "three", "four"):
            save(text)
        return download(*arguments, **callbacks)

    store.download_folder = download_slowly
    assert restore(store, tmp_path) == ("00000004", {"part/weights": "four"})


@pytest.fixture
def observed(object_store, tmp_path):
    """A store of checkpoints behind a proxy that records the requests."""
    with faulty_proxy(object_store.endpoint) as proxy:
        host, secure = parse_endpoint(proxy.url)
        credentials = replace(object_store.credentials(), endpoint=host, secure=secure)
        yield open_store("s3://bucket/checkpoints", credentials), proxy


def test_only_the_changed_files_of_a_checkpoint_are_sent(observed, tmp_path, monkeypatch):
    store, proxy = observed
    monkeypatch.setattr(stored_checkpoints, "SERVER_COPY_BYTES", 1)
    folder, sent = tmp_path / "local", []
    folder.mkdir()
    for number in range(3):
        for name, text in (("frozen", "same"), ("moved" * (number + 1), "as it was"), ("trained", f"epoch{number}")):
            (folder / name).write_text(text)
        save_checkpoint(store, folder, on_bytes=sent.append)
        if number < 2:
            (folder / ("moved" * (number + 1))).unlink()
    assert sum(sent) == len("same" + "as it was" + "epoch0" + "epoch1" + "epoch2")
    assert restore(store, tmp_path) == ("00000003", {"frozen": "same", "moved" * 3: "as it was", "trained": "epoch2"})
    assert len([line for line in proxy.requests if line == "PUT /bucket/checkpoints/00000003/frozen"]) == 1, "the copy"


def test_a_file_that_was_replaced_in_the_store_is_sent_again(observed, tmp_path, monkeypatch):
    """Otherwise the damage would be copied to all three checkpoints."""
    store, _ = observed
    monkeypatch.setattr(stored_checkpoints, "SERVER_COPY_BYTES", 1)
    folder = tmp_path / "local"
    folder.mkdir()
    (folder / "frozen").write_text("same")
    (folder / "trained").write_text("1")
    save_checkpoint(store, folder)
    # The times of objects have a precision of one second.
    manifest = tmp_path / "objects" / "bucket" / "checkpoints" / "00000001.json"
    os.utime(manifest, (manifest.stat().st_mtime - 60,) * 2)
    store.write("00000001/frozen", b"sane")
    (folder / "trained").write_text("2")
    save_checkpoint(store, folder)
    assert restore(store, tmp_path) == ("00000002", {"frozen": "same", "trained": "2"})


@pytest.mark.parametrize(("text", "copied"), [("newer", "00000002"), ("same", "00000001")])
def test_a_file_that_the_server_does_not_copy_in_time_is_sent(object_store, tmp_path, monkeypatch, text, copied):
    """A server sends nothing while it copies. The same checkpoint is copied to the one that has it already."""
    monkeypatch.setattr(stored_checkpoints, "SERVER_COPY_BYTES", 1)
    folder = tmp_path / "local"
    folder.mkdir()
    with faulty_proxy(object_store.endpoint) as proxy:
        host, secure = parse_endpoint(proxy.url)
        credentials = replace(object_store.credentials(), endpoint=host, secure=secure)
        store = open_store(f"s3://bucket/{text}", credentials, retry_seconds=0)
        for trained in ("same", text):
            (folder / "frozen").write_text("frozen")
            (folder / "trained").write_text(trained)
            save_checkpoint(store, folder)
            proxy.faults = [Fault(f"PUT /bucket/{text}/{copied}/frozen", status=503)]
        assert proxy.faults[0].times == 1, "it was set after the second checkpoint"
        assert proxy.requests.count(f"PUT /bucket/{text}/{copied}/frozen") == 2 + (text == "same")
        assert restore(store, tmp_path) == (copied, {"frozen": "frozen", "trained": text})
