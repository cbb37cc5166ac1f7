"""An S3 bucket, or a key prefix in one, as a store."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO
from xml.etree.ElementTree import ParseError

import certifi
from minio import Minio
from minio.commonconfig import CopySource
from minio.deleteobjects import DeleteObject
from minio.error import MinioException
from urllib3 import PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError, NewConnectionError, ProtocolError, TimeoutError

from kfp_distributed.storage.credentials import Credentials
from kfp_distributed.storage.errors import KeyNotFound, StorageError
from kfp_distributed.storage.files import FileEntry, hash_stream
from kfp_distributed.storage.store import BYTES, PARALLEL_TRANSFERS, Entry, Store
from kfp_distributed.storage.uri import parse_uri

# By what is found in an error's code or text; the first that fits.
_ADVICE = {
    "NoSuchKey": "there is no such object",
    "NoSuchBucket": "there is no such bucket, create it or correct its name",
    "Inval.*Key|Signature|AccessDenied": "the server refuses the account, check AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY or their Secret, and what it may do",
    "resolve|refused|timed out": "the server does not answer, check AWS_ENDPOINT_URL and that it runs",
    "HeaderMalformed|PermanentRedirect": "the bucket is in another region, set AWS_REGION to {region}",
    "Skewed": "the server refuses this machine's time, set its clock",
    "SlowDown|too many [0-9]+ error": "the server is starting or overloaded, try again later",
    "mismatch": "the server's certificate is for another host, check AWS_ENDPOINT_URL",
    "CERTIFICATE": "the server is not trusted, set AWS_CA_BUNDLE to a PEM file with its certificate authority",
    "SSLError": "the server speaks no TLS, begin AWS_ENDPOINT_URL with http://",
    "HTTPS server": "the server speaks TLS, begin AWS_ENDPOINT_URL with https://",
    "ParseError|non-XML": "that is no object store's answer, check AWS_ENDPOINT_URL",
}

# Accounts that may only read a bucket of others often lack this right.
_REGION_ADVICE = (
    "the server refuses the account: set AWS_REGION to the bucket's region, without which the account needs the right "
    "s3:GetBucketLocation; else check AWS_ACCESS_KEY_ID and what it may do"
)
# It covers the TLS handshake, for which a loaded gateway takes seconds.
_CONNECT_SECONDS = 10.0
# Between two attempts to get a first answer.
_PAUSE_SECONDS = 0.5


class S3Store(Store):
    """Objects in a bucket of an S3 server.

    Args:
        uri: s3://bucket/prefix.
        credentials: The server and the account.
        retry_seconds: For about how long a request is repeated that fails for a passing reason: refused, reset or cut
            connections, timeouts, and what a server or a load balancer answers while it starts, is full or goes away.
            A certificate that cannot be trusted is no such reason.
    """

    def __init__(self, uri: str, credentials: Credentials, retry_seconds: float = 60) -> None:
        location = parse_uri(uri)
        self.uri, self.bucket, self.root = uri, location.bucket, location.key
        self.credentials = who = credentials
        self.endpoint = f"http{'s' * who.secure}://{who.endpoint}"
        retries = Retry(
            # The pauses are 0, 0.4, 0.8, 1.6, 3.2, 6.4, then 8 s each; the short ones a little longer by chance.
            total=int(min(2 * retry_seconds, 5) + retry_seconds / 8),
            other=0,  # What is neither a connection nor an answer: TLS.
            allowed_methods=None,
            status_forcelist=(429, 500, 502, 503, 504),
            backoff_factor=0.2,
            backoff_max=8,
            backoff_jitter=0.5,
            respect_retry_after_header=False,
        )
        self._pool = PoolManager(
            retries=retries,
            maxsize=PARALLEL_TRANSFERS,
            # The read timeout is the longest silence; a copy inside a server is silent until it is done.
            timeout=Timeout(connect=_CONNECT_SECONDS, read=min(60, 10 + 2 * retry_seconds)),
            ca_certs=who.ca_bundle or certifi.where(),
        )
        # Only AWS is asked for a bucket's region; others have this one, or none. Its other endpoints name the region.
        self._asks_for_region = not who.region and who.endpoint == "s3.amazonaws.com"
        region = who.region or (None if who.endpoint.endswith(".amazonaws.com") else "us-east-1")
        self._client = Minio(
            who.endpoint, who.access_key, who.secret_key, who.session_token or None, who.secure, region, self._pool
        )

    def await_answer(self, seconds: float) -> None:
        """Wait until the server answers a request without an account, whatever the answer is.

        Who reads a store first may learn so that nothing answers at its address, long before the retries of a download
        end.

        Args:
            seconds: The longest wait, in total.

        Raises:
            StorageError: The server does not answer, or cannot be trusted.
        """
        until = time.monotonic() + seconds
        with self._errors(""):
            while True:
                timeout = Timeout(total=max(0.1, until - time.monotonic()))
                try:
                    self._pool.request("HEAD", f"{self.endpoint}/", retries=False, redirect=False, timeout=timeout)
                    return
                except (TimeoutError, NewConnectionError, ProtocolError):
                    if time.monotonic() + _PAUSE_SECONDS > until:
                        raise
                time.sleep(_PAUSE_SECONDS)

    def list(self, prefix: str = "") -> list[Entry]:
        """See Store."""
        start = f"{self.root}/" if self.root else ""
        with self._errors(prefix):
            found = self._client.list_objects(self.bucket, start + prefix, recursive=True)
            # A key that ends with a slash is what some tools leave in the place of a folder.
            return sorted(Entry(e.object_name[len(start) :], e.size) for e in found if not e.object_name.endswith("/"))

    def exists(self, key: str) -> bool:
        """See Store."""
        try:
            with self._errors(key):
                self._client.stat_object(self.bucket, self._key(key))
        except KeyNotFound:
            return False
        return True

    def copy(self, source: Store, source_key: str, key: str) -> None:
        """See Store."""
        if not isinstance(source, S3Store) or source.credentials != self.credentials:
            return super().copy(source, source_key, key)
        try:
            with self._errors(key):
                origin = CopySource(source.bucket, source._key(source_key))
                self._client.copy_object(self.bucket, self._key(key), origin)
        except KeyNotFound as error:
            raise source._error(source_key, error.cause, KeyNotFound) from None

    def delete(self, keys: Iterable[str]) -> None:
        """See Store."""
        with self._errors(""):
            for error in self._client.remove_objects(self.bucket, [DeleteObject(self._key(key)) for key in keys]):
                raise MinioException(f"{error.name}: {error.code}: {error.message}")

    def make_bucket(self) -> None:
        """See Store."""
        with self._errors(""):
            try:
                if not self._client.bucket_exists(self.bucket):
                    self._client.make_bucket(self.bucket)
            except MinioException as error:
                if "BucketAlready" not in str(error):  # Otherwise somebody else was faster.
                    raise

    def _fetch(self, key: str, target: BinaryIO) -> FileEntry:
        with self._errors(key):
            for left in (3, 2, 1, 0):
                target.seek(0)
                target.truncate()
                try:
                    with self._client.get_object(self.bucket, self._key(key)) as answer:
                        found = hash_stream(answer, key, target)
                        break
                except (ProtocolError, TimeoutError):  # An answer that is cut is no request that could be repeated.
                    if not left:
                        raise
        return found

    def _send(self, key: str, source: BinaryIO, content_type: str = BYTES) -> FileEntry:
        source.seek(0)
        entry = hash_stream(source, key)
        source.seek(0)
        # One request, or a multipart upload that minio-py aborts where it fails: nothing is visible before the end.
        # A part is in memory while it is sent; S3 takes at most 10,000.
        part = (8 << 20) + entry.size // 10_000
        with self._errors(key):
            self._client.put_object(
                self.bucket, self._key(key), source, entry.size, content_type, part_size=part, num_parallel_uploads=1
            )
        return entry

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except (MinioException, HTTPError, OSError, ValueError, ParseError) as error:
            cause = _explain(error, self._asks_for_region)
            raise self._error(key, cause, KeyNotFound if "NoSuchKey" in cause else StorageError) from None


def _explain(error: Exception, asks_for_region: bool = False) -> str:
    """What went wrong and what to do, in one line.

    Args:
        error: What a request raised.
        asks_for_region: Whether AWS was asked for the bucket's region first.
    """
    reason = getattr(error, "reason", error)
    # An answer that is no S3 answer comes with its whole body, which may be a long web page.
    text = " ".join(f"{type(reason).__name__}: {reason}".split())[:500]
    # rclone calls its errors text/xml, so that minio-py leaves them unread.
    code = "".join(re.findall(r"(?:<Code>|; code: )(\w+)", text)[:1])
    if asks_for_region and "AccessDenied" in text:
        return f"{_REGION_ADVICE} (AccessDenied)"
    region = re.search(r"(?:expecting '|use region )([a-z0-9-]+)", text)
    for pattern, advice in _ADVICE.items():
        if re.search(pattern, code or text):
            return f"{advice.format(region=region[1] if region else 'its region')} ({code or text})"
    return text
