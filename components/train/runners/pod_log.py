"""A container's log as the API server sends it -> its lines, each once, however often the connection breaks. Pure."""

import re
from datetime import datetime, timedelta

from kfp_distributed.components.train.runners.lines import LineCutter

# 2026-01-01T00:00:00.123456789Z, or with the zone of the node; then one space and the line.
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+(Z|[+-]\d\d:\d\d) ")
# What comes in place of the log of a container that is gone, as of an evicted pod.
_NO_LOG = b"unable to retrieve container logs"
_LONGEST_STAMP = 40
_DISORDER_SECONDS = 2


class LogReader:
    """Reads one container's log over several connections.

    A connection can be asked for the lines from some second on. So those of the newest seconds are counted, and as many
    are passed over when they come again. Times need not be in order: a container's two outputs have clocks of their
    own, and the line of one may be written after a later one of the other.
    """

    def __init__(self) -> None:
        self._zone = self._newest = self._oldest = ""
        self._told: dict[str, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._cutter = LineCutter()
        self._start = b""
        self._second = ""
        self._in_line = False
        self._skip = 0
        self._skipping = False

    def place(self) -> dict[str, str]:
        """Returns what to ask the next connection for; all that was begun on the last one comes again."""
        self._begin()
        if not self._told:
            return {}
        self._skip = sum(self._told.values())
        return {"sinceTime": self._oldest + self._zone}

    def feed(self, data: bytes, now: float) -> list[str]:
        """Returns the lines that `data` completes; b"" is the end. `now`, in seconds, is for progress bars."""
        if not data:
            begun, self._start = self._start, b""
            last = self._cutter.feed(begun, now) if begun else []
            return [*last, *self._cutter.feed(b"", now)]
        lines: list[str] = []
        data, self._start = self._start + data, b""
        while data:
            if not self._in_line:
                if len(data) < _LONGEST_STAMP and b"\n" not in data and not _STAMP.match(data):
                    self._start = data
                    break
                data = data[self._read_stamp(data) :]
                self._in_line = True
            part, newline, data = data.partition(b"\n")
            if not self._skipping:
                lines += self._cutter.feed(part + newline, now) if part or newline else []
            self._in_line = not newline
            if newline:
                self._count()
        return lines

    def _read_stamp(self, data: bytes) -> int:
        """Takes the time at a line's start; a line without one is the kubelet's own. Returns its length."""
        found = _STAMP.match(data)
        self._skipping, self._second = data.startswith(_NO_LOG), ""
        if not found:
            return 0
        self._second, self._zone = found[1].decode(), found[2].decode()
        self._skipping = self._skip > 0 and self._second >= self._oldest
        self._skip -= self._skipping
        return found.end()

    def _count(self) -> None:
        """A line is whole, and will not be told again."""
        if self._skipping or not self._second:
            return
        if self._second > self._newest:
            newest = datetime.fromisoformat(self._second)
            self._newest = self._second
            self._oldest = (newest - timedelta(seconds=_DISORDER_SECONDS)).isoformat()
            self._told = {second: count for second, count in self._told.items() if second >= self._oldest}
        if self._second >= self._oldest:
            self._told[self._second] = self._told.get(self._second, 0) + 1
