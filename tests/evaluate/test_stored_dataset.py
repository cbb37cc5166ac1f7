"""Datasets whose shards are in an object store."""

from dataclasses import replace
from pathlib import Path

import pytest
from kfp import dsl

from kfp_distributed.components.evaluate.evaluation import run_evaluation
from kfp_distributed.storage import open_store
from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest
from kfp_distributed.storage.errors import ChecksumMismatch
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.shards import read_stored_batches

pytestmark = pytest.mark.takes(2)


@pytest.fixture
def stored(pictures, tmp_path, monkeypatch):
    """The dataset of the pictures as `prepare_data` leaves it in a pod: the folder has the manifest alone."""
    with embedded_object_store(tmp_path / "objects") as server:
        (tmp_path / "objects" / "pipelines").mkdir()
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        folder = tmp_path / "artifact"
        folder.mkdir()
        manifest = DatasetManifest.from_json((pictures[2] / DATASET_MANIFEST).read_text())
        store = open_store("s3://pipelines/shards")
        for shard in manifest.shards:
            store.upload(pictures[2] / shard.path, shard.path)
        manifest = replace(manifest, shards_uri="s3://pipelines/shards")
        (folder / DATASET_MANIFEST).write_text(manifest.to_json())
        yield folder


def scores(model: Path, dataset: Path, report: Path) -> dict:
    metrics = dsl.Metrics()
    run_evaluation(str(model), str(dataset), metrics, dsl.ClassificationMetrics(), str(report))
    return metrics.metadata


def test_scores_are_those_of_local_shards(pictures, linear, stored, tmp_path):
    local = scores(linear[0], pictures[2], tmp_path / "local.html")
    assert scores(linear[0], stored, tmp_path / "stored.html") == local
    assert [file.name for file in stored.iterdir()] == [DATASET_MANIFEST]


def test_one_shard_is_read_while_the_next_one_is_downloaded(pictures, stored, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    manifest, store = DatasetManifest.from_json((stored / DATASET_MANIFEST).read_text()), open_store("s3://pipelines")
    for number in range(6):
        store.upload(pictures[2] / "part-0.parquet", f"shards/copy-{number}")
    shards = tuple(replace(manifest.shards[0], path=f"copy-{number}") for number in range(6))
    label = replace(manifest.label, classes=(), task="regression")
    manifest = replace(manifest, shards=shards, label=label, class_counts=())
    rows = on_disk = 0
    for _, labels in read_stored_batches(stored, manifest):
        rows += len(labels)
        on_disk = max(on_disk, len([*(tmp_path / "scratch").rglob("copy-*")]))
    assert rows == manifest.rows == 180
    assert on_disk <= 2
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_damaged_shard_is_named(linear, stored, tmp_path):
    store = open_store("s3://pipelines/shards")
    data = bytearray(store.read("part-1.parquet"))
    data[10] ^= 1
    store.write("part-1.parquet", bytes(data))
    with pytest.raises(ChecksumMismatch, match=r"part-1\.parquet': the object is damaged"):
        scores(linear[0], stored, tmp_path / "report.html")
