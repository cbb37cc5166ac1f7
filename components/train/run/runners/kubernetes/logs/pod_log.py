"""Read the lines of a container's log, each exactly once, over connections that may break. Pure."""

import re
import sys
from datetime import UTC, datetime
from typing import NamedTuple

from kfp_distributed.components.train.run.runners.kubernetes.logs.shown_lines import ShownLines, Stamp
from kfp_distributed.components.train.run.runners.lines import LONGEST_LINE, LineCutter

# 2026-01-01T00:00:00.123456789Z, or with the time zone of the node; then a space and the line.
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d+)(Z|[+-]\d\d:\d\d) ")
# The kubelet sends these texts instead of the log if the container or its log file was deleted, as for an evicted pod.
_NO_LOG = b"unable to retrieve container logs", b"failed to try resolving"
# Errors of the kubelet begin with these words. They have no timestamp.
_ERRORS = b"unable to ", b"failed to "
_PART_OF_STAMP = re.compile(rb"\d{4}-[-\dT:.Z+]*")
_LONGEST_STAMP = 40
# A container runtime writes a line when it ends or has 16 KiB. The timestamp is that of the first 16 KiB, and a
# progress bar may go on for hours.
_PART_BYTES = 16 * 1024
_ALL = sys.maxsize


class StampedLine(NamedTuple):
    """A line of a log.

    Attributes:
        text: The line.
        time: Its timestamp in seconds since 1970, by the clock of its node; None if unknown.
    """

    text: str
    time: float | None = None


class _Unfinished(NamedTuple):
    """A line that was not complete when the connection broke.

    Attributes:
        stamp: Its timestamp.
        size: Bytes of its text that were read.
        head: Its beginning with the timestamp, up to the maximum length.
        cutter: Has read `size` bytes of it.
    """

    stamp: Stamp
    size: int
    head: bytes
    cutter: LineCutter


