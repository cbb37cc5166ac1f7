"""A source as a local file or folder, wherever it is."""

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

# Seconds of silence after which a request to an HTTP server fails. A slow download may take longer.
_TIMEOUT = 60
# After so long without any answer, an object store's address is reported as wrong. The requests after the first answer
# are repeated for as long as those of other steps.
_ANSWER_SECONDS = 10.0


def shown(source: str) -> str:
    """Return a source as it may be printed: without a URL's user and query, which can hold secrets."""
    return re.sub(r"(?<=//)[^/]*@|[?#].*", "", source) if "://" in source else source


def local_copy(source: str, scratch: Path) -> Path:
    """Return the path of a source's file or folder, fetched into an empty folder where it is remote.

    Args:
        source: A path, file://, http(s)://, s3:// or minio:// address.
        scratch: Empty folder for what must be fetched.

    Raises:
        ValueError: There is no such file or object, or the address is none.
        OSError: It cannot be downloaded.
    """
    try:
        if re.match("(?i)https?://", source):
            if name := Path(urlsplit(source).path).name:
                return _download(source, scratch / name)
            raise ValueError(f"source {shown(source)} names no file")
        location = parse_uri(source)
        path = Path(location.key)
        if location.scheme == "s3":
            path = scratch / path.name
            print(f"downloading {shown(source)}", flush=True)
            _download_objects(source, path)
    except (OSError, HTTPException, StorageError) as error:
        # An HTTPException can repeat the whole address, signature and all.
        reason = error if isinstance(error, (OSError, StorageError)) else type(error).__name__
        raise OSError(f"source {shown(source)} cannot be downloaded: {reason}") from None
    if not path.exists():
        raise ValueError(f"source: there is no {shown(source)}: correct its name")
    return path


def _download_objects(source: str, path: Path) -> None:
    """Fetch the object of an address, or all objects below it into a folder. Without any, there is no file or folder.

    Raises:
        ValueError: There are no credentials.
        StorageError: The store cannot be read, or a key would leave the folder.
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
    with urllib.request.urlopen(quote(source, string.punctuation), timeout=_TIMEOUT) as answer, path.open("wb") as file:
        size = answer.headers["Content-Length"]
        print(f"downloading {shown(source)}, {size} bytes", flush=True)
        shutil.copyfileobj(answer, file)
        if size and file.tell() != int(size):
            raise OSError(f"the connection broke after {file.tell()} of {size} bytes")
    return path
