"""The log of a container as the kubelet of Kubernetes 1.34 serves it, without a cluster."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

BEGIN = datetime(2026, 1, 1)


class Entry(NamedTuple):
    """A line of a log file, or a part of one (CRI tag P).

    Attributes:
        number: Number of the line.
        nanoseconds: Timestamp, since BEGIN.
        content: The text. Only that of the last part of a line ends with a line feed.
    """

    number: int
    nanoseconds: int
    content: bytes


class Connection:
    """A request for the log with `follow` and `timestamps`.

    It reads the file that was the newest when it began. At the end of a file that was rotated it goes on with the file
    that is the newest then. A timestamp precedes the first part of a line only. Entries before `sinceTime` are left
    out, also if the line that they are a part of goes on.
    """

    def __init__(self, kubelet, query):
        self._kubelet, self._file, self._next, self._in_line = kubelet, len(kubelet.files) - 1, 0, False
        self._since = -1
        if text := query.get("sinceTime", ""):
            since = datetime.fromisoformat(text).astimezone(UTC)
            self._since = round((since.replace(tzinfo=None) - BEGIN).total_seconds()) * 10**9

    def read(self):
        """Return (number of the line, bytes) of the entries that were not read before."""
        sent = []
        while True:
            file = self._kubelet.files[self._file]
            for entry in file[self._next :]:
                stamp = b"" if self._in_line else self._kubelet.stamp(entry.nanoseconds)
                self._in_line = bool(entry.content) and not entry.content.endswith(b"\n")
                if entry.nanoseconds >= self._since:
                    sent.append((entry.number, stamp + entry.content))
            self._next = len(file)
            if self._file == len(self._kubelet.files) - 1:
                return sent
            self._file, self._next = len(self._kubelet.files) - 1, 0


class Kubelet:
    """The log files of a container. Only the newest is served to a new connection."""

    def __init__(self, zone="Z"):
        self.files, self._zone = [[]], zone

    def stamp(self, nanoseconds):
        at = BEGIN + timedelta(seconds=nanoseconds // 10**9, hours=int(self._zone[:3]) if self._zone != "Z" else 0)
        return f"{at.isoformat()}.{nanoseconds % 10**9:09d}{self._zone} ".encode()
