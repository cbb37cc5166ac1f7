"""Fixtures of the tests of `train`."""

import signal
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.files import sha256_of

ROWS = 5


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Folder of a small dataset."""
    folder = tmp_path_factory.mktemp("data")
    file = folder / "shard.parquet"
    pq.write_table(
        pa.table({"x": pa.array(range(ROWS), pa.float32()), "y": pa.array([0, 1, 0, 1, 0], pa.int32())}), file
    )
    shard = Shard(file.name, ROWS, file.stat().st_size, sha256_of(file))
    manifest = DatasetManifest(
        "train", (Column("x", "number", "float32"),), Label("y", ("a", "b")), (shard,), (3, 2), 0, "test", shuffled=True
    )
    (folder / DATASET_MANIFEST).write_text(manifest.to_json())
    return str(folder)


@pytest.fixture
def cancel():
    """A function that sends SIGTERM to the main thread. A signal that the step does not handle fails the test."""

    def fail(number, frame):
        raise AssertionError("SIGTERM was not handled")

    before = signal.signal(signal.SIGTERM, fail)
    yield lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)