class LogReader:
    """Reads the log of one container over several connections.

    A new connection starts at a whole second, `sinceTime`. The kubelet sends all lines since then that are in the
    newest log file. A line counts as shown before if its timestamp and its text up to the maximum length are those of a
    line that was shown. Of an unfinished line, the reader continues after the bytes that it has read.

    A line of more than 16 KiB has several parts in the log file. The kubelet writes a timestamp before the first part
    only. If `sinceTime` is between the parts of a line, the kubelet sends the rest of this line, which was shown. If
    the file was rotated between the parts, a new connection begins with the other parts. They are shown again, as a
    line.
    """

    def __init__(self, longest_line: int = LONGEST_LINE) -> None:
        """Create a reader that has read nothing.

        Args:
            longest_line: Characters after which a line is split. Default: 65,536.
        """
        self._longest = longest_line
        self._shown = ShownLines()
        self._unfinished: _Unfinished | None = None
        self._second_text, self._second = (b"", b""), 0
        self._connect()

    def _connect(self) -> None:
        self._cutter = LineCutter(self._longest)
        # Texts that are cut together, and the timestamp of the first one.
        self._texts: list[bytes] = []
        self._texts_second: int | None = None
        self._time: float | None = None
        self._lines: list[StampedLine] = []
        # The beginning of a line that may not have its complete timestamp.
        self._waiting = b""
        self._in_line = False

    @property
    def place_in_line(self) -> tuple[Stamp | None, int] | None:
        """Timestamp of the line that is not complete, and the number of its bytes; None between lines."""
        if self._waiting:
            return None, len(self._waiting)
        return (self._stamp, self._size + len(self._held)) if self._in_line else None

    def resume_query(self) -> dict[str, str]:
        """Return the query for the next connection. A line that was not complete is sent again."""
        if self._in_line and self._stamp and self._known is not None and self._size < self._known < _ALL:
            # The connection broke before it has sent what was read of this line.
            self._unfinished = _Unfinished(self._stamp, self._known, self._known_head, self._cutter)
        elif self._in_line and self._stamp and self._known is not None and self._known <= self._size:
            self._unfinished = _Unfinished(self._stamp, self._size, self._head, self._cutter)
        self._connect()
        since = self._shown.since
        if since is None:
            return {}
        self._shown.expect_again()
        return {"sinceTime": datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}

    def continues(self, beginning: bytes) -> bool | None:
        """Return whether a response with `sinceTime` is from the file that was read before.

        Such a response contains the newest line that was shown, so its first line is not newer. Otherwise the file was
        rotated, or the response is the log of a later start of the container, or of another pod of the same name.

        Args:
            beginning: The first bytes of the response.

        Returns:
            True also if no line was shown before; None if more bytes are needed.
        """
        if not self._shown.newest[0]:
            return True
        match = _STAMP.match(beginning)
        if not match:
            return True if b"\n" in beginning or len(beginning) >= _LONGEST_STAMP else None
        return self._stamp_of(match) <= self._shown.newest

    def feed(self, data: bytes, now: float) -> list[StampedLine]:
        """Return the lines that `data` completes.

        Args:
            data: Bytes of the log; b"" at its end.
            now: Current time in seconds, for progress bars.
        """
        if not data:
            return self._end(now)
        data, self._waiting = self._waiting + data, b""
        at = 0
        while at < len(data):
            end = data.find(b"\n", at) + 1
            if not self._in_line:
                if not end and len(data) - at < _LONGEST_STAMP and not _STAMP.match(data, at):
                    self._waiting = data[at:]
                    break
                self._begin_line(data, at)
            piece = data[at : end or None]
            self._read(piece, bool(end), now)
            at += len(piece)
        return self._take_lines(now)

    def _end(self, now: float) -> list[StampedLine]:
        if self._waiting and not _PART_OF_STAMP.fullmatch(self._waiting):
            self._begin_line(self._waiting, 0)
            self._read(self._waiting, True, now)
        elif self._in_line:
            self._read(b"", True, now)
        lines = [*self._take_lines(now), *self._stamped(b"", now), *self._end_unfinished(now)]
        self._connect()
        return lines

    def _begin_line(self, data: bytes, at: int) -> None:
        """Read the timestamp of a line. A line without a timestamp comes from the kubelet."""
        self._held = self._head = b""
        self._size = 0
        # Number of bytes of its text that are left out; None until it is known.
        self._known: int | None = None
        self._stamp: Stamp | None = None
        self._text_at = 0
        if match := _STAMP.match(data, at):
            self._stamp = self._stamp_of(match)
            self._text_at = match.end() - at

    def _stamp_of(self, match: re.Match[bytes]) -> Stamp:
        second, fraction, zone = match.groups()
        if self._second_text != (second, zone):
            self._second_text = second, zone
            self._second = int(datetime.fromisoformat((second + zone).decode()).timestamp())
        return self._second, fraction

    def _read(self, piece: bytes, is_end: bool, now: float) -> None:
        """Read a piece of the current line."""
        if len(self._head) < self._longest:
            self._head += piece[: self._longest - len(self._head)]
        if self._known is None:
            self._held += piece
            self._in_line = True
            self._known = self._known_size(is_end, now)
            if self._known is None:
                return
            piece, self._held = self._held[self._text_at :], b""
        if self._size + len(piece) > self._known:
            self._add(piece[max(0, self._known - self._size) :], self._size + len(piece), now)
        self._size += len(piece)
        self._in_line = not is_end
        if is_end and self._stamp and self._known != _ALL:
            self._shown.add(self._stamp, hash(self._head))

    def _add(self, text: bytes, size: int, now: float) -> None:
        """Add text of the current line, of which `size` bytes are read. Texts of the same second are cut together."""
        second = self._stamp[0] if self._stamp and size <= _PART_BYTES else None
        if self._texts and second != self._texts_second:
            self._lines += self._cut(now)
        if not self._texts:
            self._texts_second, self._time = second, _time_of(self._stamp, size)
        self._texts.append(text)

    def _known_size(self, is_end: bool, now: float) -> int | None:
        """Return how many bytes of the current line were read before; None if more of it is needed to know that."""
        if not self._stamp:
            is_rest = self._shown.is_repeated and not self._held.startswith(_ERRORS)
            return _ALL if is_rest or self._held.startswith(_NO_LOG) else 0
        if self._shown.may_contain(self._stamp):
            if not is_end and len(self._head) < self._longest:
                return None
            if self._shown.pop(self._stamp, hash(self._head)):
                return _ALL
        unfinished = self._unfinished
        if unfinished and unfinished.stamp == self._stamp:
            if not is_end and len(self._head) < len(unfinished.head):
                return None
            if self._head.startswith(unfinished.head):
                self._lines += self._cut(now)
                self._cutter, self._known_head, self._unfinished = unfinished.cutter, unfinished.head, None
                return unfinished.size
        if unfinished:
            # A new line follows it in the log, so it was in a file that is not served any more.
            self._lines += [*self._cut(now), *self._end_unfinished(now)]
        return 0

    def _end_unfinished(self, now: float) -> list[StampedLine]:
        """Return what was read of the unfinished line and is not shown yet."""
        unfinished, self._unfinished = self._unfinished, None
        if not unfinished:
            return []
        time = _time_of(unfinished.stamp, unfinished.size)
        return [StampedLine(line, time) for line in unfinished.cutter.feed(b"", now)]

    def _cut(self, now: float) -> list[StampedLine]:
        texts, self._texts = self._texts, []
        return self._stamped(b"".join(texts), now) if texts else []

    def _stamped(self, data: bytes, now: float) -> list[StampedLine]:
        time = self._time
        return [StampedLine(line, time) for line in self._cutter.feed(data, now)]

    def _take_lines(self, now: float) -> list[StampedLine]:
        lines = [*self._lines, *self._cut(now)]
        self._lines = []
        return lines


def _time_of(stamp: Stamp | None, size: int) -> float | None:
    """Return the time of text that ends `size` bytes after the beginning of a line; None if unknown."""
    return stamp[0] + float(b"0." + stamp[1]) if stamp and size <= _PART_BYTES else None
