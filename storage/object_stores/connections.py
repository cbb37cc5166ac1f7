"""Connections to an object store."""

import http.client
import ssl
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from queue import Empty, Full, LifoQueue
from typing import Any
from urllib.parse import urlsplit

from urllib3 import BaseHTTPResponse, HTTPHeaderDict, HTTPResponse, PoolManager, Retry, Timeout

from kfp_distributed.storage.answers import has_answered, note_answer

TRANSIENT_STATUS = (429, 500, 502, 503, 504)
"""Statuses after which a request is retried.

Not only the store sends them: a gateway or a service mesh answers with one of them for a store that it does not reach.
"""

_ServerConnections = LifoQueue[http.client.HTTPConnection]


@dataclass(frozen=True)
class RequestLimits:
    """How long and how often a request is tried.

    Attributes:
        read_seconds: Longest time in seconds without data.
        retries: How urllib3 retries the request.
    """

    read_seconds: float
    retries: Retry


class ConnectionPool(PoolManager):
    """A pool of connections for minio-py, which notes each answer of the store: any status but the transient ones.

    A PUT request, which sends or copies an object, is tried once by the standard library. That takes half the processor
    time of urllib3 and minio-py for a small object. What fails by this is sent again by urllib3, with its retries. So
    the answers and errors are those of urllib3.

    Args:
        endpoint: URL of the store.
        connections: Largest number of idle connections to keep.
        connect_seconds: Timeout of a connection in seconds, with the TLS handshake.
        ca_certs: A PEM file with the certificate authorities to trust.
        usual: RequestLimits of all requests but copies.
        copies: RequestLimits of the requests by which the server copies an object.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        connections: int,
        connect_seconds: float,
        ca_certs: str,
        usual: RequestLimits,
        copies: RequestLimits,
    ) -> None:
        timeout = Timeout(connect=connect_seconds, read=usual.read_seconds)
        super().__init__(maxsize=connections, timeout=timeout, ca_certs=ca_certs, retries=usual.retries)
        self._endpoint, self._connect_seconds, self._copies = endpoint, connect_seconds, copies
        self._read_seconds = usual.read_seconds
        self._idle: dict[str, _ServerConnections] = {}
        weakref.finalize(self, _close, self._idle)

    def urlopen(self, method: str, url: str, redirect: bool = True, **settings: Any) -> BaseHTTPResponse:  # type: ignore[override]  # noqa: ANN401
        """Send a request, as PoolManager does."""
        # A wrong address or certificate is left to urllib3: only the first requests can find it.
        is_tried = method == "PUT" and has_answered(self._endpoint)
        headers, read_seconds = settings.get("headers") or {}, self._read_seconds
        if "x-amz-copy-source" in headers:
            read_seconds = self._copies.read_seconds
            settings |= {
                "timeout": Timeout(connect=self._connect_seconds, read=read_seconds),
                "retries": self._copies.retries,
            }
        response = self._try(url, settings["body"], headers, read_seconds) if is_tried else None
        response = response or super().urlopen(method, url, redirect, **settings)
        if response.status not in TRANSIENT_STATUS:
            note_answer(self._endpoint)
        return response

    def _try(
        self, url: str, body: bytes | None, headers: Mapping[str, str], read_seconds: float
    ) -> BaseHTTPResponse | None:
        """Send a PUT request once. Return None if urllib3 must send it again: to retry it or to follow a redirect."""
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        try:
            with self._connection(parts.netloc, read_seconds) as connection:
                connection.request("PUT", target, body, dict(headers))
                with connection.getresponse() as answer:
                    content = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        if answer.status in TRANSIENT_STATUS or 300 <= answer.status < 400:
            return None
        received = HTTPHeaderDict(answer.headers.items())
        return HTTPResponse(BytesIO(content), received, answer.status, reason=answer.reason, request_method="PUT")

    @contextmanager
    def _connection(self, server: str, read_seconds: float) -> Iterator[http.client.HTTPConnection]:
        """Lend a connection, which is kept for later requests if the block succeeds, and closed if it raises."""
        idle = self._idle.setdefault(server, LifoQueue(self.connection_pool_kw["maxsize"]))
        try:
            connection = idle.get_nowait()
        except Empty:
            connection = self._connect(server)
        try:
            connection.sock.settimeout(read_seconds)
            yield connection
            if connection.sock:  # The server has not asked to close it.
                idle.put_nowait(connection)
        except Full:
            connection.close()
        except BaseException:
            connection.close()
            raise

    def _connect(self, server: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(server, timeout=self._connect_seconds)
        if self._endpoint.startswith("https:"):
            connection = http.client.HTTPSConnection(server, timeout=self._connect_seconds, context=self._context)
        connection.connect()
        return connection

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.connection_pool_kw["ca_certs"])


def _close(idle: Mapping[str, _ServerConnections]) -> None:
    for connections in idle.values():
        while not connections.empty():
            connections.get_nowait().close()
