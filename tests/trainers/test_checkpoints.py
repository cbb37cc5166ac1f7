import json

import pytest

from kfp_distributed.storage import open_store
from kfp_distributed.storage.folder import FolderStore
from kfp_distributed.trainers.runtime.checkpoints import (
    NoUsableCheckpoint,
    complete_checkpoints,
    reject_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)


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


@pytest.mark.parametrize("in_use", [False, True])
def test_a_folder_that_changes_during_the_upload_does_not_become_a_checkpoint(store, save, tmp_path, in_use):
    def check():
        raise OSError("local changed during the upload")

    save("one")
    with pytest.raises(OSError, match="changed during the upload"):
        save_checkpoint(store, tmp_path / "local", check, in_use)
    assert restore(store, tmp_path) == ("00000001", {"part/weights": "one"})
    assert not (tmp_path / "local-copy").exists()


@pytest.fixture
def slow_upload(store, save, tmp_path, monkeypatch):
    """Let the program write to the folder "local" during the upload."""
    save("one")
    upload = store.upload_folder

    def upload_slowly(folder, *arguments, **options):
        (tmp_path / "local" / "part" / "weights").write_text("half of three")
        return upload(folder, *arguments, **options)

    monkeypatch.setattr(store, "upload_folder", upload_slowly)


def test_a_folder_at_rest_is_stored_as_it_was_when_the_upload_began(store, slow_upload, tmp_path, capsys):
    """The program may write the next checkpoint during the upload."""
    local, left_over = tmp_path / "local", tmp_path / "local-copy"
    (local / "part" / "weights").write_text("two")
    (local / "lost").symlink_to("pruned")
    (local / "newest").symlink_to("part")
    left_over.mkdir()
    (left_over / "of a process that was killed").touch()
    save_checkpoint(store, local, in_use=True)
    assert restore(store, tmp_path) == ("00000002", {"part/weights": "two", "newest/weights": "two"})
    assert "lost is a link to pruned, which does not exist" in capsys.readouterr().out
    assert not left_over.exists()


def test_flush_does_not_copy_the_folder(store, slow_upload, tmp_path):
    save_checkpoint(store, tmp_path / "local")
    assert restore(store, tmp_path) == ("00000002", {"part/weights": "half of three"})


def test_the_copy_is_deleted_if_the_store_is_away(store, save, tmp_path, monkeypatch):
    def upload_folder(*arguments, **options):
        raise ConnectionError("nobody answers")

    save("one")
    monkeypatch.setattr(store, "upload_folder", upload_folder)
    with pytest.raises(ConnectionError):
        save_checkpoint(store, tmp_path / "local", in_use=True)
    assert {path.name for path in tmp_path.iterdir()} == {"local", "store"}


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
