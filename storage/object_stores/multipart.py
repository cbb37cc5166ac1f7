"""Uploads a large object in parts, several at the same time. Uses private methods of minio-py (7.2).

minio-py can do this itself, but it sends all remaining parts before it reports that one has failed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import BoundedSemaphore
from typing import BinaryIO

from minio import Minio
from minio.datatypes import Part, Upload
from minio.error import MinioException
from urllib3.exceptions import HTTPError

from kfp_distributed.storage.files import FileEntry, OnBytes

PART_BYTES = 8 << 20
"""Smallest size of a part. S3 allows 10,000 parts of at least 5 MiB."""

_FOREIGN_PART_BYTES = (5 << 20, 8 << 20)
"""Size of the parts that other programs send: the AWS SDK for Go, with which Kubeflow Pipelines stores artifacts, and
boto3."""

_METHODS = ("_create_multipart_upload", "_upload_part", "_complete_multipart_upload", "_abort_multipart_upload")
_LIST = "_list_multipart_uploads"
has_parts = all(hasattr(Minio, name) for name in _METHODS)
"""Whether this minio-py has the private methods. Otherwise its `put_object` sends large objects."""


def begin_upload(client: Minio, bucket: str, key: str, headers: dict[str, str]) -> str:
    """Begin a multipart upload; return its ID."""
    return str(client._create_multipart_upload(bucket, key, headers))


def unfinished_uploads(client: Minio, bucket: str, prefix: str = "") -> list[Upload]:
    """Return unfinished uploads whose key begins with a prefix, at most 1,000.

    Some servers ignore the prefix.
    """
    # Without a delimiter, minio-py sends an empty one, for which rclone lists nothing. No key has this one.
    listed = client._list_multipart_uploads(bucket, "//", prefix=prefix).uploads
    return [upload for upload in listed if upload.object_name.startswith(prefix)]


def abort_uploads(client: Minio, bucket: str, folder: str) -> None:
    """Abort the unfinished uploads below a folder. An empty name of it stands for none.

    Args:
        client: Client of the server.
        bucket: The bucket.
        folder: Key of the folder.

    Raises:
        Exception: What minio-py and urllib3 raise, such as that the server cannot list uploads.
    """
    if not (folder and has_parts and hasattr(client, _LIST)):
        return
    # An aborted upload is not listed any more, so each request lists the next ones.
    seen: set[str | None] = set()
    while True:
        uploads = unfinished_uploads(client, bucket, f"{folder}/")
        for upload in uploads:
            client._abort_multipart_upload(bucket, upload.object_name, str(upload.upload_id))
        if seen >= (new := {upload.upload_id for upload in uploads}):
            return
        seen |= new


def part_bytes(size: int) -> int:
    """Return the size in bytes of each part, except for the last one, of an object of a size in bytes."""
    return PART_BYTES + size // 10_000


def etags_of_content(source: BinaryIO, part: int) -> tuple[str, str]:
    """Return the ETags that servers give a multipart object: that of AWS, and the MD5 of the content."""
    source.seek(0)
    digests, content = [], hashlib.md5(usedforsecurity=False)
    while data := source.read(part):
        digests.append(hashlib.md5(data, usedforsecurity=False).digest())
        content.update(data)
    parts = hashlib.md5(b"".join(digests), usedforsecurity=False).hexdigest()
    return f"{parts}-{len(digests)}", content.hexdigest()


def is_etag_of(etag: str, source: BinaryIO, size: int) -> bool:
    """Return whether an ETag proves that an object has the content of a stream.

    The ETag must be the MD5 of the content or, of an object that was sent in parts, that of the MD5s of the parts. It
    does not say how large they were, so common sizes are tried.

    Args:
        etag: ETag of the object.
        source: The stream. Up to two of its parts are in memory.
        size: Number of bytes in the stream.

    Returns:
        False also for the same content in parts of an uncommon size, or encrypted by the server.
    """
    expected = etag.strip('"')
    count = expected.partition("-")[2]
    sizes = {part for part in (*_FOREIGN_PART_BYTES, part_bytes(size)) if count == str(-(-size // part))}
    return any(expected in etags_of_content(source, part) for part in (sizes if count else [PART_BYTES]))


class PartsUpload:
    """An upload of one object in parts. An object with an incomplete upload does not exist."""

    def __init__(self, client: Minio, bucket: str, key: str, content_type: str) -> None:
        """Create the upload without sending a request.

        Args:
            client: Client, whose requests are retried.
            bucket: Bucket of the object.
            key: Key of the object.
            content_type: Its media type.
        """
        self._client, self._bucket, self._key, self._type = client, bucket, key, content_type
        self._digest, self._size, self._parts = hashlib.sha256(), 0, list[Part]()

    def send(self, source: BinaryIO, size: int, slots: BoundedSemaphore, threads: int, on_bytes: OnBytes) -> None:
        """Send a stream once, and complete the object. If that fails, the server deletes the parts.

        Args:
            source: The stream. Each of its bytes is read once.
            size: Number of bytes to read.
            slots: Number of parts that may be in memory. Several uploads share it.
            threads: Largest number of parts that are sent at the same time.
            on_bytes: Callback with the number of bytes of each part that is sent, and with 0 for one that is read.

        Raises:
            OSError: The stream has fewer bytes.
            Exception: What minio-py and urllib3 raise.
        """
        if not has_parts:
            stream = _Observed(source, self._note, on_bytes)
            self._client.put_object(self._bucket, self._key, stream, size, self._type, part_size=part_bytes(size))
            return
        headers = {"Content-Type": self._type}
        identity = begin_upload(self._client, self._bucket, self._key, headers)
        try:
            self.send_parts(identity, source, size, slots, threads, on_bytes)
            parts = sorted(self._parts, key=lambda part: part.part_number)
            self._client._complete_multipart_upload(self._bucket, self._key, identity, parts)
        except BaseException:
            with suppress(MinioException, HTTPError):  # The first error has the cause.
                self._client._abort_multipart_upload(self._bucket, self._key, identity)
            raise

    def entry(self, path: str) -> FileEntry:
        """Return size and SHA-256 of what was sent under the name `path`."""
        return FileEntry(path, self._size, self._digest.hexdigest())

    def send_parts(
        self, identity: str, source: BinaryIO, size: int, slots: BoundedSemaphore, threads: int, on_bytes: OnBytes
    ) -> None:
        """Send the parts of an upload, see `send`."""

        def send(number: int, data: bytes) -> int:
            try:
                etag = self._client._upload_part(self._bucket, self._key, data, None, identity, number)
                self._parts.append(Part(number, etag))
                return len(data)
            finally:
                slots.release()

        sending: set[Future[int]] = set()
        with ThreadPoolExecutor(threads) as pool:
            for number, start in enumerate(range(0, size, part_bytes(size)), 1):
                slots.acquire()
                try:
                    data = self._read(source, min(part_bytes(size), size - start))
                    future = pool.submit(send, number, data)
                except BaseException:
                    slots.release()
                    raise
                on_bytes(0)
                # A part that has failed ends the upload before the next one is read.
                done, sending = wait({*sending, future}, 0 if len(sending) + 1 < threads else None, FIRST_COMPLETED)
                _count(done, on_bytes)
            _count(sending, on_bytes)

    def _read(self, source: BinaryIO, size: int) -> bytes:
        data = source.read(size)
        if len(data) != size:
            raise OSError(f"the file has become shorter while it was uploaded: {size - len(data)} bytes are missing")
        self._note(data)
        return data

    def _note(self, data: bytes) -> None:
        self._digest.update(data)
        self._size += len(data)


class _Observed:
    """A stream that calls functions with what is read from it."""

    def __init__(self, source: BinaryIO, note: Callable[[bytes], None], on_bytes: OnBytes) -> None:
        self._source, self._note, self._on_bytes = source, note, on_bytes

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data = self._source.read(size)
        self._note(data)
        self._on_bytes(len(data))
        return data


def _count(sent: Iterable[Future[int]], on_bytes: OnBytes) -> None:
    for future in sent:
        on_bytes(future.result())
