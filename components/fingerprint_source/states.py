"""Reads the states of the files of a source: the files that `prepare_data` reads."""

from collections.abc import Iterator
from pathlib import Path

from kfp_distributed.components.external_services.http_requests import open_url
from kfp_distributed.components.external_services.source_address import (
    is_url,
    open_bucket,
    parse_source,
    refuse_missing,
    source_errors,
    url_file_name,
)
from kfp_distributed.components.external_services.source_drivers import RemoteFiles, driver_of
from kfp_distributed.components.fingerprint_source.fingerprint import FileState
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.storage.files import hash_stream


def file_states(source: str) -> list[FileState]:
    """Return the states of all files of a source.

    Args:
        source: A path, or a file://, http(s)://, s3://, minio://, gs://, az://, abfs(s):// or hf:// address.

    Raises:
        ValueError: The file or object does not exist, or the address is invalid.
        OSError: The source cannot be read.
    """
    with source_errors(source, "read"):
        if is_url(source):
            return [_url_state(source)]
        states = _states(source)
    refuse_missing(source, states is not None)
    return states or []


def _states(source: str) -> list[FileState] | None:
    """Return the states of the files of a source that is not a URL; None if the source does not exist."""
    if driver_of(source):
        files = RemoteFiles(source).list()
        return [FileState(file.name, file.size, file.content, file.modified) for file in files] or None
    location = parse_source(source)
    if location.scheme == "s3":
        states = open_bucket(source).states()
        return [FileState(state.key, state.size, state.etag, state.modified) for state in states] or None
    path = Path(location.key)
    return list(_local_states(path)) if path.exists() else None


def _url_state(source: str) -> FileState:
    """Return the state of a file on an HTTP server.

    The request is a GET, as that of `prepare_data`, because servers and signed addresses may refuse HEAD. The content
    is read only if the server gives neither an ETag nor a time.

    Raises:
        OSError: The server does not answer, or the connection broke.
    """
    url_file_name(source)
    with open_url(source) as response:
        length = -1 if response.length is None else response.length
        etag, modified = response.headers["ETag"] or "", response.headers["Last-Modified"] or ""
        if etag or modified:
            return FileState("", length, etag, modified)
        print(
            f"the server of {without_secrets(source)} reports neither ETag nor Last-Modified: the content is read for "
            "its hash, because a change cannot be noticed otherwise",
            flush=True,
        )
        entry = hash_stream(response, "")
    if length not in (-1, entry.size):
        raise OSError(f"the connection broke after {entry.size} of {length} bytes")
    return FileState("", entry.size, entry.sha256, "")


def _local_states(path: Path) -> Iterator[FileState]:
    """Yield the states of a file, or of the files in a folder and in its folders. `prepare_data` reads no deeper."""
    folders = [path, *(folder for folder in path.iterdir() if folder.is_dir())] if path.is_dir() else []
    files = [file for folder in folders for file in folder.iterdir()] if folders else [path]
    root = path if folders else path.parent
    for file in filter(Path.is_file, files):
        status = file.stat()
        yield FileState(file.relative_to(root).as_posix(), status.st_size, "", str(status.st_mtime_ns))
