"""Prints the lines of the log of a `train` step, and reads them again."""

import re
import time
from datetime import UTC, datetime

from kfp_distributed.components.train.run.facts import Level
from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, TIME_FORMAT, LogEntry

_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?P<fraction>\.\d{6})?Z "
    r"(?P<level>INFO|WARNING|ERROR) (?P<replica>job|[a-z]+-\d+)(?: (?P<message>.*))?",
    re.DOTALL,
)


def parse_line(line: str) -> LogEntry | None:
    """Parse a line of the log, with or without microseconds. Return None for a line of another form."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    try:
        moment = datetime.strptime(match["time"], TIME_FORMAT).replace(tzinfo=UTC)
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
