"""The Kubernetes API as plain JSON: requests that outlast a server which is away for a while, and streams of lines."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from urllib3 import BaseHTTPResponse, Timeout
from urllib3.exceptions import HTTPError

from kfp_distributed.components.train.runners.protocol import ClusterError
from kfp_distributed.storage.kfp_store import cluster_configuration

if TYPE_CHECKING:
    from kubernetes import client

Object = dict[str, Any]

AWAY_SECONDS = 60.0
"""How long a request is tried again while the API server does not answer, or answers that it cannot now."""

_TRANSIENT = (429, 500, 502, 503, 504)
_LONGEST_DELAY = 5.0


class ClusterApi:
    """A connection to one API server with one account. Threads may share it.

    Attributes:
        namespace: The namespace that the configuration names, by default "default".
    """

    def __init__(self, configuration: "client.Configuration", namespace: str) -> None:
        # The package takes half a second, which a local run does not need.
        from kubernetes import client
        from kubernetes.config import ConfigException

        # A follower of logs for each replica: a smaller pool would throw connections away and say so.
        configuration.connection_pool_maxsize = 1000
        self._client = client.ApiClient(configuration)
        # A stream keeps the connection that it takes. Requests have others, so that a cancel finds an open one.
        self._streams = client.ApiClient(configuration)
        self._local_errors = (OSError, ConfigException)
        self.namespace = namespace

    def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        away_seconds: float = AWAY_SECONDS,
        timeout_seconds: float = 30.0,
    ) -> Object:
        """Sends a request, again while the server is away, and returns what it answers.

        Raises:
            ClusterError: It was refused, or there was no answer in time.
        """
        until, delay = time.monotonic() + away_seconds, 0.2
        while True:
            try:
                response = self._send(method, path, body, query, timeout_seconds, preload=True)
                answer: Object = json.loads(response.data)
                return answer
            except ValueError:
                host = self._client.configuration.host
                raise ClusterError(0, f"{host} does not answer as an API server does, in JSON") from None
            except ClusterError as error:
                # A certificate does not become right by waiting.
                wrong = error.status not in (0, *_TRANSIENT) or "CERTIFICATE_VERIFY_FAILED" in str(error)
                if wrong or time.monotonic() + delay > until:
                    raise
            time.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    def read(self, path: str) -> Object | None:
        """What is at a path; None where nothing is.

        Raises:
            ClusterError: We may not read it, or there was no answer.
        """
        try:
            return self.call("GET", path)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def lines(self, path: str, query: Mapping[str, str], idle_seconds: float) -> Iterator[str]:
        """Yields the lines of an answer as they come; otherwise as `stream`."""
        parts: list[bytes] = []
        for data in self.stream(path, query, idle_seconds):
            first, *others = data.split(b"\n")
            parts.append(first)
            for other in others:
                yield b"".join(parts).decode(errors="replace")
                parts = [other]
        if any(parts):
            yield b"".join(parts).decode(errors="replace")

    def stream(self, path: str, query: Mapping[str, str], idle_seconds: float) -> Iterator[bytes]:
        """Yields an answer as it comes, and ends with it.

        Raises:
            ClusterError: The request was refused, the connection broke, or nothing came for `idle_seconds`.
        """
        response = self._send("GET", path, None, query, idle_seconds, preload=False)
        try:
            yield from response.stream(64 * 1024)
        except (HTTPError, OSError) as error:
            raise ClusterError(0, str(error)) from None
        finally:
            response.close()

    def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Mapping[str, str] | None,
        seconds: float,
        *,
        preload: bool,
    ) -> BaseHTTPResponse:
        patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json, */*", "Content-Type": patch}
        host = self._client.configuration.host
        try:
            # Reads a token that has been renewed, too. Its file may be missing or empty while it is replaced.
            self._client.update_params_for_auth(headers, [], ["BearerToken"])
            connections = (self._client if preload else self._streams).rest_client.pool_manager
            response: BaseHTTPResponse = connections.request(
                method,
                f"{host}{path}{_query_text(query)}",
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=Timeout(connect=min(seconds, 5.0), read=seconds),
                retries=False,
                preload_content=preload,
            )
        except HTTPError as error:
            raise ClusterError(0, f"the API server {host} does not answer: {error}") from None
        except self._local_errors as error:  # Such as too many open files.
            raise ClusterError(0, f"cannot ask the API server {host}: {error}") from None
        if response.status >= 300:
            raise ClusterError(response.status, _message(response))
        return response


def connect(namespace: str = "") -> ClusterApi:
    """Connects by the configuration of the pod or, outside of one, of KUBECONFIG.

    Args:
        namespace: Where to work; "" is the pod's own namespace or that of the configuration's context.

    Raises:
        ValueError: There is no configuration, or it is wrong.
    """
    configuration, own = cluster_configuration()
    return ClusterApi(configuration, namespace or own)


def install_advice(namespace: str) -> str:
    """Return what to do about a permission that a step lacks."""
    return f"run kfp-distributed install --namespace {namespace} (and --service-account, if it is not pipeline-runner)"


def _query_text(query: Mapping[str, str] | None) -> str:
    return f"?{urlencode(query)}" if query else ""


def _message(response: BaseHTTPResponse) -> str:
    """What the server says of a refusal, in words."""
    try:
        return str(json.loads(response.data)["message"])
    except (ValueError, KeyError, TypeError, HTTPError):
        return f"the API server answers {response.status} {response.reason}"
