"""Which split a row belongs to, where a group, the time or a file decides."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.bit_mixing import STEP, mixed
from kfp_distributed.components.prepare_data.order_statistics import order_statistics

DRAWN, TRAIN, VALIDATION, TEST = range(4)
"""Splits of a row. DRAWN stands for one that is drawn at random."""


@dataclass(frozen=True)
class RowsTogether:
    """Rows that are in one split, because they have one group or time.

    Attributes:
        key: Hash of the group, or the time.
        rows: Number of the rows.
        split: Their split.
    """

    key: int
    rows: int
    split: int


@dataclass(frozen=True)
class GroupSplit:
    """The split of each group.

    Attributes:
        keys: Hash of each group, sorted.
        splits: Split of each group.
        rows: Number of rows by split.
        largest: The largest group.
    """

    keys: NDArray[np.uint64]
    splits: NDArray[np.int8]
    rows: Mapping[int, int]
    largest: RowsTogether

    def of(self, keys: NDArray[np.uint64]) -> NDArray[np.int8]:
        """Return the split of each row by the hash of its group."""
        found: NDArray[np.int8] = self.splits[np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)]
        return found


@dataclass(frozen=True)
class TimeSplit:
    """The splits by time.

    Attributes:
        validation: Time from which rows are in the validation split; None for no row.
        test: Time from which rows are in the test split; None for no row.
        rows: Number of rows by split.
        largest: The rows of the first time of a split, of validation or of the test, whichever are more.
    """

    validation: int | None
    test: int | None
    rows: Mapping[int, int]
    largest: RowsTogether

    def of(self, times: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the split of each row by its time."""
        return _splits_of_times(times, self.validation, self.test)


def _splits_of_times(times: NDArray[np.int64], validation: int | None, test: int | None) -> NDArray[np.int8]:
    splits = np.full(len(times), TRAIN, np.int8)
    for split, begin in ((VALIDATION, validation), (TEST, test)):
        if begin is not None:
            splits[times >= begin] = split
    return splits


def split_groups(
    batches: Iterable[NDArray[np.uint64]], validation: float, test: float, seed: int, column: str
) -> GroupSplit:
    """Divide groups among the splits, so that each split has about its fraction of the rows.

    The groups are taken in an order that depends on the seed and their names alone.

    Args:
        batches: Hash of the group of each row.
        validation: Fraction of the rows for validation.
        test: Fraction of the rows for the test.
        seed: Seed of the order.
        column: Name of the column, for errors.

    Raises:
        ValueError: There are fewer groups than splits with rows.
    """
    keys, rows = np.empty(0, np.uint64), np.empty(0, np.int64)
    for batch in batches:
        new, counts = np.unique(batch, return_counts=True)
        keys, inverse = np.unique(np.concatenate([keys, new]), return_inverse=True)
        rows = np.bincount(inverse, np.concatenate([rows, counts]), len(keys)).astype(np.int64)
    seeds = mixed(np.array([seed], np.uint64) + np.uint64(STEP))
    order = np.argsort(mixed((keys ^ seeds) + np.uint64(STEP)))
    has_training = not math.isclose(validation + test, 1)
    needed = has_training + (validation > 0) + (test > 0)
    if len(keys) < needed:
        raise ValueError(
            f"group_column {column!r} has {len(keys)} different values, where {needed} splits need one each: set a "
            "fraction to 0, or name another column"
        )
    splits = np.full(len(keys), TRAIN, np.int8)
    begin, total = 0, rows.sum()
    for split, fraction in ((TEST, test), (VALIDATION, validation)):
        if fraction:
            ends = np.cumsum(rows[order[begin:]])
            # The number of groups whose rows come closest to the fraction, and one at least. One stays for each other.
            left = has_training + (split == TEST and validation > 0)
            count = 1 + int(np.abs(ends[: len(ends) - left] - fraction * total).argmin()) if left else len(ends)
            splits[order[begin : begin + count]] = split
            begin += count
    counts = np.bincount(splits, rows, 4).astype(int).tolist()
    largest = int(rows.argmax())
    together = RowsTogether(int(keys[largest]), int(rows[largest]), int(splits[largest]))
    return GroupSplit(keys, splits, dict(enumerate(counts)), together)


def split_times(
    read: Callable[[], Iterable[NDArray[np.int64]]], rows: int, validation: float, test: float, column: str
) -> TimeSplit:
    """Divide rows by time: the newest are the test split, those before them the validation split.

    Rows of one time are in one split, so a split may have more rows than its fraction.

    Args:
        read: Function that yields the time of each row. It is called several times.
        rows: Number of rows.
        validation: Fraction of the rows for validation.
        test: Fraction of the rows for the test.
        column: Name of the column, for errors.

    Raises:
        ValueError: A split with a fraction above 0 gets no row, because its fraction is less than one row, or too many
            rows are of one time.
    """
    test_rows, validation_rows = round(test * rows), round(validation * rows)
    for name, fraction, count in (("validation", validation, validation_rows), ("test", test, test_rows)):
        if fraction and not count:
            raise ValueError(
                f"{name}_fraction {fraction:g} of {rows} rows is less than one row: set it to 0 or to more, or add rows"
            )
    ranks = [rows - test_rows, rows - test_rows - validation_rows]
    places = [min(rank, rows - 1) for rank in ranks]
    times = order_statistics(lambda: ({column: batch} for batch in read()), lambda count: places)[column]
    first = {VALIDATION: times[1] if validation_rows else None, TEST: times[0] if test_rows else None}
    counts, ties = np.zeros(4, np.int64), dict.fromkeys(first, 0)
    for batch in read():
        counts += np.bincount(_splits_of_times(batch, first[VALIDATION], first[TEST]), minlength=4)
        for split, time in first.items():
            ties[split] += int(np.count_nonzero(batch == time)) if time is not None else 0
    for name, split, fraction in (
        ("validation", VALIDATION, validation),
        ("test", TEST, test),
        ("train", TRAIN, 0 if math.isclose(validation + test, 1) else 1),
    ):
        if fraction and not counts[split]:
            raise ValueError(
                f"time_column {column!r}: the {name} split gets no row, because too many rows have one time: change "
                "the fractions, or name a column of finer times"
            )
    largest = max(ties, key=lambda split: ties[split])
    together = RowsTogether(first[largest] or 0, ties[largest], largest)
    return TimeSplit(first[VALIDATION], first[TEST], dict(enumerate(counts.tolist())), together)


def hashes_of_texts(texts: pa.StringArray) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each text. Two of 100 million groups have one hash with a chance of 1 in 4,000."""
    batch = texts.dictionary_encode()
    hashes = [blake2b(text.encode(), digest_size=8).digest() for text in batch.dictionary.to_pylist()]
    result: NDArray[np.uint64] = np.frombuffer(b"".join(hashes), np.uint64)[batch.indices.to_numpy()]
    return result
