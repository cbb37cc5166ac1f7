"""Cuts what a process prints into lines, whatever it prints."""

import codecs

LONGEST_LINE = 64 * 1024
"""Characters. A longer line is told in pieces, so that output without any line end takes no more memory than this."""

BAR_SECONDS = 5.0
"""How often a progress bar, which overwrites one line for ever, is told as a line."""


class LineCutter:
    """Takes the bytes of one process as they come and returns the lines that are whole.

    A line ends with LF or CR LF. Where a CR stands alone, the text after it replaces the text before it, as on a
    terminal. Bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._part = ""
        self._bar_due = 0.0

    def feed(self, data: bytes, now: float) -> list[str]:
        """Returns the lines that `data` completes; b"" means the end. `now`, in seconds, is for progress bars."""
        *lines, part = (self._part + self._decode(data, not data)).split("\n")
        # The CR at the very end may be the first half of CR LF.
        overwritten, bar, rest = part[:-1].rpartition("\r")
        if bar:
            part = rest + part[-1]
            if overwritten and now >= self._bar_due:
                self._bar_due = now + BAR_SECONDS
                lines.append(overwritten)
        if part and not data:
            lines.append(part)
            part = ""
        while len(part) > LONGEST_LINE:
            lines.append(part[:LONGEST_LINE])
            part = part[LONGEST_LINE:]
        self._part = part
        shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
        return [line[at : at + LONGEST_LINE] for line in shown for at in range(0, len(line) or 1, LONGEST_LINE)]
