"""Client of the Kubernetes API for plain JSON: requests with retries, and streams of lines."""

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from urllib3 import BaseHTTPResponse, Timeout
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError

from kfp_distributed.cluster_api.kubernetes_internals import SocketOption, connections, set_socket_options

if TYPE_CHECKING:
    from kubernetes import client


from kfp_distributed.cluster_api.objects import Object

AWAY_SECONDS = 60.0
"""Seconds during which a request is retried while the API server does not answer or returns a transient error."""

PAGE_SIZE = 500
"""Number of objects that one response of a list has at most, as for kubectl and client-go. A pod has some 10 KB, so a
page has some 5 MB, and the list of a job with 1000 pods takes two requests."""

WATCH_SECONDS = 60
"""Seconds after which the server ends a watch, which is then resumed. A watch that is silent for longer is broken."""

LATE_SECONDS = 15.0
"""Seconds after `WATCH_SECONDS` within which the end of a watch arrives from a server that is there."""

LOG_CONNECTIONS = 128
"""Maximum number of connections, and of threads, that read the logs of a job.

Each costs 0.2 MiB. With 1,000 replicas of 1,000 lines, the step had a peak of 135 MiB with 32 connections, 164 with
128, 254 with 512 and 342 with 1,000. Processor time was the same (17 to 19 s). With 128, most jobs have a connection
for each log, and 100 logs per second are read even if each response takes more than a second."""

TRANSIENT = (429, 500, 502, 503, 504)
"""Status codes after which a request is retried."""

_LONGEST_DELAY = 5.0


