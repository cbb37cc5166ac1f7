"""Addresses of sources: what `prepare_data` and `fingerprint_source` do with them in the same way."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from kfp_distributed.components.external_services.http_requests import request_for
from kfp_distributed.components.external_services.source_drivers import DRIVERS, driver_of
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.credentials import credentials_from_environment
from kfp_distributed.storage.object_stores.s3 import S3Store
from kfp_distributed.storage.uri import Location, parse_uri

DIGITS = "digits"
"""The source that is part of the library."""

ANSWER_SECONDS = 10.0
"""Seconds without a response after which an object store's address is reported as wrong. After the first response,
failed requests are retried for as long as in other steps."""


def is_url(source: str) -> bool:
    """Return whether a source is a file on an HTTP server."""
    return bool(re.match("(?i)https?://", source))


def url_file_name(source: str) -> str:
    """Return the file name of a URL.

    Raises:
        ValueError: It has none, or its password is not percent-encoded.
    """
    request_for(source)  # The password of a wrong address would be taken for its host or path.
    if name := Path(urlsplit(source).path).name:
        return name
    raise ValueError(f"source {without_secrets(source)} has no file name: give the address of a file")


def open_bucket(source: str) -> S3Store:
    """Return the store of an s3:// or minio:// address after its server has answered.

    Raises:
        ValueError: There are no credentials.
        StorageError: The server does not answer.
    """
    store = S3Store(source, credentials_from_environment(uri=source))
    store.await_answer(ANSWER_SECONDS)
    return store


def refuse_missing(source: str, exists: bool) -> None:
    """Check that a source exists.

    Raises:
        ValueError: It does not.
    """
    if not exists:
        private = ", or set the credentials of its account if it is private" if driver_of(source) else ""
        raise ValueError(f"source {without_secrets(source)} does not exist: correct the path or address{private}")


def parse_source(source: str) -> Location:
    """Return the location of a source in an S3 store or on the local disk.

    Raises:
        ValueError: It has another scheme, or is blank.
    """
    if not source.strip():
        raise ValueError(f"source is {source!r}: give the path or address of a file or folder")
    try:
        return parse_uri(source)
    except ValueError as error:
        others = ", ".join(f"{scheme}://" for scheme in ("http", "https", *DRIVERS))
        raise ValueError(f"{error}. A source may also start with {others}") from None


@contextmanager
def source_errors(source: str, action: str) -> Iterator[None]:
    """Convert errors of servers and disks to an OSError that names the source without its secrets.

    Args:
        source: The path or address.
        action: What was to be done with it, such as "downloaded".
    """
    try:
        yield
    except (OSError, HTTPException, StorageError) as error:
        # The text of an HTTPException may contain the full URL with its signature.
        reason = error if isinstance(error, (OSError, StorageError)) else type(error).__name__
        raise OSError(f"source {without_secrets(source)} cannot be {action}: {reason}") from None
