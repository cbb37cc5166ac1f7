"""A container's log as the API server sends it -> its lines, each once, however often the connection breaks. Pure."""

import re
from datetime import datetime, timedelta

from kfp_distributed.components.train.runners.lines import LineCutter

# 2026-01-01T00:00:00.123456789Z, or with the zone of the node; then one space and the line.
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+(Z|[+-]\d\d:\d\d) ")
# What comes in place of the log of a container that is gone, or whose file is, as of an evicted pod.
_NO_LOG = b"unable to retrieve container logs", b"failed to try resolving"
_LONGEST_STAMP = 40
_DISORDER_SECONDS = 2


class LogReader:
    """Reads one container's log over several connections.

    A connection can be asked for the lines from some second on. So those of each of the newest seconds are counted, and
    as many are passed over when they come again; those of a file that the kubelet has put away do not. Times need not
    be in order: a container's two outputs have clocks of their own, and the line of one may be written after a later
    one of the other.
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
        self._skip: dict[str, int] = {}
        self._skipping = False

    def place(self) -> dict[str, str]:
        """Returns what to ask the next connection for; all that was begun on the last one comes again."""
        self._begin()
        if not self._told:
            return {}
        self._skip = dict(self._told)
        return {"sinceTime": self._oldest + self._zone}

    def feed(self, data: bytes, now: float) -> list[str]:
        """Returns the lines that `data` completes; b"" is the end. `now`, in seconds, is for progress bars."""
        if not data:
            begun, self._start = self._start, b""
            last = self._cutter.feed(begun, now) if begun else []
            return [*last, *self._cutter.feed(b"", now)]
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
        """Takes the time at a line's start; a line without one is the kubelet's own. Returns where it ends."""
        found = _STAMP.match(data, at)
        self._skipping, self._second = data.startswith(_NO_LOG, at), ""
        if not found:
            return at
        self._second, self._zone = found[1].decode(), found[2].decode()
        if left := self._skip.get(self._second):
            self._skipping, self._skip[self._second] = True, left - 1
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
