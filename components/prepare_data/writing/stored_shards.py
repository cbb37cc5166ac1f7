"""Stores the shards of datasets beside their artifacts, so that no step downloads them without need.

Kubeflow Pipelines downloads every object whose key begins with that of an input artifact, before a step runs. So an
artifact has the manifest alone.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.prepare_data.writing.shard_tasks import shard_key
from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.folder import FolderStore
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.parallel import run_in_parallel
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import parse_uri, uri_beside

_FOLDER = "shards"


def shards_uri(artifact_uri: str) -> str:
    """Return the address for the shards of a dataset: of s3://b/run/train_dataset, s3://b/run/shards/train_dataset.

    No artifact of the task has an address that begins so.

    Args:
        artifact_uri: Address of the artifact.

    Returns:
        The address; "" for a local folder and for a store without the S3 protocol, where the shards stay in the
        artifact.
    """
    if artifact_uri.partition("://")[0].lower() not in ("s3", "minio"):
        return ""
    return uri_beside(artifact_uri, _FOLDER, parse_uri(artifact_uri).key.rpartition("/")[2])


@contextmanager
def shard_stores(datasets: Mapping[str, Artifact]) -> Iterator[dict[str, Store]]:
    """Open the stores of shards by split, and delete what an earlier attempt of this task has left there.

    If the block raises, its shards are deleted.

    Args:
        datasets: Artifacts of the datasets by split.

    Yields:
        The stores; none for datasets whose shards stay in the artifact.

    Raises:
        ValueError: There are no credentials for a store.
        StorageError: A store does not answer, or refuses.
    """
    addresses = {split: shards_uri(dataset.uri) for split, dataset in datasets.items()}
    stores = {split: open_store(address) for split, address in addresses.items() if address}
    for store in stores.values():
        _empty(store)
    try:
        yield stores
    except BaseException:
        for store in stores.values():
            with suppress(StorageError):  # It would hide why the step fails.
                _empty(store)
        raise


def store_shards(manifest: DatasetManifest, folder: Path, store: Store) -> DatasetManifest:
    """Move the shards of a dataset from a local folder to a store, and write the manifest into the folder.

    Args:
        manifest: The manifest.
        folder: Folder of the shards. In the end, it has nothing but the manifest.
        store: Where the shards belong.

    Returns:
        The manifest with the address of the shards.

    Raises:
        StorageError: A shard cannot be stored.
    """
    (folder / DATASET_MANIFEST).unlink()
    store.upload_folder(folder)
    shutil.rmtree(folder)
    folder.mkdir()
    stored = replace(manifest, shards_uri=store.uri)
    (folder / DATASET_MANIFEST).write_text(stored.to_json())
    return stored


def take_shards(manifest: DatasetManifest, scratch: Store, folder: Path, store: Store | None) -> DatasetManifest:
    """Copy the shards of a dataset from the scratch of tasks to where they belong.

    Args:
        manifest: The manifest.
        scratch: Where tasks have written the shards.
        folder: Folder of the manifest.
        store: Where the shards belong; None for the folder.

    Returns:
        The manifest with the address of the shards, which is also written into the folder.

    Raises:
        StorageError: A shard cannot be copied.
    """
    keys = {shard.path: shard_key(manifest.split, shard.path) for shard in manifest.shards}

    def take(path: str) -> None:
        if store:
            store.copy(scratch, keys[path], path)
        elif isinstance(scratch, FolderStore):
            _link(scratch.root / keys[path], folder / path)
        else:
            scratch.download(keys[path], folder / path)

    run_in_parallel(take, keys)
    stored = replace(manifest, shards_uri=store.uri) if store else manifest
    (folder / DATASET_MANIFEST).write_text(stored.to_json())
    return stored


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it if it is on another disk. The step may die and need it again, so it is not moved."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def _empty(store: Store) -> None:
    store.delete([entry.key for entry in store.list()])
