"""Makes a source available: as a local file or folder, or as objects of which ranges are read."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from kfp_distributed.components.external_services.source_address import (
    is_url,
    open_bucket,
    parse_source,
    refuse_missing,
    source_errors,
    url_file_name,
)
from kfp_distributed.components.external_services.source_drivers import RemoteFile, RemoteFiles, driver_of
from kfp_distributed.components.prepare_data.sources.download_limit import DownloadLimit
from kfp_distributed.components.prepare_data.sources.http_download import download_url
from kfp_distributed.components.prepare_data.sources.stored_files import StoredPath, stored_tree
from kfp_distributed.components.prepare_data.sources.unpacked_size import unpacked_sizes
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.storage.files import relative_path, unfinished_file
from kfp_distributed.storage.parallel import run_in_parallel


def local_copy(source: str, scratch: Path) -> Path:
    """Return the path of a source's file or folder, and download it first if it is remote.

    A failed download leaves nothing.

    Args:
        source: A path, or a file://, http(s)://, s3://, minio://, gs://, az://, abfs(s):// or hf:// address.
        scratch: Empty folder for downloads. Created if it does not exist.

    Raises:
        ValueError: The file or object does not exist, the address is invalid, or its driver is missing.
        OSError: The download failed, or the source is larger than allowed.
    """
    with source_errors(source, "downloaded"):
        location = None if is_remote(source) else parse_source(source)
        if location and location.scheme != "s3":
            path = Path(location.key)
            path = path if path.name else path.resolve()  # "." has no name, which errors and the log need.
        else:
            path = _downloaded(source, scratch)
    refuse_missing(source, path.exists())
    return path


def stored_source(source: str) -> StoredPath:
    """List the objects of an s3:// or minio:// source, to read them where they are.

    Raises:
        ValueError: The object does not exist, the address is invalid, or a key cannot be the path of a file.
        OSError: The store cannot be read, or the source is larger than allowed.
    """
    with source_errors(source, "read"):
        limit = DownloadLimit(None, os.environ)
        states = open_bucket(source).states()
        refuse_missing(source, bool(states))
        _refuse_file_as_folder(source, [state.key for state in states])
        size = sum(state.size for state in states)
        limit.refuse_more(size, declared=True)
        path = stored_tree(source, states)
        limit.refuse_unpacked(unpacked_sizes(path))
    print(f"reading {without_secrets(source)} from the store, {size} bytes", flush=True)
    return path


def is_stored(source: str) -> bool:
    """Return whether a source is in an S3 object store, so that every process can read ranges of it."""
    return not is_remote(source) and parse_source(source).scheme == "s3"


def is_remote(source: str) -> bool:
    """Return whether a source is on a server of which only downloads are possible."""
    return is_url(source) or bool(driver_of(source))


def refuse_downloads(sources: Iterable[str], reason: str = "the workers of the scheduler do not see:") -> None:
    """Check that no source must be downloaded, for tasks on machines that do not see this machine's disk.

    Args:
        sources: Paths or addresses.
        reason: Why the disk of this machine is no place for them, and what else can be done.

    Raises:
        ValueError: One must.
    """
    for source in filter(is_remote, sources):
        raise ValueError(
            f"source {without_secrets(source)} would be downloaded to the disk of this machine, which {reason} copy it "
            "to an object store with the protocol S3 first, and give its s3:// address"
        )


def _downloaded(source: str, scratch: Path) -> Path:
    """Download a remote source, and check its size, packed and unpacked."""
    scratch.mkdir(parents=True, exist_ok=True)
    limit = DownloadLimit(scratch, os.environ)
    if is_url(source):
        path = download_url(source, scratch / url_file_name(source), limit)
    elif driver_of(source):
        path = _download_files(source, scratch, limit)
    else:
        path = _download_objects(source, scratch / Path(parse_source(source).key).name, limit)
    with _nothing_left(path):
        limit.refuse_unpacked(unpacked_sizes(path))
    return path


@contextmanager
def _nothing_left(path: Path) -> Iterator[None]:
    """Delete a file or folder if an error follows."""
    try:
        yield
    except BaseException:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        raise


def _download_objects(source: str, path: Path, limit: DownloadLimit) -> Path:
    """Download an object, or all objects below a prefix into a folder. Create nothing if there are none.

    Raises:
        ValueError: There are no credentials.
        StorageError: The store cannot be read, or a key leads out of the folder.
        SourceTooLarge: The objects are larger than allowed.
    """
    store = open_bucket(source)
    states = store.states()
    _refuse_file_as_folder(source, [state.key for state in states])
    size = sum(state.size for state in states)
    limit.refuse_more(size, declared=True)
    print(f"downloading {without_secrets(source)}, {size} bytes", flush=True)
    with _nothing_left(path):
        if states and not states[0].key:
            store.download("", path, on_bytes=limit.on_bytes)
        elif states:
            store.download_folder(path, on_bytes=limit.on_bytes)
    return path


def _refuse_file_as_folder(source: str, names: Sequence[str]) -> None:
    """Check that no object has the name of a folder of others, which is possible in a store and not on a disk.

    Raises:
        ValueError: One has.
    """
    folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
    for name in sorted(folders.intersection(names)):
        raise ValueError(
            f"source {without_secrets(source)} has the object {name!r} and objects below {name + '/'!r}, which is "
            "impossible on a disk: rename the object, or give the address of the folder below"
        )


def _download_files(source: str, scratch: Path, limit: DownloadLimit) -> Path:
    """Download the files of a source by its driver, several at a time. Create nothing if there are none.

    Raises:
        ValueError: The driver is missing, or a name leads out of the folder.
        OSError: The source cannot be read, is larger than allowed, or changed during the download.
    """
    remote = RemoteFiles(source)
    files = remote.list()
    size = sum(file.size for file in files)
    limit.refuse_more(size, declared=True)
    path = scratch / Path(without_secrets(source).rstrip("/")).name
    _refuse_file_as_folder(source, [file.name for file in files])
    targets = {file: path / relative_path(file.name) if file.name else path for file in files}

    def download(file: RemoteFile) -> None:
        with unfinished_file(targets[file]) as target:
            for block in remote.read(file):
                target.write(block)
                limit.on_bytes(len(block))

    print(f"downloading {without_secrets(source)}, {size} bytes", flush=True)
    with _nothing_left(path):
        run_in_parallel(download, files)
        if remote.list() != files:
            raise OSError("its files changed during the download: start the step again when they are complete")
    return path
