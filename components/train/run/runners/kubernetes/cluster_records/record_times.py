"""Times in records of the cluster: objects of the API server, and logs of its nodes. Pure."""

from datetime import datetime, timedelta

_RESOLUTION_SECONDS = 2.0
"""Records of objects have whole seconds, and clocks of nodes differ by some tenths of a second.

The clock of this process is more exact for what it reads at once.
"""

CLOCK_TOLERANCE = timedelta(seconds=2)
"""Times of the API server and an operator that differ by less have no known order: each is in whole seconds of an own
clock."""


def parse_time(text: str) -> datetime:
    """Return the time in a field of an object, such as "2026-01-01T00:00:00Z", with or without fraction."""
    return datetime.fromisoformat(text)


def seconds_of(text: str | None) -> float | None:
    """Return the time in a field of an object in seconds since 1970; None if the object does not have the field."""
    return parse_time(text).timestamp() if text else None


def happened_before(recorded: float | None, read: float) -> float | None:
    """Return when something happened, for a fact that was read later.

    Args:
        recorded: Time in a record of an object, in seconds since 1970; None if it has none.
        read: Time of this process when it has read the record.

    Returns:
        None if the time of this process is as exact. That is so for records that are at most 2 s old, and for those of
        a clock that is ahead of this process.
    """
    return None if recorded is None or recorded > read - _RESOLUTION_SECONDS else recorded
