"""Exact order statistics of more numbers than fit into memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.worker_pool.piece_tasks import Result

# Numbers between two bounds are counted in so many bins in one pass.
_BINS = 2**16
KEPT_NUMBERS = 2**22
"""So many numbers of all columns together are kept in memory."""

Numbers = Mapping[str, NDArray[np.int64]]
"""The numbers of some columns in a piece."""


class MapNumbers(Protocol):
    """Yields a function of the numbers of each piece. It is called for each pass."""

    def __call__(self, function: Callable[[Numbers], Result], /) -> Iterable[Result]:
        """Return the results, which may be a generator."""
        ...


class _Bounds(NamedTuple):
    """The lowest and the highest of some numbers, and how many they are."""

    low: int = 2**63 - 1
    high: int = -(2**63)
    numbers: int = 0

    def merged(self, other: "_Bounds") -> "_Bounds":
        return _Bounds(min(self.low, other.low), max(self.high, other.high), self.numbers + other.numbers)


class _Window(NamedTuple):
    """Numbers from `low` to `high`, which are kept, or counted in bins of equal width."""

    low: int
    high: int
    is_kept: bool

    @property
    def width(self) -> int:
        return (self.high - self.low) // _BINS + 1


def order_statistics(numbers_of_pieces: MapNumbers, ranks: Callable[[int], Sequence[int]]) -> dict[str, list[int]]:
    """Return the numbers at some places of the sorted numbers of each column.

    Each pass counts the numbers in bins, and the next one divides the bin of a wanted number further, until its numbers
    fit into memory. Three passes are usual.

    Args:
        numbers_of_pieces: The numbers. A result of a piece has a quarter of a megabyte for each wanted number.
        ranks: Function that returns the places of the wanted numbers, from 0, for the number of a column's numbers.

    Returns:
        The numbers by column; [] for a column without numbers.
    """
    bounds: dict[str, _Bounds] = {}
    for of_piece in numbers_of_pieces(_bounds):
        bounds |= {name: bounds.get(name, _Bounds()).merged(found) for name, found in of_piece.items()}
    searches = {
        name: [_Search(rank, *found) for rank in ranks(found.numbers)] if found.numbers else []
        for name, found in bounds.items()
    }
    most = KEPT_NUMBERS // max(1, sum(map(len, searches.values())))
    while any(not search.is_done for found in searches.values() for search in found):
        windows = {name: [search.window(most) for search in found] for name, found in searches.items()}
        for counted in numbers_of_pieces(partial(_count, windows)):
            for name, parts in counted.items():
                for search, part in zip(searches[name], parts, strict=True):
                    search.add(part, is_kept=search.count <= most)
        for found in searches.values():
            for search in found:
                search.narrow()
    return {name: [search.low for search in found] for name, found in searches.items()}


def _bounds(numbers: Numbers) -> dict[str, _Bounds]:
    return {
        name: _Bounds(int(values.min()), int(values.max()), len(values)) if len(values) else _Bounds()
        for name, values in numbers.items()
    }


def _count(
    windows: Mapping[str, Sequence[_Window | None]], numbers: Numbers
) -> dict[str, list[NDArray[np.integer] | None]]:
    """Return the numbers of each window, or how many are in each of its bins; None for a number that was found."""
    return {
        name: [None if window is None else _count_window(window, values) for window in windows[name]]
        for name, values in numbers.items()
    }


def _count_window(window: _Window, numbers: NDArray[np.int64]) -> NDArray[np.integer]:
    inner = numbers[(numbers >= window.low) & (numbers <= window.high)]
    if window.is_kept:
        return inner
    # Unsigned, because the difference of two 64-bit integers may need all bits.
    offsets = inner.view(np.uint64) - np.uint64(window.low % 2**64)
    # A piece has fewer than 2**32 rows.
    return np.bincount((offsets // np.uint64(window.width)).astype(np.int64), minlength=_BINS).astype(np.uint32)


@dataclass
class _Search:
    """The search for one number, which is at a place among the `count` numbers from `low` to `high`."""

    rank: int
    low: int
    high: int
    count: int
    _kept: list[NDArray[np.integer]] = field(default_factory=list)
    _bins: NDArray[np.int64] | None = None

    @property
    def is_done(self) -> bool:
        return self.low == self.high

    def window(self, most: int) -> _Window | None:
        """Return the numbers that can be the wanted one, which are kept if they are few; None if it was found."""
        return None if self.is_done else _Window(self.low, self.high, self.count <= most)

    def add(self, part: NDArray[np.integer] | None, *, is_kept: bool) -> None:
        """Add the numbers of a piece, or how many are in each bin."""
        if part is None:
            return
        if is_kept:
            self._kept.append(part)
        elif self._bins is None:
            self._bins = part.astype(np.int64)
        else:
            self._bins += part

    def narrow(self) -> None:
        """Set the bounds to those of the bin of the wanted number, or to the number itself."""
        if self._kept:
            self.low = self.high = int(np.partition(np.concatenate(self._kept), self.rank)[self.rank])
            self._kept = []
        elif self._bins is not None:
            width = _Window(self.low, self.high, is_kept=False).width
            ends = np.cumsum(self._bins)
            found = int(np.searchsorted(ends, self.rank, side="right"))
            self.count = int(self._bins[found])
            self.rank -= int(ends[found]) - self.count
            self.low, self.high = self.low + found * width, min(self.high, self.low + (found + 1) * width - 1)
            self._bins = None


def medians(numbers_of_pieces: MapNumbers) -> dict[str, float]:
    """Return the median of each column of 32-bit floats that has any, of the integers of `as_ordered`."""
    middle = order_statistics(numbers_of_pieces, lambda count: ((count - 1) // 2, count // 2))
    return {name: sum(map(from_ordered, found)) / 2 for name, found in middle.items() if found}


def as_ordered(numbers: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return integers in the order of numbers, which are not NaN."""
    bits = numbers.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(2**31) - bits, bits)


def from_ordered(integer: int) -> float:
    """Return the number that `as_ordered` made an integer of."""
    bits = integer if integer >= 0 else -(2**31) - integer
    return float(np.array(bits, np.int64).astype(np.int32).view(np.float32))
