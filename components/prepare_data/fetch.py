"""Makes a source available as a local file or folder."""

import re
import shutil
import string
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote, urlsplit

from kfp_distributed.storage.credentials import credentials_from_environment
from kfp_distributed.storage.errors import KeyNotFound, StorageError
from kfp_distributed.storage.s3 import S3Store
from kfp_distributed.storage.uri import parse_uri

# Seconds without data after which a request to an HTTP server fails. A slow download may take longer.
_TIMEOUT = 60
# Seconds without a response after which an object store's address is reported as wrong. After the first response,
# failed requests are retried for as long as in other steps.
_ANSWER_SECONDS = 10.0


def without_secrets(source: str) -> str:
    """Return a source without the user and query of a URL, which may hold secrets."""
    return re.sub(r"(?<=//)[^/]*@|[?#].*", "", source) if "://" in source else source


def local_copy(source: str, scratch: Path) -> Path:
    """Return the path of a source's file or folder, and download it first if it is remote.

    Args:
        source: A path, file://, http(s)://, s3:// or minio:// address.
        scratch: Empty folder for downloads.

    Raises:
        ValueError: The file or object does not exist, or the address is invalid.
        OSError: The download failed.
    """
    try:
        if re.match("(?i)https?://", source):
            if name := Path(urlsplit(source).path).name:
                return _download(source, scratch / name)
            raise ValueError(f"source {without_secrets(source)} has no file name: give the address of a file")
        location = parse_uri(source)
        path = Path(location.key)
        if location.scheme == "s3":
            path = scratch / path.name
            print(f"downloading {without_secrets(source)}", flush=True)
            _download_objects(source, path)
    except (OSError, HTTPException, StorageError) as error:
        # The text of an HTTPException may contain the full URL with its signature.
        reason = error if isinstance(error, (OSError, StorageError)) else type(error).__name__
        raise OSError(f"source {without_secrets(source)} cannot be downloaded: {reason}") from None
    if not path.exists():
        raise ValueError(f"source {without_secrets(source)} does not exist: correct the path or address")
    return path


def _download_objects(source: str, path: Path) -> None:
    """Download an object, or all objects below a prefix into a folder. Create nothing if there are none.

    Raises:
        ValueError: There are no credentials.
        StorageError: The store cannot be read, or a key leads out of the folder.
    """
    store = S3Store(source, credentials_from_environment(uri=source))
    store.await_answer(_ANSWER_SECONDS)
    if store.root:
        with suppress(KeyNotFound):
            store.download("", path)
            return
    if not store.download_folder(path):
        path.rmdir()


def _download(source: str, path: Path) -> Path:
    with (
        urllib.request.urlopen(quote(source, string.punctuation), timeout=_TIMEOUT) as response,
        path.open("wb") as file,
    ):
        size = response.headers["Content-Length"]
        print(f"downloading {without_secrets(source)}, {size} bytes", flush=True)
        shutil.copyfileobj(response, file)
        if size and file.tell() != int(size):
            raise OSError(f"the connection broke after {file.tell()} of {size} bytes")
    return path
