"""When the object stores last answered this process."""

import time
from collections.abc import Mapping
from typing import Any

from urllib3 import BaseHTTPResponse, PoolManager

TRANSIENT_STATUS = (429, 500, 502, 503, 504)
"""Statuses after which a request is retried.

Not only the store sends them: a gateway or a service mesh answers with one of them for a store that it does not reach.
"""

_last: dict[str, float] = {}
"""Time of the last answer by endpoint, by the monotonic clock."""


def note_answer(endpoint: str) -> None:
    """Note that the store of an endpoint, such as "http://store:9000", has answered now. Any thread may call it."""
    _last[endpoint] = time.monotonic()


def has_answered(endpoint: str) -> bool:
    """Return whether the store of an endpoint has answered this process."""
    return endpoint in _last


def seconds_since_answer() -> float | None:
    """Return the seconds since the last answer of any store; None if none has answered this process."""
    return time.monotonic() - max(_last.values()) if _last else None


class ObservedPool(PoolManager):
    """A pool of connections that notes each answer of the store: any status but the transient ones.

    Args:
        endpoint: URL of the store.
        copies: Settings of the requests by which the server copies an object, in place of those of the pool.
        settings: Settings of PoolManager.
    """

    def __init__(self, endpoint: str, copies: Mapping[str, Any], **settings: Any) -> None:  # noqa: ANN401
        super().__init__(**settings)
        self._endpoint, self._copies = endpoint, copies

    def urlopen(self, method: str, url: str, redirect: bool = True, **settings: Any) -> BaseHTTPResponse:  # type: ignore[override]  # noqa: ANN401
        """Send a request, as PoolManager does."""
        if "x-amz-copy-source" in (settings.get("headers") or ()):
            settings |= self._copies
        response = super().urlopen(method, url, redirect, **settings)
        if response.status not in TRANSIENT_STATUS:
            note_answer(self._endpoint)
        return response
