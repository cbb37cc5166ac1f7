"""When the object stores last answered this process."""

import time

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
