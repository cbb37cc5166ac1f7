"""Download datasets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_distributed.storage.dataset import (
    DATASET_MANIFEST,
    DatasetManifest,
    Shard,
    ShardPart,
    read_batches,
    whole_shard,
)
from kfp_distributed.storage.files import FileEntry, OnBytes, ignore_bytes, unfinished_file
from kfp_distributed.storage.opener import open_store

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Observe = Callable[[Sequence[FileEntry]], AbstractContextManager[OnBytes]]
"""Observes a download: it gets the files, and returns a context that lasts as long and has the callback for bytes."""


def _observe_nothing(files: Sequence[FileEntry]) -> AbstractContextManager[OnBytes]:
    return nullcontext(ignore_bytes)


def fetch_manifest(uri: str, retry_seconds: float = 60) -> DatasetManifest:
    """Read the manifest of the dataset at a URI (s3://, minio://, file:// or a path).

    Args:
        uri: Address of the dataset.
        retry_seconds: See `open_store`. Default: 60.

    Raises:
        ValueError: The file is not a valid manifest.
        KeyNotFound: The manifest does not exist.
        StorageError: The manifest cannot be read.
    """
    text = open_store(uri, retry_seconds=retry_seconds).read(DATASET_MANIFEST).decode()
    try:
        return DatasetManifest.from_json(text)
    except ValueError as error:
        raise ValueError(f"the dataset {uri} cannot be read: {error}") from error


def fetch_shards(
    uri: str,
    folder: Path,
    parts: Sequence[ShardPart] | None = None,
    retry_seconds: float = 60,
    observe: Observe = _observe_nothing,
) -> DatasetManifest:
    """Download a dataset's manifest and the shards that contain the given rows, into one folder.

    The manifest is written last: a folder with a manifest has all requested shards.

    Args:
        uri: Address of the dataset.
        folder: The local folder. Created if it does not exist.
        parts: The rows to read. Default: all rows.
        retry_seconds: See `open_store`. Default: 60.
        observe: Observes the download of the shards. Default: nothing.

    Raises:
        ValueError: The manifest is not valid.
        ChecksumMismatch: A shard has another size or SHA-256 than the manifest says.
        StorageError: The manifest or a shard cannot be read.
    """
    manifest = fetch_manifest(uri, retry_seconds)
    shards = {*manifest.shards} if parts is None else {part.shard for part in parts}
    files = sorted(FileEntry(shard.path, shard.size, shard.sha256) for shard in shards)
    with observe(files) as on_bytes:
        store = open_store(manifest.shards_uri or uri, retry_seconds=retry_seconds)
        store.download_folder(folder, expected=files, on_bytes=on_bytes)
    local = replace(manifest, shards_uri="")
    with unfinished_file(Path(folder, DATASET_MANIFEST)) as stream:
        stream.write(local.to_json().encode())
    return local


def read_stored_batches(folder: Path, manifest: DatasetManifest) -> Iterator[tuple[NDArray[np.float32], NDArray[Any]]]:
    """Read all rows of a dataset as `read_batches` does. Shards in a store are downloaded one after the other.

    Each is deleted after its last row, so that the local disk has two of them at most: the next one is downloaded
    meanwhile.

    Args:
        folder: The folder of the manifest.
        manifest: The dataset's manifest.

    Raises:
        ValueError: See `read_batches`.
        ChecksumMismatch: A shard has another size or SHA-256 than the manifest says.
        StorageError: A shard cannot be downloaded.
    """
    if not manifest.shards_uri:
        yield from read_batches(folder, manifest)
        return
    store = open_store(manifest.shards_uri)
    with tempfile.TemporaryDirectory(prefix="shards-") as scratch, ThreadPoolExecutor(1) as pool:

        def download(shard: Shard) -> Future[FileEntry]:
            expected = FileEntry(shard.path, shard.size, shard.sha256)
            return pool.submit(store.download, shard.path, Path(scratch, shard.path), expected)

        shards = manifest.shards
        following = download(shards[0]) if shards else None
        for number, shard in enumerate(shards):
            assert following
            following.result()
            following = download(shards[number + 1]) if number + 1 < len(shards) else None
            yield from read_batches(Path(scratch), manifest, [whole_shard(shard)])
            Path(scratch, shard.path).unlink()
