"""Download datasets."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest, ShardPart
from kfp_distributed.storage.files import FileEntry, OnBytes, ignore_bytes, unfinished_file
from kfp_distributed.storage.opener import open_store

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
    """Download a dataset's manifest and the shards that contain the given rows.

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
        open_store(uri, retry_seconds=retry_seconds).download_folder(folder, expected=files, on_bytes=on_bytes)
    with unfinished_file(Path(folder, DATASET_MANIFEST)) as stream:
        stream.write(manifest.to_json().encode())
    return manifest
