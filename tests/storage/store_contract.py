"""Tests for every kind of store. Subclasses provide the fixture `store`, which is empty."""

import hashlib
import os
import re
import stat
from dataclasses import replace

import pytest

from kfp_distributed.storage import ChecksumMismatch, Entry, FileEntry, KeyNotFound, StorageError
from kfp_distributed.storage.files import UnsupportedFileError

KEYS = [
    "plain",
    "a b",
    "plus+and&",
    "hash#quest?ion",
    "per%20cent",
    "ünï/cødé/日本",
    "deep/er/and/deeper",
    "q'uo\"te<x>",
]


def entry(path: str, data: bytes) -> FileEntry:
    return FileEntry(path, len(data), hashlib.sha256(data).hexdigest())


def fill(folder, files):
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class StoreContract:
    @pytest.mark.parametrize("key", KEYS)
    def test_write_read_list_and_delete(self, store, key):
        assert not store.exists(key)
        store.write(key, b"one")
        store.write(key, b"other")
        assert store.exists(key)
        assert store.read(key) == b"other"
        assert store.list() == [Entry(key, 5)]
        store.delete([key, "missing"])
        assert (store.exists(key), store.list()) == (False, [])

    def test_empty_object(self, store, tmp_path):
        store.write("empty", b"")
        assert store.download("empty", tmp_path / "empty") == entry("empty", b"")
        assert (tmp_path / "empty").read_bytes() == store.read("empty") == b""

    def test_list_is_sorted_and_accepts_any_prefix(self, store):
        for key in ("b/2", "b/10", "a", "bc"):
            store.write(key, key.encode())
        assert store.list() == [Entry("a", 1), Entry("b/10", 4), Entry("b/2", 3), Entry("bc", 2)]
        assert store.list("b") == [Entry("b/10", 4), Entry("b/2", 3), Entry("bc", 2)]
        assert store.list("b/1") == [Entry("b/10", 4)]
        assert store.list("none") == []

    def test_children_are_the_objects_and_folders_of_one_level(self, store):
        for key in (*KEYS, "deep/er/other", "deep/2", "deeper"):
            store.write(key, b"x")
        root = sorted({key.partition("/")[0] + "/" * ("/" in key) for key in KEYS} | {"deeper"})
        assert store.children() == root
        assert store.children("deep") == ["2", "er/"]
        assert store.children("deep/er") == ["and/", "other"]
        assert store.children("ünï/cødé") == ["日本"]
        assert [store.children(folder) for folder in ("none", "plain", "dee")] == [[], [], []]
        store.delete(["deep/er/and/deeper", "deep/er/other"])
        # SeaweedFS lists the folders of deleted objects for minutes.
        assert [name for name in store.children("deep") if store.has_objects(f"deep/{name}")] == ["2"]

    def test_whether_a_prefix_has_objects(self, store):
        store.write("a b/ü/c", b"1")
        prefixes = ("", "a b/", "a b/ü", "a b/ü/c", "a b/ü/c/", "a b/ü/cd", "none/")
        assert [store.has_objects(prefix) for prefix in prefixes] == [True] * 4 + [False] * 3
        store.delete(["a b/ü/c"])
        assert not any(store.has_objects(prefix) for prefix in prefixes)

    def test_range_of_an_object(self, store):
        data = bytes(range(256)) * 10_000
        store.write("a b/ü", data)
        counts = []
        for offset, length in ((0, 1), (0, len(data)), (1_500_000, 1_060_000), (len(data) - 7, 7)):
            counts.clear()
            part = store.read_range("a b/ü", offset, length, on_bytes=counts.append)
            assert (bytes(part.data), part.size, sum(counts)) == (data[offset : offset + length], len(data), length)
        assert store.read_range("a b/ü", 5, 2, part.etag).etag == part.etag != ""

    def test_range_after_the_end_is_an_error(self, store):
        store.write("short", b"abcd")
        for offset, length in ((2, 3), (4, 1), (0, 5)):
            with pytest.raises(StorageError, match="short"):
                store.read_range("short", offset, length)

    def test_range_of_a_replaced_object_is_an_error(self, store):
        store.write("shard", b"abcd")
        first = store.read_range("shard", 0, 2)
        store.write("shard", b"efgh")
        with pytest.raises(ChecksumMismatch, match=r"shard.* was replaced while it was read"):
            store.read_range("shard", 2, 2, first.etag)

    def test_missing_object_error_has_the_key(self, store, tmp_path):
        for read in (
            store.read,
            lambda key: store.read_range(key, 0, 1),
            lambda key: store.download(key, tmp_path / "file"),
        ):
            with pytest.raises(KeyNotFound, match="no/such thing"):
                read("no/such thing")
        with pytest.raises(KeyNotFound, match="no/such thing"):
            store.copy(store, "no/such thing", "here")
        assert content(tmp_path) == {}
        assert store.list() == []

    @pytest.mark.parametrize("key", ["../outside", "a/../../outside", "./a"])
    def test_key_outside_the_root_is_rejected(self, store, key):
        for access in (store.read, lambda key: store.write(key, b"x")):
            with pytest.raises(StorageError):
                access(key)
        assert store.list() == []

    def test_upload_and_download_of_a_file_return_its_checksum(self, store, tmp_path):
        data = bytes(range(256)) * 100_000  # 25.6 MB: several parts
        (tmp_path / "up").write_bytes(data)
        assert store.upload(tmp_path / "up", "x/y") == entry("x/y", data)
        assert store.download("x/y", tmp_path / "deep" / "down", entry("x/y", data)) == entry("x/y", data)
        assert (tmp_path / "deep" / "down").read_bytes() == data

    def test_download_with_wrong_checksum_writes_no_file(self, store, tmp_path):
        store.write("shard", b"right")
        for wrong in (entry("shard", b"wrong"), replace(entry("shard", b"right"), size=4)):
            with pytest.raises(ChecksumMismatch, match=r"shard.* 5 bytes and SHA-256 "):
                store.download("shard", tmp_path / "file", wrong)
        assert content(tmp_path) == {}

    def test_upload_and_download_of_a_folder(self, store, tmp_path):
        files = {path: path.encode() * 1000 for path in KEYS} | {"sub/empty": b""}
        entries = tuple(sorted(entry(path, data) for path, data in files.items()))
        folder = fill(tmp_path / "up", files)
        (folder / "no files").mkdir()
        store.write("model2/other", b"not in model/")
        assert store.upload_folder(folder, "model") == entries
        assert store.list("model/") == [Entry(f"model/{item.path}", item.size) for item in entries]
        assert store.download_folder(tmp_path / "down", "model") == entries
        assert store.download_folder(tmp_path / "checked", "model", entries) == entries
        assert content(tmp_path / "down") == content(tmp_path / "checked") == files
        assert store.download_folder(tmp_path / "part", "model", entries[:2]) == entries[:2]

    def test_links_inside_the_folder_are_followed(self, store, tmp_path):
        folder = fill(tmp_path / "up", {"blobs/a": b"1", "blobs/sub/b": b"22"})
        (folder / "weights").symlink_to("blobs/a")
        (folder / "again").symlink_to("weights")
        (folder / "absolute").symlink_to(folder / "blobs" / "a")
        (folder / "newest").symlink_to("blobs")
        files = {"blobs/a": b"1", "blobs/sub/b": b"22", "weights": b"1", "again": b"1", "absolute": b"1"}
        files |= {"newest/a": b"1", "newest/sub/b": b"22"}
        assert store.upload_folder(folder) == tuple(sorted(entry(path, data) for path, data in files.items()))
        store.download_folder(tmp_path / "down")
        assert content(tmp_path / "down") == files

    @pytest.mark.parametrize(
        ("create", "reason"),
        [
            (lambda path: path.symlink_to("/etc/hostname"), r"odd is a link to /etc/hostname, which is not inside"),
            (lambda path: path.symlink_to("../../beside"), r"odd is a link to ../../beside, which is not inside"),
            (lambda path: path.symlink_to(".."), r"odd is a link to .., a folder that contains the link"),
            (lambda path: path.symlink_to("nowhere"), r"odd is a link to nowhere, which does not exist"),
            (lambda path: path.symlink_to("odd"), r"odd is a link to odd, which does not exist"),
            (lambda path: path.symlink_to("."), r"odd is a link to ., a folder that contains the link"),
            (os.mkfifo, r"odd is a FIFO, which cannot be stored"),
            (lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), r"odd is a socket"),
        ],
        ids=["outside", "sibling", "parent", "broken", "itself", "cycle", "FIFO", "socket"],
    )
    def test_unsupported_entry_is_named_and_nothing_is_stored(self, store, create, reason, tmp_path):
        (tmp_path / "beside").touch()
        folder = fill(tmp_path / "up", {"a": b"1", "sub/b": b"2"})
        create(folder / "sub" / "odd")
        with pytest.raises(UnsupportedFileError, match=re.escape(str(folder)) + "/sub/" + reason):
            store.upload_folder(folder)
        assert store.list() == []

    def test_empty_folder(self, store, tmp_path):
        (tmp_path / "empty").mkdir()
        assert store.upload_folder(tmp_path / "empty") == ()
        assert store.download_folder(tmp_path / "down", "nothing/here") == ()
        assert (tmp_path / "down").is_dir()

    def test_upload_of_a_missing_file_or_folder(self, store, tmp_path):
        with pytest.raises(NotADirectoryError, match="nowhere"):
            store.upload_folder(tmp_path / "nowhere")
        with pytest.raises(FileNotFoundError):
            store.upload(tmp_path / "nowhere", "key")
        assert store.list() == []

    def test_download_of_a_folder_with_damaged_and_missing_objects(self, store, tmp_path):
        store.write("model/a", b"1")
        with pytest.raises(ChecksumMismatch, match="model/a"):
            store.download_folder(tmp_path / "1", "model", [entry("a", b"2")])
        with pytest.raises(KeyNotFound, match="model/b"):
            store.download_folder(tmp_path / "2", "model", [entry("a", b"1"), entry("b", b"1")])
        with pytest.raises(StorageError, match=r"\.\./x"):
            store.download_folder(tmp_path / "3", "model", [entry("../x", b"1")])
        assert content(tmp_path) in ({}, {"2/a": b"1"})

    def test_copy_within_a_store_and_between_stores(self, store, tmp_path):
        from kfp_distributed.storage import open_store

        other_store = open_store(str(tmp_path / "store"))
        store.write("ä +#/x", b"data")
        store.copy(store, "ä +#/x", "copies/ä +#")
        other_store.copy(store, "copies/ä +#", "out")
        store.copy(other_store, "out", "back")
        assert (store.read("copies/ä +#"), other_store.read("out"), store.read("back")) == (b"data",) * 3
        store.write("back", b"old")
        store.copy(store, "ä +#/x", "back")
        store.write("ä +#/x", b"new")
        assert (store.read("back"), store.read("copies/ä +#")) == (b"data",) * 2

    def test_make_bucket_keeps_an_existing_bucket(self, store):
        store.write("kept", b"1")
        store.make_bucket()
        assert store.list() == [Entry("kept", 1)]