class ClusterError(Exception):
    """The API server refused a request, or did not answer.

    Attributes:
        status: HTTP status; 0 if there was no answer.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Listing(NamedTuple):
    """The objects of a collection at one time.

    Attributes:
        items: The objects. The API server leaves out their kind and apiVersion.
        version: Resource version of the list, from which a watch continues.
    """

    items: list[Object]
    version: str


class WatchEvent(NamedTuple):
    """An event of a watch.

    Attributes:
        change: "ADDED", "MODIFIED" or "DELETED"; "BOOKMARK" if only the resource version has advanced.
        object: The object; its last state if it was deleted.
        version: Resource version from which the watch is resumed.
    """

    change: str
    object: Object
    version: str


class ByteStream:
    """Content of a response, chunk by chunk."""

    def __init__(self, response: BaseHTTPResponse) -> None:
        """Create a stream.

        Args:
            response: The response, of which only the headers are read.
        """
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        """Yield the chunks as they arrive, until the response ends. If the caller stops early, the connection closes.

        Raises:
            ClusterError: The connection broke or was interrupted, or no data arrived for `idle_seconds`.
        """
        try:
            yield from self._response.stream(64 * 1024)
        except (HTTPError, OSError) as error:
            raise ClusterError(0, str(error)) from None
        finally:
            self._response.close()

    def close(self) -> None:
        """Close the connection, unless the response has ended."""
        self._response.close()

    def interrupt(self) -> None:
        """Break the connection. Any thread may call it while another one waits for the next chunk."""
        # A response that has just ended has no connection any more.
        with suppress(ValueError, RuntimeError, OSError):
            self._response.shutdown()


class ClusterApi:
    """Connection to one API server with one account. Thread-safe.

    Attributes:
        namespace: Namespace of the configuration. Default: "default".
        configuration: Address and account, for a client of one's own.
    """

    def __init__(
        self, configuration: "client.Configuration", namespace: str, renew_token: Callable[[str], bool] | None = None
    ) -> None:
        """Create a client without sending a request.

        Args:
            configuration: Address and account.
            namespace: Namespace to use.
            renew_token: Called with a token that the API server refused with 401. If it returns True, the request is
                repeated once with the configuration's new token. Default: none, the request fails.
        """
        # Imported here, because importing the package takes half a second and a local run does not need it.
        from kubernetes import client
        from kubernetes.config import ConfigException

        # A smaller pool would discard connections with a warning. Besides logs, a job has up to four watches.
        configuration.connection_pool_maxsize = LOG_CONNECTIONS + 16
        self._client = client.ApiClient(configuration)
        # A stream occupies its connection. Streams have their own pool, so that a cancel finds an open connection.
        self._streams = client.ApiClient(configuration)
        set_socket_options(self._streams, _stream_options())
        self._local_errors = (OSError, ConfigException)
        self.namespace, self.configuration = namespace, configuration
        self._renew_token = renew_token

    def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        away_seconds: float = AWAY_SECONDS,
        timeout_seconds: float = 30.0,
        *,
        apart: bool = False,
    ) -> Object:
        """Send a request, retry it while the server is away, and return the response.

        Args:
            method: HTTP method.
            path: Path of the object or collection.
            body: Object to send. Default: none.
            query: Query parameters. Default: none.
            away_seconds: Seconds during which the request is retried. Default: 60.
            timeout_seconds: Timeout of each attempt. Default: 30.
            apart: Whether to use a connection of the streams, for a request that may be slow and that must not occupy
                the connection that a cancel needs. Default: False.

        Raises:
            ClusterError: The request was refused, or there was no response in time.
        """
        deadline, delay = time.monotonic() + away_seconds, 0.2
        while True:
            try:
                response = self._send(method, path, body, query, timeout_seconds, preload=True, apart=apart)
                answer: Object = json.loads(response.data)
                return answer
            except ValueError:
                host = self._client.configuration.host
                raise ClusterError(0, f"{host} is not an API server: its response is not JSON") from None
            except ClusterError as error:
                is_transient = error.status in (0, *TRANSIENT) and "CERTIFICATE_VERIFY_FAILED" not in str(error)
                if not is_transient or time.monotonic() + delay > deadline:
                    raise
            time.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    def read(self, path: str, away_seconds: float = AWAY_SECONDS) -> Object | None:
        """Return the object at a path; None if it does not exist.

        Args:
            path: Path of the object.
            away_seconds: Seconds during which the request is retried. Default: 60.

        Raises:
            ClusterError: The request was refused, or there was no response in time.
        """
        try:
            return self.call("GET", path, away_seconds=away_seconds)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def list_objects(
        self, path: str, query: Mapping[str, str] | None = None, away_seconds: float = AWAY_SECONDS
    ) -> Listing:
        """Return the objects of a collection, which are read in pages of `PAGE_SIZE`.

        If the API server no longer has the state that the first page shows, the list starts again, without pages. A
        list without pages cannot expire.

        Args:
            path: Path of the collection.
            query: Selectors. Default: none, all objects.
            away_seconds: Seconds during which the request of each page is retried. Default: 60.

        Raises:
            ClusterError: A request was refused, or there was no response in time.
        """
        selectors = dict(query or {})
        pages = {"limit": str(PAGE_SIZE)}
        items: list[Object] = []
        while True:
            try:
                page = self.call("GET", path, query=selectors | pages, away_seconds=away_seconds)
                items += page["items"]
                metadata = page["metadata"]
                if not metadata.get("continue"):
                    return Listing(items, metadata["resourceVersion"])
                pages["continue"] = metadata["continue"]
            except ClusterError as error:
                if error.status != 410 or "continue" not in pages:
                    raise
                items, pages = [], {}
            except (KeyError, TypeError):
                host = self._client.configuration.host
                raise ClusterError(0, f"{host} is not an API server: its response is not a list of objects") from None

    def watch(
        self,
        path: str,
        query: Mapping[str, str],
        version: str,
        seconds: int = WATCH_SECONDS,
        late_seconds: float = LATE_SECONDS,
    ) -> Iterator[WatchEvent]:
        """Yield the events of a collection as they arrive, until the server ends the watch.

        Args:
            path: Path of the collection.
            query: Selectors.
            version: Resource version after which the events begin.
            seconds: Seconds after which the server ends the watch. Default: 60.
            late_seconds: Seconds after which the end of the watch is overdue, and the watch counts as broken. Default:
                15.

        Raises:
            ClusterError: The request was refused or the connection broke. The status is 410 if the objects must be
                listed again.
        """
        watch = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        for line in self.lines(path, {**query, **watch}, seconds + late_seconds):
            try:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    # Usually 410 Gone: the resource version is too old.
                    raise ClusterError(410, "the watch has expired")
                item = event["object"]
                yield WatchEvent(event["type"], item, item["metadata"]["resourceVersion"])
            except (ValueError, KeyError, TypeError):  # A truncated line, or the response of a gateway.
                raise ClusterError(0, "the response is not a watch event") from None

    def lines(self, path: str, query: Mapping[str, str], idle_seconds: float) -> Iterator[str]:
        """Yield the lines of a response as they arrive. See `stream` and `ByteStream` for the arguments and errors."""
        parts: list[bytes] = []
        for data in self.stream(path, query, idle_seconds):
            first, *others = data.split(b"\n")
            parts.append(first)
            for other in others:
                yield b"".join(parts).decode(errors="replace")
                parts = [other]
        if any(parts):
            yield b"".join(parts).decode(errors="replace")

    def stream(self, path: str, query: Mapping[str, str], idle_seconds: float) -> "ByteStream":
        """Request a response and return it before its content has arrived.

        Args:
            path: Path of the object or collection.
            query: Query parameters.
            idle_seconds: Seconds without data after which the connection counts as broken.

        Raises:
            ClusterError: The request was refused, or there was no response for `idle_seconds`.
        """
        return ByteStream(self._send("GET", path, None, query, idle_seconds, preload=False, apart=True))

    def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Mapping[str, str] | None,
        timeout_seconds: float,
        *,
        preload: bool,
        apart: bool,
    ) -> BaseHTTPResponse:
        """Send a request; repeat it once if the API server refuses the token and there is a new one."""
        response, token = self._send_once(method, path, body, query, timeout_seconds, preload=preload, apart=apart)
        if response.status == 401 and self._renew_token and self._renew_token(token):
            response.close()
            response, _ = self._send_once(method, path, body, query, timeout_seconds, preload=preload, apart=apart)
        if response.status >= 300:
            raise ClusterError(response.status, _message(response))
        return response

    def _send_once(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Mapping[str, str] | None,
        timeout_seconds: float,
        *,
        preload: bool,
        apart: bool,
    ) -> tuple[BaseHTTPResponse, str]:
        """Send a request; return the response and the token that was sent."""
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json, */*", "Content-Type": content_type}
        host = self._client.configuration.host
        try:
            # Reads a renewed token, too. The token file may be missing or empty while it is replaced.
            self._client.update_params_for_auth(headers, [], ["BearerToken"])
            response: BaseHTTPResponse = connections(self._streams if apart else self._client).request(
                method,
                f"{host}{path}{_query_text(query)}",
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=Timeout(connect=min(timeout_seconds, 5.0), read=timeout_seconds),
                retries=False,
                preload_content=preload,
            )
        except HTTPError as error:
            raise ClusterError(0, f"the API server {host} does not answer: {error}") from None
        except self._local_errors as error:  # For example too many open files.
            raise ClusterError(0, f"cannot send a request to the API server {host}: {error}") from None
        return response, headers.get("authorization", "").removeprefix("Bearer ")


def _stream_options() -> list[SocketOption]:
    """Return the socket options with which the kernel ends a stream whose peer is gone without closing it."""
    options = [*HTTPConnection.default_socket_options, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    # Not all systems have all three. Their own values then apply, such as the two hours of macOS before the first.
    values = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
    options += [
        (socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in values.items() if hasattr(socket, name)
    ]
    return options


def _query_text(query: Mapping[str, str] | None) -> str:
    return f"?{urlencode(query)}" if query else ""


def _message(response: BaseHTTPResponse) -> str:
    """Return the error message of a response."""
    try:
        return str(json.loads(response.data)["message"])
    except (ValueError, KeyError, TypeError, HTTPError):
        return f"the API server responded with {response.status} {response.reason}"
