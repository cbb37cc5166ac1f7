"""The form of the lines in the log of a `train` step: `TIME LEVEL REPLICA MESSAGE`."""

import re
import time
from datetime import datetime, timezone
from functools import lru_cache
from typing import Literal, NamedTuple

Level = Literal["INFO", "WARNING", "ERROR"]

JOB = "job"
"""The name in place of a replica's, in the lines of the step itself."""

_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?P<fraction>\.\d{6})?Z "
    r"(?P<level>INFO|WARNING|ERROR) (?P<replica>job|[a-z]+-\d+)(?: (?P<message>.*))?",
    re.DOTALL,
)
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"


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


def parse_line(line: str) -> LogEntry | None:
    """Parse a line of the log, with or without microseconds. Return None for a line of another form."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    try:
        moment = datetime.strptime(match["time"], _TIME_FORMAT).replace(tzinfo=timezone.utc)
    except ValueError:  # Such as month 13.
        return None
    level: Level = match["level"]  # type: ignore[assignment]  # The pattern has these three.
    return LogEntry(moment.timestamp() + float(match["fraction"] or 0), level, match["replica"], match["message"] or "")


def print_entry(entry: LogEntry) -> None:
    """Print an entry. Threads may do so at the same time."""
    # In one write: print() would write the line end separately, and another thread could print between the two.
    print(f"{entry}\n", end="", flush=True)


def log(level: Level, message: str) -> None:
    """Print a line of the step itself."""
    print_entry(LogEntry(time.time(), level, JOB, message))


def error_lines(text: str) -> str:
    """Return a text as lines of level ERROR. Lines that have the form of the log already stay as they are."""
    now = time.time()
    return "\n".join(line if parse_line(line) else str(LogEntry(now, "ERROR", JOB, line)) for line in text.split("\n"))


@lru_cache(maxsize=64)
def _format_time(seconds: int) -> str:
    """Return a time as RFC 3339 in UTC. Most lines of a busy job share their second."""
    return time.strftime(_TIME_FORMAT, time.gmtime(seconds))
