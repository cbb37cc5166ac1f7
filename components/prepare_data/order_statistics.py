"""Exact order statistics of more numbers than fit into memory."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

# Numbers between two bounds are counted in so many bins in one pass.
_BINS = 2**16
# So many numbers fit into memory.
_MOST = 2**20


def kth_smallest(read: Callable[[], Iterable[NDArray[np.int64]]], ranks: Sequence[int]) -> list[int]:
    """Return the numbers at some places of the sorted numbers.

    Each pass counts the numbers in bins, and the next one divides the bin of the wanted number further, until its
    numbers fit into memory. 2**40 numbers need four passes.

    Args:
        read: Function that yields all numbers in batches. It is called for each pass.
        ranks: Places of the wanted numbers, from 0.

    Raises:
        ValueError: There are not so many numbers.
    """
    low, high, count = 2**63 - 1, -(2**63), 0
    for numbers in read():
        if len(numbers):
            low, high, count = min(low, int(numbers.min())), max(high, int(numbers.max())), count + len(numbers)
    if not all(0 <= rank < count for rank in ranks):
        raise ValueError(f"the places {list(ranks)} of {count} numbers: they must be from 0 to {count - 1}")
    return [_find(read, rank, low, high, count) for rank in ranks]


def _find(read: Callable[[], Iterable[NDArray[np.int64]]], rank: int, low: int, high: int, count: int) -> int:
    """Return the number at a place among the `count` numbers from `low` to `high`."""
    while low < high:
        if count <= _MOST:
            left = np.concatenate([numbers[(numbers >= low) & (numbers <= high)] for numbers in read()])
            return int(np.partition(left, rank)[rank])
        # Differences are unsigned, because the range of 64-bit integers has more numbers than half of it.
        width = (high - low) // _BINS + 1
        counts = np.zeros(_BINS, np.int64)
        for numbers in read():
            inner = numbers[(numbers >= low) & (numbers <= high)]
            offsets = inner.view(np.uint64) - np.uint64(low % 2**64)
            counts += np.bincount((offsets // np.uint64(width)).astype(np.int64), minlength=_BINS)
        ends = np.cumsum(counts)
        bin_ = int(np.searchsorted(ends, rank, side="right"))
        rank -= int(ends[bin_] - counts[bin_])
        low, high, count = low + bin_ * width, min(high, low + (bin_ + 1) * width - 1), int(counts[bin_])
    return low


def as_ordered(numbers: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return integers in the order of numbers, which are not NaN."""
    bits = numbers.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(2**31) - bits, bits)


def from_ordered(integer: int) -> float:
    """Return the number that `as_ordered` made an integer of."""
    bits = integer if integer >= 0 else -(2**31) - integer
    return float(np.array(bits, np.int64).astype(np.int32).view(np.float32))
