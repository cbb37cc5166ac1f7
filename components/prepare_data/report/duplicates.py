"""Rows whose inputs occur in several splits, counted by hashes with bounded memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.bit_mixing import STEP, mixed
from kfp_distributed.components.prepare_data.columns.python_values import exact_values, integers_of

MAXIMUM_HASHES = 2**17
"""Number of different rows up to which the counts are exact. Each takes 32 bytes of memory."""

_HASH_VALUES = 2**64
# Stands for a missing number. No usual number has these bits.
_MISSING = np.uint64(0xFFF8_5A17_D00D_F00D)
# Rows that are hashed together. Hashing takes several times their memory.
_HASHED_BYTES = 2**20


@dataclass(frozen=True)
class Duplicates:
    """Rows of a split whose inputs also occur in another split.

    Attributes:
        split: The split whose rows are counted.
        other: The split in which their inputs also occur.
        rows: Number of these rows.
        share: Share of the split's rows.
        is_exact: Whether the numbers are counted rather than estimated from a part of the rows.
    """

    split: str
    other: str
    rows: int
    share: float
    is_exact: bool = True


@dataclass
class DuplicateCounter:
    """Counts equal rows.

    Rows are kept by their hash. When there are too many, those with hashes in the upper half are dropped: all splits
    keep the same part of the possible rows, so that duplicates among the kept rows are as frequent as among all rows.

    Attributes:
        splits: Names of the splits.
        maximum: The most different rows to keep.
        rows: Number of the rows that were added.
        sum: Sum of their hashes, modulo 2**64. It does not depend on their order.
        limit: The kept rows have lower hashes. Default: all are kept. Where rows are counted in parts to be merged, a
            part may begin with the limit of the parts before: the merged result is the same, and sorting is faster.
    """

    splits: Sequence[str]
    maximum: int = MAXIMUM_HASHES
    rows: int = 0
    sum: int = 0
    limit: int = _HASH_VALUES
    _hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    _rows: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self._rows = np.empty((0, len(self.splits)), np.int64)

    @property
    def kept(self) -> int:
        """Number of different rows that are kept, at most `maximum`."""
        return len(self._hashes)

    def add(self, hashes: NDArray[np.uint64], splits: NDArray[np.intp]) -> None:
        """Add a batch: the hash of each row's inputs, and the index of its split."""
        self.rows, self.sum = self.rows + len(hashes), (self.sum + int(hashes.sum(dtype=np.uint64))) % _HASH_VALUES
        is_kept = hashes <= np.uint64(self.limit - 1)
        different, indices = np.unique(hashes[is_kept], return_inverse=True)
        cells = np.bincount(indices * len(self.splits) + splits[is_kept], minlength=len(different) * len(self.splits))
        self._join(different, cells.reshape(-1, len(self.splits)))

    def merge(self, other: "DuplicateCounter") -> None:
        """Add the rows of another counter of the same splits, in any order. It has up to `maximum` different ones."""
        self.rows, self.sum = self.rows + other.rows, (self.sum + other.sum) % _HASH_VALUES
        self.limit = min(self.limit, other.limit)
        self._join(other._hashes, other._rows)

    def _join(self, hashes: NDArray[np.uint64], rows: NDArray[np.int64]) -> None:
        """Add different hashes and their rows by split, and drop those from the limit on."""
        merged, indices = np.unique(np.concatenate([self._hashes, hashes]), return_inverse=True)
        sums = np.zeros((len(merged), len(self.splits)), np.int64)
        sums[indices[: len(self._hashes)]] = self._rows
        sums[indices[len(self._hashes) :]] += rows
        self._hashes, self._rows = merged, sums
        self._cut()
        while self.kept > self.maximum:
            self.limit //= 2
            self._cut()

    def _cut(self) -> None:
        if self.limit < _HASH_VALUES:
            end = np.searchsorted(self._hashes, np.uint64(self.limit))
            # A copy, because a slice would keep all of them in memory.
            self._hashes, self._rows = self._hashes[:end].copy(), self._rows[:end].copy()

    def duplicates(self) -> list[Duplicates]:
        """Return the duplicates of each pair of splits that have rows, the later split counted."""
        scale = _HASH_VALUES / self.limit
        pairs = []
        for index, split in enumerate(self.splits):
            for other in range(index):
                kept, others = self._rows[:, index], self._rows[:, other]
                if kept.any() and others.any():
                    repeated = int(kept[others > 0].sum())
                    share = repeated / int(kept.sum())
                    pairs.append(
                        Duplicates(
                            split, self.splits[other], round(repeated * scale), share, self.limit == _HASH_VALUES
                        )
                    )
        return pairs


def row_hashes(features: Sequence[NDArray[np.float32]], kept: Sequence[pa.Array] = ()) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row. All NaN are equal, and so are 0 and -0.

    Args:
        features: The inputs as numbers, each [rows, size of a value].
        kept: Inputs of other types. Default: none.
    """
    hashes = np.zeros(len(features[0] if features else kept[0]), np.uint64)
    if features:
        width = sum(values.shape[1] for values in features)
        rows = max(1, _HASHED_BYTES // (4 * width))
        block = np.zeros((min(rows, len(hashes)), width + width % 2), np.float32)
        for begin in range(0, len(hashes), rows):
            part = block[: len(hashes) - begin]
            column = 0
            for values in features:
                part[:, column : column + values.shape[1]] = values[begin : begin + len(part)]
                column += values.shape[1]
            hashes[begin : begin + len(part)] = _hashes(part)
    for number, column in enumerate(kept, 1):
        hashes += mixed(_hashes_of_values(column) + np.uint64(number * STEP % _HASH_VALUES))
    return hashes


def _hashes_of_values(column: pa.Array) -> NDArray[np.uint64]:
    """Return a hash of each value of a type that is no number."""
    if pa.types.is_temporal(column.type) and not pa.types.is_interval(column.type):
        column = column.cast(integers_of(column.type))
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        # The hash of a value must not depend on the other values of its batch, such as gaps.
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        wide = numbers.astype(np.float64) + 0.0 if numbers.dtype.kind == "f" else numbers.astype(np.int64)
        is_missing = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        return np.asarray(np.where(is_missing, _MISSING, wide.view(np.uint64)))
    # Only the different values are hashed, where Arrow can find them.
    try:
        column = column.dictionary_encode()
        values, indices = column.dictionary, column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        values, indices = column, np.arange(len(column))
    objects = [*exact_values(values), None]
    digests = b"".join(blake2b(repr(value).encode(), digest_size=8).digest() for value in objects)
    hashes: NDArray[np.uint64] = np.frombuffer(digests, np.uint64)[indices]
    return hashes


def _hashes(features: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Return a hash of each row of an array of even width, whose NaN and zeros become equal."""
    features += np.float32(0)  # -0 becomes 0.
    is_nan = features != features
    if is_nan.any():
        features[is_nan] = np.nan
    pairs = features.view(np.uint64)
    # A different number for each position, so that equal values at different positions have different hashes.
    positions = np.arange(1, pairs.shape[1] + 1, dtype=np.uint64) * np.uint64(STEP)
    return mixed(mixed(pairs + positions).sum(axis=1, dtype=np.uint64))
