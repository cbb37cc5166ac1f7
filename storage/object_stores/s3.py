"""An S3 bucket, or a key prefix in one, as a store."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import BytesIO
from threading import BoundedSemaphore
from typing import BinaryIO
from xml.etree.ElementTree import ParseError

import certifi
from minio import Minio
from minio.datatypes import Object
from minio.deleteobjects import DeleteObject
from minio.error import MinioException
from urllib3 import BaseHTTPResponse, Retry, Timeout
from urllib3.exceptions import HTTPError, NewConnectionError, ProtocolError, TimeoutError

from kfp_distributed.storage.errors import KeyNotFound, StorageError, StoreAway
from kfp_distributed.storage.files import FileEntry, OnBytes, hash_stream, ignore_bytes, read_exactly
from kfp_distributed.storage.kubeflow.credentials import Credentials
from kfp_distributed.storage.object_stores.connections import TRANSIENT_STATUS, ConnectionPool, RequestLimits
from kfp_distributed.storage.object_stores.multipart import PartsUpload, abort_uploads, etags_of_content, part_bytes
from kfp_distributed.storage.object_stores.s3_errors import error_code, explain_error, is_transient
from kfp_distributed.storage.object_stores.server_copy import ObjectReplaced, copy_on_server
from kfp_distributed.storage.parallel import PARALLEL_REQUESTS, PARALLEL_TRANSFERS
from kfp_distributed.storage.store import BYTES, Entry, ObjectRange, Store
from kfp_distributed.storage.uri import parse_uri

CONNECT_SECONDS = 10.0
"""Timeout of a connection. It includes the TLS handshake, which takes a loaded gateway several seconds."""

READ_SECONDS = 60.0
"""Longest time without data of an answer."""

COPY_SECONDS = 600.0
"""Longest time without data of the answer to a copy. A server may send none until it has copied all bytes, at most 5
GiB. It then copies 9 MB in a second."""

_COPY_RETRIES = 2
"""Retries of a copy after a timeout or a broken connection. More of them wait hours for a server that hangs."""

# An upload of a small object may take the memory for it, and a copy the time, without a slot (see S3Store).
_SMALL_BYTES = 1 << 20
# Between two attempts of `await_answer`.
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class ObjectState:
    """What a server reports about an object without sending its content.

    Attributes:
        key: Key relative to the store's root; "" for the root itself.
        size: Size in bytes.
        etag: ETag, which most servers compute from the content; "" if the server has none.
        modified: Time of the last write in ISO 8601; "" if the server does not report it.
    """

    key: str
    size: int
    etag: str
    modified: str


class S3Store(Store):
    """Objects in a bucket of an S3 server.

    Args:
        uri: s3://bucket/prefix.
        credentials: The server and the account.
        retry_seconds: Approximate time, in seconds, for which a request is retried after a transient error. Transient
            errors are refused, reset and broken connections, timeouts, and HTTP status 429, 500, 502, 503 and 504. An
            untrusted certificate is not transient.

    Attributes:
        slots: Limits the number of parts that all uploads together hold in memory, and of long copies: the server
            answers a copy when it is done.
    """

    parallel_uploads = PARALLEL_REQUESTS

    def __init__(self, uri: str, credentials: Credentials, retry_seconds: float = 60) -> None:
        location = parse_uri(uri)
        self.uri, self.bucket, self.root = uri, location.bucket, location.key
        self.credentials = credentials
        self.endpoint = f"http{'s' * credentials.secure}://{credentials.endpoint}"
        retries = Retry(
            # The pauses are 0, 0.4, 0.8, 1.6, 3.2, 6.4, then 8 s each, plus a jitter of up to 0.5 s, at most 8 s.
            total=int(min(2 * retry_seconds, 5) + retry_seconds / 8),
            other=0,  # TLS errors.
            allowed_methods=None,
            status_forcelist=TRANSIENT_STATUS,
            backoff_factor=0.2,
            backoff_max=8,
            backoff_jitter=0.5,
            respect_retry_after_header=False,
        )
        self._pool = ConnectionPool(
            self.endpoint,
            connections=PARALLEL_REQUESTS,
            connect_seconds=CONNECT_SECONDS,
            ca_certs=credentials.ca_bundle or certifi.where(),
            usual=RequestLimits(min(READ_SECONDS, 10 + 2 * retry_seconds), retries),
            copies=RequestLimits(COPY_SECONDS, retries.new(read=min(_COPY_RETRIES, retries.total or 0))),
        )
        self.slots = BoundedSemaphore(PARALLEL_TRANSFERS)
        # Only AWS is asked for the region of a bucket. Other AWS endpoints contain the region. Other servers use this
        # default or ignore the region.
        self._asks_for_region = not credentials.region and credentials.endpoint == "s3.amazonaws.com"
        region = credentials.region or (None if credentials.endpoint.endswith(".amazonaws.com") else "us-east-1")
        self.client = Minio(
            credentials.endpoint,
            credentials.access_key,
            credentials.secret_key,
            credentials.session_token or None,
            credentials.secure,
            region,
            self._pool,
        )

    def await_answer(self, seconds: float) -> None:
        """Wait until the server answers an unauthenticated request with any status.

        Call it before the first download to detect a wrong address long before the retries of the download end.

        Args:
            seconds: Timeout in seconds, in total.

        Raises:
            StorageError: The server does not answer, or its certificate is not trusted.
        """
        deadline = time.monotonic() + seconds
        with self._errors(""):
            while True:
                timeout = Timeout(total=max(0.1, deadline - time.monotonic()))
                try:
                    self._pool.request("HEAD", f"{self.endpoint}/", retries=False, redirect=False, timeout=timeout)
                    return
                except (TimeoutError, NewConnectionError, ProtocolError):
                    if time.monotonic() + _PAUSE_SECONDS > deadline:
                        raise
                time.sleep(_PAUSE_SECONDS)

    def list(self, prefix: str = "") -> list[Entry]:
        """See Store."""
        with self._errors(prefix):
            return sorted(Entry(key, item.size) for key, item in self._objects(prefix))

    def children(self, folder: str = "") -> Sequence[str]:
        """See Store."""
        start = "".join(f"{part}/" for part in (self.root, folder) if part)
        with self._errors(folder):
            items = self.client.list_objects(self.bucket, start)
            # The object of the folder itself, which some tools create, has no name here.
            return sorted({item.object_name[len(start) :] for item in items} - {""})

    def has_objects(self, prefix: str) -> bool:
        """See Store. It takes one request, however many objects there are."""
        with self._errors(prefix):
            return any(True for _ in self._objects(prefix))

    def states(self) -> tuple[ObjectState, ...]:
        """Return the state of the object at the root, or if there is none, of all objects below it."""
        if self.root:
            with suppress(KeyNotFound), self._errors(""):
                return (_state("", self.client.stat_object(self.bucket, str(self.root))),)
        with self._errors(""):
            return tuple(_state(key, item) for key, item in self._objects(""))

    def _objects(self, prefix: str) -> Iterator[tuple[str, Object]]:
        """Yield the objects whose key starts with `prefix`, each with its key relative to the root."""
        start = f"{self.root}/" if self.root else ""
        for item in self.client.list_objects(self.bucket, start + prefix, recursive=True):
            # Some tools create an object whose key ends with a slash to represent a folder.
            if not item.object_name.endswith("/"):
                yield item.object_name[len(start) :], item

    def exists(self, key: str) -> bool:
        """See Store."""
        with suppress(KeyNotFound), self._errors(key):
            self.client.stat_object(self.bucket, self._key(key))
            return True
        return False

    def was_written_before(self, key: str, size: int, other: str) -> bool:
        """See Store."""
        with suppress(KeyNotFound), self._errors(key):
            item, later = (self.client.stat_object(self.bucket, self._key(name)) for name in (key, other))
            times = item.last_modified, later.last_modified
            return item.size == size and None not in times and times[0] <= times[1]
        return False

    def copies_from(self, source: Store) -> bool:
        """See Store."""
        return isinstance(source, S3Store) and source.credentials == self.credentials

    def copy(self, source: Store, source_key: str, key: str, etag: str = "", size: int = -1) -> None:
        """See Store."""
        if not self.copies_from(source):
            return super().copy(source, source_key, key, etag)
        origin = source.bucket, source._key(source_key)
        try:
            with self._errors(key), self._slot(size):
                copy_on_server(self.client, *origin, self.bucket, self._key(key), etag, size)
        except KeyNotFound as error:
            raise source._error(source_key, error.cause, KeyNotFound) from None
        except ObjectReplaced:
            raise source._replaced(source_key, "copied: its ETag was", etag) from None

    def delete(self, keys: Iterable[str]) -> None:
        """See Store."""
        with self._errors(""):
            for error in self.client.remove_objects(self.bucket, [DeleteObject(self._key(key)) for key in keys]):
                raise MinioException(f"{error.name}: {error.code}: {error.message}")

    def abort_uploads(self) -> None:
        """See Store."""
        with self._errors(""):
            abort_uploads(self.client, self.bucket, str(self.root))

    def bucket_exists(self) -> bool:
        """See Store."""
        with self._errors(""):
            return bool(self.client.bucket_exists(self.bucket))

    def make_bucket(self) -> None:
        """See Store."""
        with self._errors(""):
            try:
                if not self.client.bucket_exists(self.bucket):
                    self.client.make_bucket(self.bucket)
            except MinioException as error:
                if "BucketAlready" not in str(error):  # Another client may have created it in the meantime.
                    raise

    def read_into(self, key: str, target: BinaryIO, on_bytes: OnBytes = ignore_bytes) -> FileEntry:
        """See Store."""
        with self._errors(key):
            for remaining_attempts in (3, 2, 1, 0):
                target.seek(0)
                target.truncate()
                try:
                    with self.client.get_object(self.bucket, self._key(key)) as response:
                        entry = hash_stream(response, key, target, on_bytes)
                        break
                except (ProtocolError, TimeoutError):  # urllib3 does not retry once the response has begun.
                    if not remaining_attempts:
                        raise
        return entry

    def read_range(
        self, key: str, offset: int, length: int, etag: str = "", on_bytes: OnBytes = ignore_bytes
    ) -> ObjectRange:
        """See Store."""
        with self._errors(key):
            for remaining_attempts in (3, 2, 1, 0):
                try:
                    with self.client.get_object(self.bucket, self._key(key), offset, length) as response:
                        # Not If-Match: servers differ in the ETags that they accept, and all report the ETag.
                        size, tag = _object_size(response, offset, length), response.headers.get("ETag", "")
                        if size < 0:
                            answer = f"{response.status}, {response.headers.get('Content-Range', 'no Content-Range')}"
                            raise self._short(key, offset, length, f"the server answered {answer}")
                        self._check_etag(key, tag, etag)
                        data = read_exactly(response, length, on_bytes)
                        break
                except (ProtocolError, TimeoutError):  # See read_into.
                    if not remaining_attempts:
                        raise
        return ObjectRange(data, size, tag)

    def write_from(
        self, key: str, source: BinaryIO, content_type: str = BYTES, on_bytes: OnBytes = ignore_bytes
    ) -> FileEntry:
        """See Store."""
        size = source.seek(0, os.SEEK_END)
        source.seek(0)
        if size > part_bytes(size):
            return self._write_parts(key, source, size, content_type, on_bytes)
        with self._errors(key), self._slot(size):
            data = source.read(size)
            self.client.put_object(self.bucket, self._key(key), BytesIO(data), len(data), content_type)
        on_bytes(len(data))
        return FileEntry(key, len(data), hashlib.sha256(data).hexdigest())

    def _slot(self, size: int) -> AbstractContextManager[object]:
        """Return a slot for a request with an object of a size; nothing to wait for if it is known to be small."""
        return nullcontext() if 0 <= size <= _SMALL_BYTES else self.slots

    def _write_parts(self, key: str, source: BinaryIO, size: int, content_type: str, on_bytes: OnBytes) -> FileEntry:
        """Write an object as `write_from` does, by a multipart upload. Each part is retried by itself."""
        upload = PartsUpload(self.client, self.bucket, self._key(key), content_type)
        with self._errors(key):
            try:
                upload.send(source, size, self.slots, PARALLEL_TRANSFERS, on_bytes)
            except MinioException as error:
                # A retried completion gets this answer if the answer of the first one was lost.
                if "NoSuchUpload" not in str(error) or not self._is_stored(upload.entry(key), source, part_bytes(size)):
                    raise
        return upload.entry(key)

    def _is_stored(self, entry: FileEntry, source: BinaryIO, part: int) -> bool:
        """Return whether the object is the one that was sent, and not an earlier one of the same key.

        Args:
            entry: Key, size and hash of the content.
            source: The content.
            part: Size of each part of the multipart upload in bytes, except for the last one.
        """
        try:
            item = self.client.stat_object(self.bucket, self._key(entry.path))
            if item.size != entry.size:
                return False
            if (item.etag or "").strip('"') in etags_of_content(source, part):
                return True
            # The ETag of an encrypted object does not follow from its content.
            with self.client.get_object(self.bucket, self._key(entry.path)) as response:
                return hash_stream(response, entry.path) == entry
        except (MinioException, HTTPError):
            return False

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except (MinioException, HTTPError, OSError, ValueError, ParseError) as error:
            cause = explain_error(error, self._asks_for_region)
            kind = StoreAway if is_transient(error) else StorageError
            raise self._error(key, cause, KeyNotFound if error_code(error) == "NoSuchKey" else kind) from None


def _object_size(response: BaseHTTPResponse, offset: int, length: int) -> int:
    """Return the size of the object of which a response has a range. -1 if it does not have the requested range.

    The header tells, and not the status: `rclone serve s3` sends a range with 200 instead of 206.
    """
    found = re.fullmatch(rf"bytes {offset}-{offset + length - 1}/([0-9]+)", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else -1


def _state(key: str, item: Object) -> ObjectState:
    modified = item.last_modified.isoformat() if item.last_modified else ""
    return ObjectState(key, item.size, item.etag or "", modified)
