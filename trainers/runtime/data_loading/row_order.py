"""The order in which a rank reads its rows: a function of the seed and the epoch alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import ShardPart

WINDOW_BYTES, WINDOW_RECORDS = 64 * 2**20, 100_000
"""Limits of a shuffle window: the memory of a small trainer, and the number of rows that a shuffle has to mix."""

_FIRST_PART = 8
"""The first window of an epoch has one of so many parts of a whole window, so that training starts early. Each further
one has twice the rows of the one before it, until windows are whole."""

# What a generator of random numbers is for. All seeds have the same length, because numpy reads a shorter one as if
# zeros followed it.
_SHARDS, _GROUPS, _ROWS = 0, 1, 2

GroupRows = Callable[[Sequence[int]], Sequence[tuple[int, ...]]]
"""Returns the numbers of rows of all row groups of some parts, which are given by their indices."""


class OrderSeed(NamedTuple):
    """What determines the order of an epoch.

    Attributes:
        seed: Seed of the training, at least 0.
        epoch: Number of the epoch, from 0.
    """

    seed: int
    epoch: int

    def _permutation(self, purpose: int, number: int, count: int) -> NDArray[np.int64]:
        """Return the numbers below `count`, at most 2**32, in random order.

        NumPy may change `Generator.permutation` with each version, and an image may have another one when a training
        resumes. It guarantees the numbers of a bit generator. So each number gets 32 random bits, and they are sorted
        by these. All keys differ, because the other half of a key is the number itself.
        """
        keys = np.random.PCG64((self.seed, self.epoch, purpose, number)).random_raw(count)
        keys &= np.uint64(0xFFFF_FFFF_0000_0000)
        keys |= np.arange(count, dtype=np.uint64)
        keys.sort()
        keys &= np.uint64(0xFFFF_FFFF)
        return keys.view(np.int64)

    def of_parts(self, count: int) -> list[int]:
        """Return the order of the shards."""
        return list(map(int, self._permutation(_SHARDS, 0, count)))

    def of_groups(self, part: int, count: int) -> list[int]:
        """Return the order of the row groups of a shard."""
        return list(map(int, self._permutation(_GROUPS, part, count)))

    def of_rows(self, window: int, count: int) -> NDArray[np.int64]:
        """Return the order of the rows of a window: numbers of rows of all its blocks, which are in a row."""
        return self._permutation(_ROWS, window, count)


class Block(NamedTuple):
    """The rows of a row group that a rank reads.

    Attributes:
        part: Index of the shard's part among those of the rank.
        group: Number of the row group in the shard, from 0.
        begin: Number of the row group's first row in the shard.
        start: Index of the first row among the rows of the part.
        stop: Index after the last row among the rows of the part.
    """

    part: int
    group: int
    begin: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


class Chapter(NamedTuple):
    """Consecutive shards of an epoch. Windows do not cross its end, so that it can be skipped without its footers.

    Attributes:
        parts: Indices of the shards' parts, in the order of the epoch.
        start: Number of rows of the epoch before it.
        first: Number of its first window in the epoch.
        windows: Numbers of rows after which its windows end, at the next border of a row group.
    """

    parts: tuple[int, ...]
    start: int
    first: int
    windows: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(self.windows)


class Window(NamedTuple):
    """Rows that are shuffled together.

    Attributes:
        number: Number of the window in the epoch, from 0.
        blocks: Its blocks, whose rows are shuffled by `OrderSeed.of_rows`.
        parts: Parts of its chapter. Later windows may need other parts.
        skipped: Number of rows to leave out at its beginning.
    """

    number: int
    blocks: tuple[Block, ...]
    parts: tuple[int, ...]
    skipped: int

    @property
    def rows(self) -> int:
        """Number of rows, including those to leave out."""
        return sum(block.rows for block in self.blocks)


def rows_of_window(width: int) -> int:
    """Return the number of rows of a shuffle window: at most 64 MiB and 100,000 rows of width + 2 float32."""
    return max(1, min(WINDOW_RECORDS, WINDOW_BYTES // (4 * (width + 2))))


def order_of_rows(width: int) -> str:
    """Return a name of the order of an epoch, for all that it depends on beside the seed and the parts of the ranks."""
    return f"pcg64-windows-{rows_of_window(width)}-{_FIRST_PART}"


class Fillers(NamedTuple):
    """Where records of weight 0 stand in an epoch that has more records than rows: at equal distances.

    So a batch has at most one of them if there are as many as batches. At the end of the epoch, they would fill whole
    batches, whose updates would still move the weights.

    Attributes:
        rows: Rows of the epoch.
        records: Records of the epoch, including the fillers.
    """

    rows: int
    records: int

    def before(self, record: int) -> int:
        """Return the number of fillers before a record of the epoch."""
        count = self.records - self.rows
        return ((record + 1) * count - 1) // self.records if count else 0

    def between(self, begin: int, end: int, skipped: int) -> NDArray[np.int64]:
        """Return the fillers of some rows: for each of them, the number of these rows that are before it.

        Args:
            begin: First of the rows, from 0 at the beginning of the epoch.
            end: Row after the last one. Fillers at the end of the epoch belong to the last row.
            skipped: Number of records at the beginning of the epoch that are left out.
        """
        numbers = np.arange(self.before(skipped), self.records - self.rows)
        rows_before = (numbers + 1) * self.records // max(1, self.records - self.rows) - 1 - numbers
        own = (rows_before >= begin) & ((rows_before < end) | (end == self.rows))
        return rows_before[own] - begin


def chapters_of_epoch(rows: Sequence[int], limit: int, order: OrderSeed) -> Iterator[Chapter]:
    """Yield the chapters of an epoch: the fewest consecutive shards that have the rows of a window.

    Args:
        rows: Number of rows of each part.
        limit: Number of rows of a whole window.
        order: What determines the order.
    """
    start, first, parts, count = 0, 0, list[int](), 0
    goal = -(-limit // _FIRST_PART)
    of_parts = order.of_parts(len(rows))
    for position, part in enumerate(of_parts, 1):
        parts.append(part)
        count += rows[part]
        if count >= goal or position == len(of_parts):
            windows, goal = _window_sizes(count, goal, limit)
            yield Chapter(tuple(parts), start, first, windows)
            start, first, parts, count = start + count, first + len(windows), [], 0


def _window_sizes(rows: int, goal: int, limit: int) -> tuple[tuple[int, ...], int]:
    """Return the sizes of the windows of a chapter, and the least number of rows of the next chapter."""
    sizes = []
    while goal < limit:
        sizes.append(min(goal, rows))
        rows -= sizes[-1]
        goal = min(limit, 2 * goal)
        if not rows:
            return tuple(sizes), goal
    number = -(-rows // limit)
    edges = [rows * index // max(1, number) for index in range(number + 1)]
    return (*sizes, *np.diff(edges).tolist()), goal


def blocks_of_part(index: int, part: ShardPart, group_rows: Sequence[int]) -> list[Block]:
    """Return the blocks of a part in the order of the file, without those that have no row of the part."""
    edges = [0, *accumulate(group_rows)]

    def row(number: int) -> int:
        return int(part.row_numbers(number, number + 1)[0])

    shared = len(part.counts) > 1
    starts = [bisect_left(range(part.rows), edge, key=row) for edge in edges] if shared else edges
    return [
        Block(index, group, edges[group], starts[group], starts[group + 1])
        for group in range(len(group_rows))
        if starts[group] < starts[group + 1]
    ]


def windows_of_epoch(
    parts: Sequence[ShardPart], group_rows: GroupRows, limit: int, order: OrderSeed, skipped: int = 0
) -> Iterator[Window]:
    """Yield the windows of an epoch.

    Shards and the row groups in each of them are in random order. Consecutive row groups form a window, in which the
    rows are in random order. A window has at most `limit` rows and those of its last row group.

    Args:
        parts: The rows of the rank.
        group_rows: See `GroupRows`. Called once for each chapter, when its first window is due.
        limit: Number of rows of a whole window.
        order: What determines the order.
        skipped: Number of rows to leave out at the beginning of the epoch. Windows without other rows are not yielded.
    """
    for chapter in chapters_of_epoch([part.rows for part in parts], limit, order):
        if chapter.start + chapter.rows <= skipped:
            continue
        start = chapter.start
        for number, blocks in _windows_of_chapter(chapter, parts, group_rows(chapter.parts), order):
            window = Window(number, blocks, chapter.parts, max(0, skipped - start))
            start += window.rows
            if start > skipped:
                yield window


def _windows_of_chapter(
    chapter: Chapter, parts: Sequence[ShardPart], group_rows: Sequence[tuple[int, ...]], order: OrderSeed
) -> Iterator[tuple[int, tuple[Block, ...]]]:
    """Yield the number and the blocks of each window of a chapter."""
    blocks = [
        of_part[group]
        for index, sizes in zip(chapter.parts, group_rows, strict=True)
        for of_part in [blocks_of_part(index, parts[index], sizes)]
        for group in order.of_groups(index, len(of_part))
    ]
    begins = np.cumsum([0, *(block.rows for block in blocks)])[:-1]
    # A block belongs to the window that has its first row.
    edges = np.searchsorted(begins, [0, *accumulate(chapter.windows)]).tolist()
    for number in range(len(chapter.windows)):
        if edges[number] < edges[number + 1]:
            yield chapter.first + number, tuple(blocks[edges[number] : edges[number + 1]])
