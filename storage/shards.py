"""Datasets fetched from where they are stored."""

from collections.abc import Sequence
from pathlib import Path

from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest, ShardSlice, slices_of_rank
from kfp_distributed.storage.files import FileEntry, unfinished_file
from kfp_distributed.storage.opener import open_store


def fetch_manifest(uri: str) -> DatasetManifest:
    """Read the manifest of the dataset at a URI (s3://, minio://, file:// or a path).

    Raises:
        ValueError: It is not a manifest.
        StorageError: It cannot be read; KeyNotFound where there is none.
    """
    return DatasetManifest.from_json(open_store(uri).read(DATASET_MANIFEST).decode())


def fetch_shards(uri: str, folder: Path, slices: Sequence[ShardSlice] | None = None) -> DatasetManifest:
    """Fetch a dataset's manifest and the shards that some rows need into a local folder.

    The manifest is written last: a folder that has one has all the shards that were asked for.

    Args:
        uri: Where the dataset is.
        folder: Local folder; made if absent.
        slices: The rows that will be read; all if not given.

    Raises:
        ValueError: The manifest is none.
        StorageError: Something cannot be read; ChecksumMismatch names a shard that is not what the manifest says.
    """
    manifest = fetch_manifest(uri)
    needed = {part.shard for part in (slices_of_rank(manifest, 0, 1) if slices is None else slices)}
    files = sorted(FileEntry(shard.path, shard.size, shard.sha256) for shard in needed)
    open_store(uri).download_folder(folder, expected=files)
    with unfinished_file(Path(folder, DATASET_MANIFEST)) as stream:
        stream.write(manifest.to_json().encode())
    return manifest
