"""Exact order statistics of more numbers than fit into memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# Numbers between two bounds are counted in so many bins in one pass.
_BINS = 2**16
KEPT_NUMBERS = 2**22
"""So many numbers of all columns together are kept in memory."""

ReadNumbers = Callable[[], Iterable[Mapping[str, NDArray[np.int64]]]]
"""Yields the numbers of some columns in batches. It is called for each pass."""


def order_statistics(read: ReadNumbers, ranks: Callable[[int], Sequence[int]]) -> dict[str, list[int]]:
    """Return the numbers at some places of the sorted numbers of each column.

    Each pass counts the numbers in bins, and the next one divides the bin of a wanted number further, until its numbers
    fit into memory. Three passes are usual.

    Args:
        read: The numbers.
        ranks: Function that returns the places of the wanted numbers, from 0, for the number of a column's numbers.

    Returns:
        The numbers by column; [] for a column without numbers.
    """
    bounds: dict[str, tuple[int, int, int]] = {}
    for batch in read():
        for name, numbers in batch.items():
            low, high, count = bounds.get(name, (2**63 - 1, -(2**63), 0))
            if len(numbers):
                low, high = min(low, int(numbers.min())), max(high, int(numbers.max()))
            bounds[name] = low, high, count + len(numbers)
    searches = {
        name: [_Search(rank, *bounds_of_column) for rank in ranks(bounds_of_column[2])] if bounds_of_column[2] else []
        for name, bounds_of_column in bounds.items()
    }
    most = KEPT_NUMBERS // max(1, sum(map(len, searches.values())))
    while any(not search.is_done for found in searches.values() for search in found):
        for batch in read():
            for name, numbers in batch.items():
                for search in searches[name]:
                    search.add(numbers, most)
        for found in searches.values():
            for search in found:
                search.narrow()
    return {name: [search.low for search in found] for name, found in searches.items()}


@dataclass
class _Search:
    """The search for one number, which is at a place among the `count` numbers from `low` to `high`."""

    rank: int
    low: int
    high: int
    count: int
    _kept: list[NDArray[np.int64]] = field(default_factory=list)
    _bins: NDArray[np.int64] | None = None

    @property
    def is_done(self) -> bool:
        return self.low == self.high

    @property
    def _width(self) -> int:
        return (self.high - self.low) // _BINS + 1

    def add(self, numbers: NDArray[np.int64], most: int) -> None:
        """Keep the numbers that can be the wanted one if they are few, else count them."""
        if self.is_done:
            return
        inner = numbers[(numbers >= self.low) & (numbers <= self.high)]
        if self.count <= most:
            self._kept.append(inner)
            return
        # Unsigned, because the difference of two 64-bit integers may need all bits.
        offsets = inner.view(np.uint64) - np.uint64(self.low % 2**64)
        counts = np.bincount((offsets // np.uint64(self._width)).astype(np.int64), minlength=_BINS)
        self._bins = counts if self._bins is None else self._bins + counts

    def narrow(self) -> None:
        """Set the bounds to those of the bin of the wanted number, or to the number itself."""
        if self._kept:
            self.low = self.high = int(np.partition(np.concatenate(self._kept), self.rank)[self.rank])
            self._kept = []
        elif self._bins is not None:
            ends = np.cumsum(self._bins)
            found = int(np.searchsorted(ends, self.rank, side="right"))
            self.count = int(self._bins[found])
            self.rank -= int(ends[found]) - self.count
            self.low, self.high = (
                self.low + found * self._width,
                min(self.high, self.low + (found + 1) * self._width - 1),
            )
            self._bins = None


def medians(read: ReadNumbers) -> dict[str, float]:
    """Return the median of each column of 32-bit floats that has any, of the integers of `as_ordered`."""
    middle = order_statistics(read, lambda count: ((count - 1) // 2, count // 2))
    return {name: sum(map(from_ordered, found)) / 2 for name, found in middle.items() if found}


def as_ordered(numbers: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return integers in the order of numbers, which are not NaN."""
    bits = numbers.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(2**31) - bits, bits)


def from_ordered(integer: int) -> float:
    """Return the number that `as_ordered` made an integer of."""
    bits = integer if integer >= 0 else -(2**31) - integer
    return float(np.array(bits, np.int64).astype(np.int32).view(np.float32))
