"""An entry of the log of a `train` step, whose lines have the form `TIME LEVEL REPLICA MESSAGE`."""

import time
from functools import lru_cache
from typing import NamedTuple

from kfp_distributed.components.train.run.facts import Level

JOB = "job"
"""The name in place of a replica's, in the lines of the step itself."""

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
"""Form of the time without a fraction and the "Z" of UTC."""


class LogEntry(NamedTuple):
    """An entry of the log. `str()` returns its line, or several where the message has several.

    Attributes:
        time: Seconds since 1970. The line has whole seconds.
        level: Severity. What a replica prints is INFO.
        replica: Name of the replica that printed the message, such as "worker-0"; JOB for the step itself.
        message: The text.
    """

    time: float
    level: Level
    replica: str
    message: str

    def __str__(self) -> str:
        return _lines(f"{_format_time(int(self.time))}Z", self)


def precise_lines(entry: LogEntry) -> str:
    """Return the lines of an entry with microseconds."""
    seconds, microseconds = divmod(round(entry.time * 1e6), 10**6)
    return _lines(f"{_format_time(seconds)}.{microseconds:06d}Z", entry)


def _lines(time: str, entry: LogEntry) -> str:
    start = f"{time} {entry.level} {entry.replica}"
    if "\n" in entry.message:
        return "\n".join(f"{start} {line}".rstrip() for line in entry.message.split("\n"))
    return f"{start} {entry.message}" if entry.message else start


@lru_cache(maxsize=64)
def _format_time(seconds: int) -> str:
    """Return a time as RFC 3339 in UTC. Most lines of a busy job share their second."""
    return time.strftime(TIME_FORMAT, time.gmtime(seconds))
