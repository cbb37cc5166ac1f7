"""Progress lines of a download from the S3 server."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from kfp_distributed.storage import open_store
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import restore_checkpoint, save_checkpoint
from kfp_distributed.trainers.runtime.monitoring import downloads
from kfp_distributed.trainers.runtime.monitoring.sampling import current_usage

pytestmark = pytest.mark.takes(2)

MIB = 1 << 20


@pytest.fixture
def bucket(object_store, monkeypatch):
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    return "s3://bucket"


@pytest.fixture
def counted():
    """Return a function that returns the bytes that were counted since the start of the test."""
    before = current_usage().transferred
    return lambda: current_usage().transferred - before


def checkpoint(bucket, folder):
    """Store a checkpoint of three files with 7 MiB in total."""
    folder.mkdir()
    for size in (1, 2, 4):
        (folder / str(size)).write_bytes(bytes(size * MIB))
    store = open_store(bucket)
    save_checkpoint(store, folder)
    return store


def test_a_small_and_fast_download_is_counted_and_prints_nothing(bucket, counted, tmp_path, capfd):
    store = checkpoint(bucket, tmp_path / "local")
    assert counted() == 7 * MIB
    restore_checkpoint(store, tmp_path / "restored")
    assert counted() == 14 * MIB
    assert capfd.readouterr().out == ""


def test_a_large_download_prints_its_size_at_once_and_its_duration(bucket, counted, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(downloads, "LARGE_MIB", 7)
    restore_checkpoint(checkpoint(bucket, tmp_path / "local"), tmp_path / "restored")
    first, last = capfd.readouterr().out.splitlines()
    assert first == "downloading checkpoint 00000001: 7.0 MiB in 3 files"
    assert re.fullmatch(r"downloaded checkpoint 00000001: 7\.0 MiB in 3 files, \d s", last)


def test_a_slow_download_prints_how_much_has_arrived(bucket, counted, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(downloads, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(downloads, "INTERVAL_SECONDS", 0.0)
    restore_checkpoint(checkpoint(bucket, tmp_path / "local"), tmp_path / "restored")
    *lines, last = capfd.readouterr().out.splitlines()
    assert lines == [f"downloading checkpoint 00000001: {done}.0 MiB of 7.0 MiB in 3 files" for done in range(1, 8)]
    assert last.startswith("downloaded checkpoint 00000001: 7.0 MiB in 3 files, ")


def save_zeros(train_dir, validation_dir, model_dir):
    from pathlib import Path

    Path(model_dir, "weights").write_bytes(bytes(3 << 20))


def test_a_replica_counts_the_bytes_of_its_data_and_its_model(bucket, make_replicas, write_dataset, tmp_path):
    size = Column("size", "number", "float32", mean=0.0, std=1.0)
    # Random numbers, which Parquet does not compress.
    values = np.random.default_rng(0).random(500_000, np.float32)
    for split in ("train", "validation"):
        write_dataset(tmp_path / split, [size], [pa.array(values)], np.zeros(len(values), int), ["a"], [len(values)])
        open_store(f"{bucket}/{split}").upload_folder(tmp_path / split)
    shards = sum(
        file.stat().st_size
        for split in ("train", "validation")
        for file in (tmp_path / split).iterdir()
        if file.name != DATASET_MANIFEST
    )
    program = """
from kfp_distributed.trainers.runtime.monitoring import downloads, sampling
from kfp_distributed.trainers.runtime import entry
from kfp_distributed.trainers.runtime.lifecycle import ending
import atexit
downloads.LARGE_MIB = 1
atexit.register(lambda: print("transferred", sampling.current_usage().transferred, flush=True))
ending.run_to_end(entry.main)
"""
    replicas = make_replicas(
        train_specification(save_zeros), {}, {"worker": 1}, SimpleNamespace(folder=tmp_path), root=bucket
    )
    replicas.job = replace(replicas.job, train_uri=f"{bucket}/train", validation_uri=f"{bucket}/validation")
    replicas.arguments = ("-c", program)
    replicas.start_all()
    assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    lines = replicas.text("worker-0").splitlines()
    assert [line.rpartition(":")[0] for line in lines if "load" in line] == [
        "downloading training data",
        "downloaded training data",
        "downloading validation data",
        "downloaded validation data",
    ]
    assert lines[-1] == f"transferred {shards + (3 << 20)}"
