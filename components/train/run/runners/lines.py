"""Splits the output of a process into lines."""

import codecs

LONGEST_LINE = 64 * 1024
"""Characters of a line. A longer one is split, so that output without line ends uses no more memory than this."""

BAR_SECONDS = 5.0
"""Seconds between two lines of a progress bar, which overwrites one line again and again."""


class LineCutter:
    """Takes the output of one process and returns its complete lines.

    A line ends with LF or CR LF. After a CR alone, the following text replaces the text before it, as on a terminal.
    Bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        """Create a cutter that has read nothing.

        Args:
            longest: Characters after which a line is split. Default: 65,536.
        """
        self._longest = longest
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._part = ""
        self._bar_due = 0.0

    def feed(self, data: bytes, now: float) -> list[str]:
        """Return the lines that data completes.

        Args:
            data: Output of the process; b"" at its end.
            now: Seconds of any clock, by which lines of progress bars are limited.
        """
        *lines, part = (self._part + self._decode(data, not data)).split("\n")
        # The CR at the very end may be the first half of CR LF.
        overwritten, separator, last = part[:-1].rpartition("\r")
        if separator:
            part = last + part[-1]
            if overwritten and now >= self._bar_due:
                self._bar_due = now + BAR_SECONDS
                lines.append(overwritten)
        if part and not data:
            lines.append(part)
            part = ""
        while len(part) > self._longest:
            lines.append(part[: self._longest])
            part = part[self._longest :]
        self._part = part
        visible = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
        return [line[at : at + self._longest] for line in visible for at in range(0, len(line) or 1, self._longest)]
