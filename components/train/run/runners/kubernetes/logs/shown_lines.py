"""Remember which of the latest lines of a log were shown, in little memory. Pure."""

from array import array
from collections import deque
from contextlib import suppress

Stamp = tuple[int, bytes]
"""Timestamp of a line: seconds since 1970, and the nine digits of the nanoseconds."""

DISORDER_SECONDS = 2
"""Seconds by which the timestamp of a line may be older than that of a line before it.

stdout and stderr get their timestamps separately, and a line of one may be written after a later line of the other.
"""

_BLOCK_LINES = 4096
_BLOCKS = 16


class ShownLines:
    """Digests of the lines that a new connection sends again, in the order of the log.

    These are the lines since `since`. A digest has 8 bytes. At most `_BLOCKS` blocks of `_BLOCK_LINES` lines are kept,
    which are 65,536 lines in 512 KiB. Of a container that prints more lines in that time, all lines up to the timestamp
    `forgotten` count as shown.

    Attributes:
        newest: The highest timestamp.
        forgotten: The highest timestamp of the lines that are not remembered any more.
    """

    def __init__(self) -> None:
        """Remember nothing."""
        self.newest: Stamp = (0, b"")
        self.forgotten: Stamp = (0, b"")
        # Each with the highest timestamp up to its end.
        self._blocks: deque[tuple[Stamp, array[int]]] = deque()
        self._block = array("q")
        # Those that the current connection may send again, and the index of the next one.
        self._repeated: array[int] | None = None
        self._last_repeated = self.newest
        self._later: set[int] | None = None
        self._next = 0

    @property
    def since(self) -> int | None:
        """Second from which lines are to be sent again; None if no line was shown."""
        return self.newest[0] - DISORDER_SECONDS if self.newest[0] else None

    def add(self, stamp: Stamp, digest: int) -> None:
        """Remember a line that was shown.

        Args:
            stamp: Its timestamp.
            digest: Hash of its timestamp and text.
        """
        if stamp > self.newest:
            if stamp[0] > self.newest[0]:
                self._end_block()
            self.newest = stamp
        self._block.append(digest)
        if len(self._block) == _BLOCK_LINES:
            self._end_block()

    def _end_block(self) -> None:
        if self._block:
            self._blocks.append((self.newest, self._block))
            self._block = array("q")
        since = self.newest[0] - DISORDER_SECONDS
        while self._blocks and (len(self._blocks) > _BLOCKS or self._blocks[0][0][0] < since):
            self.forgotten = self._blocks.popleft()[0]

    def expect_again(self) -> None:
        """Expect the lines again, because a new connection begins."""
        self._repeated = array("q")
        for _, block in self._blocks:
            self._repeated.extend(block)
        self._repeated.extend(self._block)
        self._last_repeated, self._later, self._next = self.newest, None, 0

    @property
    def is_repeated(self) -> bool:
        """Whether all lines of the current connection so far can have been shown before."""
        return self._repeated is not None

    def may_contain(self, stamp: Stamp) -> bool:
        """Return whether a line of the current connection can have been shown before.

        The first line that is newer than all of them ends this for the lines after it.
        """
        if self._repeated is not None and stamp > self._last_repeated:
            self._repeated = self._later = None
        return self._repeated is not None

    def pop(self, stamp: Stamp, digest: int) -> bool:
        """Return whether the line was shown before. Equal lines are counted: each was shown as often as it was added.

        A new connection sends lines in the order of the log. It leaves out those of rotated files.
        """
        repeated, at = self._repeated, self._next
        if repeated is None:
            return False
        if at < len(repeated) and repeated[at] == digest:
            self._next += 1
            return True
        if stamp <= self.forgotten:
            return True
        if self._later is None:
            # Few connections need it: the first line of the file after a rotation, or a late line that is new.
            self._later = set(repeated[at:])
        if digest in self._later:
            with suppress(ValueError):
                self._next = repeated.index(digest, at) + 1
                return True
        return False
