import pytest

from kfp_distributed.storage import open_store
from kfp_distributed.trainers.runtime.checkpoints import complete_checkpoints, restore_checkpoint, save_checkpoint


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


def test_the_latest_two_checkpoints_are_kept(store, save, tmp_path):
    assert [save(text) for text in ("one", "two", "three")] == [
        ["00000001"],
        ["00000002", "00000001"],
        ["00000003", "00000002"],
    ]
    assert [entry.key for entry in store.list()] == [
        "00000002.json",
        "00000002/part/weights",
        "00000003.json",
        "00000003/part/weights",
    ]
    assert restore(store, tmp_path) == ("00000003", {"part/weights": "three"})


def test_an_incomplete_upload_is_ignored_and_deleted_by_the_next_one(store, save, tmp_path):
    save("one")
    store.write("00000002/part/weights", b"half")  # Killed before the manifest.
    store.write("00000002/other", b"half")
    assert restore(store, tmp_path) == ("00000001", {"part/weights": "one"})
    assert save("two") == ["00000002", "00000001"]
    assert save("three") == ["00000003", "00000002"]
    assert save("four") == ["00000004", "00000003"]
    assert {entry.key[:8] for entry in store.list()} == {"00000003", "00000004"}


@pytest.mark.parametrize("at_rest", [False, True])
def test_a_folder_that_changes_during_the_upload_does_not_become_a_checkpoint(store, save, tmp_path, at_rest):
    def check():
        raise OSError("local changed during the upload")

    save("one")
    with pytest.raises(OSError, match="changed during the upload"):
        save_checkpoint(store, tmp_path / "local", check, at_rest)
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
    save_checkpoint(store, local, at_rest=True)
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
        save_checkpoint(store, tmp_path / "local", at_rest=True)
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
