"""Read the lines of a container's log, each exactly once, over connections that may break. Pure."""

import re
from datetime import datetime, timedelta

from kfp_distributed.components.train.runners.lines import LineCutter

# 2026-01-01T00:00:00.123456789Z, or with the time zone of the node; then a space and the line.
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+(Z|[+-]\d\d:\d\d) ")
# The kubelet sends these texts instead of the log if the container or its log file was deleted, as for an evicted pod.
_NO_LOG = b"unable to retrieve container logs", b"failed to try resolving"
_LONGEST_STAMP = 40
_DISORDER_SECONDS = 2


class LogReader:
    """Reads the log of one container over several connections.

    A new connection can only start at a whole second. Therefore the reader counts the lines of each of the latest
    seconds and skips as many lines when they are sent again. Lines of a rotated log file are not sent again. Timestamps
    may be out of order by up to `_DISORDER_SECONDS`: stdout and stderr get their timestamps separately, and a line of
    one may be written after a later line of the other.
    """

    def __init__(self) -> None:
        self._zone = self._newest = self._oldest = ""
        self._counts: dict[str, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._cutter = LineCutter()
        self._start = b""
        self._second = ""
        self._in_line = False
        self._skip: dict[str, int] = {}
        self._skipping = False

    def resume_query(self) -> dict[str, str]:
        """Return the query for the next connection. A line that was not complete is sent again."""
        self._begin()
        if not self._counts:
            return {}
        self._skip = dict(self._counts)
        return {"sinceTime": self._oldest + self._zone}

    def feed(self, data: bytes, now: float) -> list[str]:
        """Return the lines that `data` completes.

        Args:
            data: Bytes of the log; b"" at its end.
            now: Current time in seconds, for progress bars.
        """
        if not data:
            start, self._start = self._start, b""
            last_lines = self._cutter.feed(start, now) if start else []
            return [*last_lines, *self._cutter.feed(b"", now)]
        lines: list[str] = []
        data, self._start = self._start + data, b""
        at = 0
        while at < len(data):
            end = data.find(b"\n", at) + 1
            if not self._in_line:
                if not end and len(data) - at < _LONGEST_STAMP and not _STAMP.match(data, at):
                    self._start = data[at:]
                    break
                at = self._read_stamp(data, at)
                self._in_line = True
            part = data[at : end or None]
            if part and not self._skipping:
                lines += self._cutter.feed(part, now)
            self._in_line = not end
            if end:
                self._count()
            at += len(part)
        return lines

    def _read_stamp(self, data: bytes, at: int) -> int:
        """Read the timestamp of a line and return its end. A line without a timestamp comes from the kubelet."""
        stamp = _STAMP.match(data, at)
        self._skipping, self._second = data.startswith(_NO_LOG, at), ""
        if not stamp:
            return at
        self._second, self._zone = stamp[1].decode(), stamp[2].decode()
        if left := self._skip.get(self._second):
            self._skipping, self._skip[self._second] = True, left - 1
        return stamp.end()

    def _count(self) -> None:
        """Count a line that was read completely."""
        if self._skipping or not self._second:
            return
        if self._second > self._newest:
            newest = datetime.fromisoformat(self._second)
            self._newest = self._second
            self._oldest = (newest - timedelta(seconds=_DISORDER_SECONDS)).isoformat()
            self._counts = {second: count for second, count in self._counts.items() if second >= self._oldest}
        if self._second >= self._oldest:
            self._counts[self._second] = self._counts.get(self._second, 0) + 1
