"""Shards of artifacts in an object store, which Kubeflow Pipelines must not download into each step."""

from pathlib import Path

import numpy as np
import pytest

from kfp_distributed.components.prepare_data.writing.stored_shards import shards_uri
from kfp_distributed.storage import open_store
from kfp_distributed.storage.dataset import DatasetManifest, read_batches
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.shards import fetch_manifest, fetch_shards

pytestmark = pytest.mark.takes(4)

SPLITS = ("train", "validation", "test")
ROOT = "minio://pipelines/v2/artifacts/digits/0b0e/prepare-data/5f1c"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An S3 server whose keys are in the environment, and its bucket `pipelines`."""
    with embedded_object_store(tmp_path / "objects") as server:
        (tmp_path / "objects" / "pipelines").mkdir()
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield open_store("s3://pipelines")


def uris(root: str = ROOT) -> dict[str, str]:
    return {split: f"{root}/{split}_dataset" for split in SPLITS}


@pytest.mark.parametrize(
    ("artifact", "shards"),
    [
        (f"{ROOT}/train_dataset", f"{ROOT}/shards/train_dataset"),
        ("s3://bucket/run/test_dataset?region=here", "s3://bucket/run/shards/test_dataset?region=here"),
        ("gs://bucket/run/train_dataset", ""),
        ("/runs/task/train_dataset", ""),
    ],
)
def test_address_of_the_shards(artifact, shards):
    assert shards_uri(artifact) == shards


def test_an_artifact_in_a_store_has_the_manifest_alone(run, store, tmp_path):
    local = run("digits", "local")
    manifests = run("digits", "stored", uris_of_datasets=uris())
    for split in SPLITS:
        artifact = tmp_path / "stored" / split
        assert [file.name for file in artifact.iterdir()] == ["dataset.json"]
        # KFP's launcher stores the artifact.
        store.upload_folder(artifact, f"{ROOT.partition('//pipelines/')[2]}/{split}_dataset")
        manifest = fetch_manifest(f"{ROOT}/{split}_dataset")
        assert manifest == manifests[split]
        assert manifest.shards_uri == f"{ROOT}/shards/{split}_dataset"
        assert manifest.shards == local[split].shards
        fetched = fetch_shards(f"{ROOT}/{split}_dataset", tmp_path / "fetched" / split)
        assert fetched == local[split], "which is the manifest of a folder with the shards"
        for one, other in zip(
            read_batches(tmp_path / "fetched" / split, fetched),
            read_batches(tmp_path / "local" / split, local[split]),
            strict=True,
        ):
            np.testing.assert_array_equal(one[0], other[0])


def test_no_listing_of_an_artifact_finds_shards(run, store):
    """KFP 2.17 downloads every object whose key begins with that of the artifact, with or without a "/" after it."""
    run("digits", "stored", uris_of_datasets=uris())
    keys = [entry.key for entry in store.list()]
    assert len(keys) == 10
    for uri in uris().values():
        prefix = uri.partition("//pipelines/")[2]
        assert not [key for key in keys if key.startswith(prefix)]


def test_a_second_attempt_replaces_the_shards_of_the_first(run, store):
    run("digits", "first", uris_of_datasets=uris(), shards=5)
    manifests = run("digits", "second", uris_of_datasets=uris(), shards=2)
    shards = {f"{manifest.shards_uri}/{shard.path}" for manifest in manifests.values() for shard in manifest.shards}
    assert {f"minio://pipelines/{entry.key}" for entry in store.list()} == shards


def test_a_step_that_fails_after_the_upload_leaves_no_shards(run, store, tmp_path):
    (tmp_path / "failed" / "overview.html").mkdir(parents=True)  # A folder in the place of the page.
    with pytest.raises(OSError, match=r"overview\.html"):
        run("digits", "failed", uris_of_datasets=uris())
    assert store.list() == []


def test_a_store_that_fails_during_the_upload_leaves_no_shards(run, store, tmp_path, monkeypatch):
    """The folder of the last shards cannot be created, so their upload fails after the others have succeeded."""
    monkeypatch.setattr(open_store, "__defaults__", (None, 1.0))  # It would try again for a minute.
    folder = Path(tmp_path, "objects", ROOT.partition("//")[2], "shards")
    folder.mkdir(parents=True)
    (folder / "test_dataset").touch()  # A file in the place of the folder.
    with pytest.raises(StorageError, match=r"shards/test_dataset/part-00000\.parquet"):
        run("digits", "failed", uris_of_datasets=uris())
    assert [entry.key for entry in store.list() if not entry.key.endswith("test_dataset")] == []
    assert not (tmp_path / "failed" / "train").exists()


def test_wrong_keys_are_an_error_before_the_source_is_read(run, store, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorageError, match="access denied"):
        run("/no/such/source.csv", "failed", uris_of_datasets=uris())


def test_old_datasets_have_their_shards_beside_the_manifest(run, tmp_path):
    manifest = run("digits", "now")["test"]
    folder = tmp_path / "now" / "test"
    text = manifest.to_json().replace("kfp-distributed-dataset-4", "kfp-distributed-dataset-3")
    lines = [line for line in text.splitlines() if '"shards_uri"' not in line]
    (folder / "dataset.json").write_text("\n".join(lines).replace('"like": "",', '"like": ""'))
    assert fetch_shards(str(folder), tmp_path / "fetched") == DatasetManifest.from_json(manifest.to_json())
