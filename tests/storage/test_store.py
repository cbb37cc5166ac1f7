"""Both kinds of store: the common contract, and tests for each kind."""

import resource
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from seaweedfs import on_each_store
from store_contract import StoreContract, content, entry, fill

from kfp_distributed.storage import Credentials, Entry, KeyNotFound, StorageError, open_store
from kfp_distributed.storage.files import unfinished_file

pytestmark = pytest.mark.takes(9)


@contextmanager
def file_size_limit(size):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def bucket(server):
    uri = f"s3://test-{uuid.uuid4().hex[:12]}"
    open_store(uri, server.credentials()).make_bucket()
    return uri


class TestFolder(StoreContract):
    @pytest.fixture
    def store(self, tmp_path_factory):
        return open_store(str(tmp_path_factory.mktemp("store") / "not created yet"))

    def test_objects_are_files_and_empty_folders_are_deleted(self, store):
        store.write("a/b", b"1")
        store.write("a/c", b"2")
        assert content(store.root) == {"a/b": b"1", "a/c": b"2"}
        store.delete(["a/b"])
        assert [path.name for path in store.root.rglob("*")] == ["a", "c"]
        store.delete(["a/c"])
        assert list(store.root.iterdir()) == []

    def test_file_url_and_single_file(self, tmp_path):
        fill(tmp_path, {"a b/c": b"1"})
        assert open_store(f"file://{tmp_path}/a%20b").read("c") == b"1"
        assert open_store(f"{tmp_path}/a b/c").read("") == b"1"

    def test_unfinished_file_is_not_listed(self, store):
        store.write("other", b"1")

        def fail_during_write():
            with unfinished_file(store.root / "x") as stream:
                stream.write(b"half")
                assert store.list() == [Entry("other", 1)]
                assert store.children() == ["other"]
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_during_write()
        assert content(store.root) == {"other": b"1"}

    def test_file_where_a_folder_is_needed(self, store):
        store.write("a", b"1")
        with pytest.raises(StorageError, match=r"a/b: .*File exists"):
            store.write("a/b", b"2")

    def test_write_while_other_objects_of_the_folder_are_deleted(self, store):
        def write_and_delete(index):
            for _ in range(500):
                store.write(f"a/b/{index}/object", b"1")
                store.delete([f"a/b/{index}/object"])

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(write_and_delete, range(8)))
        assert list(store.root.iterdir()) == []

    def test_unwritable_target_is_not_a_missing_object(self, store, tmp_path):
        store.write("a", b"1")
        with pytest.raises(StorageError, match=f"Is a directory: .*{tmp_path}") as error:
            store.download("a", tmp_path)
        assert not isinstance(error.value, KeyNotFound)


@on_each_store
class TestS3(StoreContract):
    @pytest.fixture
    def store(self, bucket, server):
        return open_store(f"{bucket}/the root/ä+#", server.credentials())

    def test_root_is_a_prefix_of_the_bucket(self, store, server, bucket):
        store.write("a/b", b"1")
        bucket_store = open_store(bucket, server.credentials())
        bucket_store.write("the root/ä+#2", b"beside")
        assert bucket_store.list() == [Entry("the root/ä+#/a/b", 1), Entry("the root/ä+#2", 6)]
        assert store.list() == [Entry("a/b", 1)]
        assert open_store(f"{bucket}/the root/ä+#2", server.credentials()).read("") == b"beside"

    def test_error_has_address_and_cause_and_no_secret(self, server, bucket):
        open_store(bucket, server.credentials()).write("k", b"1")
        bucket = bucket.removeprefix("s3://")
        wrong = Credentials(server.credentials().endpoint, server.access_key, "not-the-secret", secure=False)
        unknown = replace(wrong, access_key="nobody")
        cases = {
            server.credentials(): ("there is no such bucket, ", "(NoSuchBucket)"),
            wrong: ("access denied, check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ", "(SignatureDoesNotMatch)"),
            unknown: ("access denied, check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ", "(InvalidAccessKeyId)"),
        }
        for credentials, (cause, code) in cases.items():
            store = open_store("s3://no-such-bucket/x", credentials, retry_seconds=1)
            for key, action in {
                "x/k": lambda: store.read("k"),  # noqa: B023
                "x/l": lambda: store.write("l", bytes(9 << 20)),  # noqa: B023
                "x/m": lambda: store.copy(open_store("s3://" + bucket, credentials), "k", "m"),  # noqa: B023
                "x": store.list,
            }.items():
                with pytest.raises(StorageError) as raised:
                    action()
                error = raised.value
                assert not isinstance(error, KeyNotFound)
                assert (error.endpoint, error.bucket, error.key) == (server.endpoint, "no-such-bucket", key)
                # The response to a HEAD request has no body, and so no code. SeaweedFS answers a copy to a
                # missing bucket with the status 500.
                if not ("x/m" in key and ("denied" in cause or "500" in str(error))):
                    assert str(error).startswith(f"{server.endpoint}, bucket 'no-such-bucket', key '{key}': {cause}")
                    assert str(error).endswith(code)
                text = f"{error!r} {error} {error.__cause__} {store.credentials!r}"
                assert server.secret_key not in text
                assert "not-the-secret" not in text

    def test_invalid_bucket_name(self, server):
        with pytest.raises(StorageError, match=r"bucket 'A_B', key '': .*invalid"):
            open_store("s3://A_B", server.credentials()).make_bucket()

    def test_full_disk_leaves_no_file(self, store, tmp_path):
        data = b"x" * 3_000_000
        store.write("big", data)
        (tmp_path / "file").write_bytes(b"old")
        with (
            file_size_limit(1_000_000),
            pytest.raises(StorageError, match=r"key 'the root/ä\+#/big': .*disk is full.*File too large"),
        ):
            store.download("big", tmp_path / "file")
        assert content(tmp_path) == {"file": b"old"}
        assert store.download("big", tmp_path / "file") == entry("big", data)

    def test_memory_does_not_grow_with_the_file_size(self, server, bucket, tmp_path):
        with (tmp_path / "big").open("wb") as stream:
            stream.truncate(100 << 20)
        script = (
            "import resource, sys; from kfp_distributed.storage import open_store\n"
            "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "store = open_store(sys.argv[1]); store.write('small', b''); before = peak()\n"
            "store.upload('big', 'big'); store.download('big', 'again'); print(peak() - before)"
        )
        process = subprocess.run(
            [sys.executable, "-c", script, bucket],
            cwd=tmp_path,
            env=server.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert (tmp_path / "again").stat().st_size == 100 << 20
        # In kB: two parts of 8 MiB, the blocks, and the copies in the HTTP client.
        assert int(process.stdout) < 60_000

    def test_threads_share_a_store(self, store):
        errors = []

        def write_and_read(index):
            try:
                store.write(str(index), b"x" * index)
                assert store.read(str(index)) == b"x" * index
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=write_and_read, args=(index,)) for index in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(store.list()) == 30
