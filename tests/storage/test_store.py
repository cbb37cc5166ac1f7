"""Both kinds of store against what every store must do, and what is special to each."""

import resource
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from store_contract import StoreContract, content, entry, fill

from kfp_distributed.storage import Credentials, Entry, KeyNotFound, StorageError, open_store
from kfp_distributed.storage.files import unfinished_file

_KEYS = (
    "the server refuses the account, check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or their Secret, "
    "and what it may do"
)


@contextmanager
def largest_file(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def bucket(server):
    uri = f"s3://test-{uuid.uuid4().hex[:12]}"
    open_store(uri, server.credentials()).make_bucket()
    return uri


class TestFolder(StoreContract):
    @pytest.fixture
    def store(self, tmp_path_factory):
        return open_store(str(tmp_path_factory.mktemp("store") / "not made yet"))

    def test_objects_are_the_files(self, store):
        store.write("a/b", b"1")
        store.write("a/c", b"2")
        assert content(store.root) == {"a/b": b"1", "a/c": b"2"}
        store.delete(["a/b"])
        assert [path.name for path in store.root.rglob("*")] == ["a", "c"]
        store.delete(["a/c"])
        assert list(store.root.iterdir()) == []

    def test_a_file_url_and_a_single_file(self, tmp_path):
        fill(tmp_path, {"a b/c": b"1"})
        assert open_store(f"file://{tmp_path}/a%20b").read("c") == b"1"
        assert open_store(f"{tmp_path}/a b/c").read("") == b"1"

    def test_what_is_half_written_is_not_listed(self, store):
        store.write("other", b"1")

        def write_half():
            with unfinished_file(store.root / "x") as stream:
                stream.write(b"half")
                assert store.list() == [Entry("other", 1)]
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write_half()
        assert content(store.root) == {"other": b"1"}

    def test_a_file_in_the_place_of_a_folder(self, store):
        store.write("a", b"1")
        with pytest.raises(StorageError, match=r"a/b: .*File exists"):
            store.write("a/b", b"2")

    def test_an_object_is_written_while_others_of_its_folder_are_deleted(self, store):
        def write_and_delete(index):
            for _ in range(500):
                store.write(f"a/b/{index}/object", b"1")
                store.delete([f"a/b/{index}/object"])

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(write_and_delete, range(8)))
        assert list(store.root.iterdir()) == []

    def test_a_target_that_cannot_be_written_is_not_taken_for_a_missing_object(self, store, tmp_path):
        store.write("a", b"1")
        with pytest.raises(StorageError, match=f"Is a directory: .*{tmp_path}") as caught:
            store.download("a", tmp_path)
        assert not isinstance(caught.value, KeyNotFound)


class TestS3(StoreContract):
    @pytest.fixture
    def store(self, bucket, server):
        return open_store(f"{bucket}/the root/ä+#", server.credentials())

    def test_the_root_is_a_prefix_of_the_bucket(self, store, server, bucket):
        store.write("a/b", b"1")
        whole = open_store(bucket, server.credentials())
        whole.write("the root/ä+#2", b"beside")
        assert whole.list() == [Entry("the root/ä+#/a/b", 1), Entry("the root/ä+#2", 6)]
        assert store.list() == [Entry("a/b", 1)]
        assert open_store(f"{bucket}/the root/ä+#2", server.credentials()).read("") == b"beside"

    def test_an_error_names_everything_but_the_secret(self, server, bucket):
        open_store(bucket, server.credentials()).write("k", b"1")
        bucket = bucket.removeprefix("s3://")
        wrong = Credentials(server.credentials().endpoint, server.access_key, "not-the-secret", secure=False)
        unknown = replace(wrong, access_key="nobody")
        cases = {
            server.credentials(): "there is no such bucket, create it or correct its name (NoSuchBucket)",
            wrong: f"{_KEYS} (SignatureDoesNotMatch)",
            unknown: f"{_KEYS} (InvalidAccessKeyId)",
        }
        for credentials, cause in cases.items():
            store = open_store("s3://no-such-bucket/x", credentials)
            for key, action in {
                "x/k": lambda: store.read("k"),  # noqa: B023
                "x/l": lambda: store.write("l", bytes(9 << 20)),  # noqa: B023
                "x/m": lambda: store.copy(open_store("s3://" + bucket, credentials), "k", "m"),  # noqa: B023
                "x": store.list,
            }.items():
                with pytest.raises(StorageError) as caught:
                    action()
                error = caught.value
                assert not isinstance(error, KeyNotFound)
                assert (error.endpoint, error.bucket, error.key) == (server.endpoint, "no-such-bucket", key)
                # What HEAD is asked has no body to say more.
                if not ("x/m" in key and "refuses" in cause):
                    assert str(error) == f"{server.endpoint}, bucket 'no-such-bucket', key '{key}': {cause}"
                text = f"{error!r} {error} {error.__cause__} {store.credentials!r}"
                assert server.secret_key not in text
                assert "not-the-secret" not in text

    def test_an_impossible_bucket_is_named(self, server):
        with pytest.raises(StorageError, match=r"bucket 'A_B', key '': .*invalid"):
            open_store("s3://A_B", server.credentials()).make_bucket()

    def test_a_full_disk_is_named_and_leaves_nothing(self, store, tmp_path):
        data = b"x" * 3_000_000
        store.write("big", data)
        (tmp_path / "file").write_bytes(b"older")
        with (
            largest_file(1_000_000),
            pytest.raises(StorageError, match=r"key 'the root/ä\+#/big': OSError: .*File too large"),
        ):
            store.download("big", tmp_path / "file")
        assert content(tmp_path) == {"file": b"older"}
        assert store.download("big", tmp_path / "file") == entry("big", data)

    def test_memory_does_not_grow_with_the_file(self, server, bucket, tmp_path):
        with (tmp_path / "big").open("wb") as stream:
            stream.truncate(100 << 20)
        script = (
            "import resource, sys; from kfp_distributed.storage import open_store\n"
            "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "store = open_store(sys.argv[1]); store.write('small', b''); before = peak()\n"
            "store.upload('big', 'big'); store.download('big', 'again'); print(peak() - before)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, bucket],
            cwd=tmp_path,
            env=server.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert (tmp_path / "again").stat().st_size == 100 << 20
        # Two parts of 8 MiB, the chunks, and what TLS-less HTTP copies of them; in kB.
        assert int(done.stdout) < 60_000

    def test_one_store_serves_many_threads(self, store):
        errors = []

        def work(index):
            try:
                store.write(str(index), b"x" * index)
                assert store.read(str(index)) == b"x" * index
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(store.list()) == 30
