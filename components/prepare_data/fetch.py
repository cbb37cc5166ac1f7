"""Makes a source available as a local file or folder."""

import shutil
from contextlib import suppress
from pathlib import Path

from kfp_distributed.components.http_requests import open_url
from kfp_distributed.components.source_address import (
    is_url,
    open_bucket,
    refuse_missing,
    source_errors,
    url_file_name,
    without_secrets,
)
from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.uri import parse_uri


def local_copy(source: str, scratch: Path) -> Path:
    """Return the path of a source's file or folder, and download it first if it is remote.

    Args:
        source: A path, file://, http(s)://, s3:// or minio:// address.
        scratch: Empty folder for downloads.

    Raises:
        ValueError: The file or object does not exist, or the address is invalid.
        OSError: The download failed.
    """
    with source_errors(source, "downloaded"):
        if is_url(source):
            return _download(source, scratch / url_file_name(source))
        location = parse_uri(source)
        path = Path(location.key)
        if location.scheme == "s3":
            path = scratch / path.name
            print(f"downloading {without_secrets(source)}", flush=True)
            _download_objects(source, path)
    refuse_missing(source, path.exists())
    return path


def _download_objects(source: str, path: Path) -> None:
    """Download an object, or all objects below a prefix into a folder. Create nothing if there are none.

    Raises:
        ValueError: There are no credentials.
        StorageError: The store cannot be read, or a key leads out of the folder.
    """
    store = open_bucket(source)
    if store.root:
        with suppress(KeyNotFound):
            store.download("", path)
            return
    if not store.download_folder(path):
        path.rmdir()


def _download(source: str, path: Path) -> Path:
    with open_url(source) as response, path.open("wb") as file:
        size = response.headers["Content-Length"]
        print(f"downloading {without_secrets(source)}, {size} bytes", flush=True)
        shutil.copyfileobj(response, file)
        if size and file.tell() != int(size):
            raise OSError(f"the connection broke after {file.tell()} of {size} bytes")
    return path
