"""Which split a row belongs to, where a group, the time or a file decides."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.bit_mixing import STEP, mixed
from kfp_distributed.components.prepare_data.scan.split_keys import TEST, TRAIN, VALIDATION
from kfp_distributed.components.prepare_data.split.order_statistics import Numbers, order_statistics
from kfp_distributed.components.worker_pool.piece_tasks import Result


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


@dataclass(frozen=True)
class RowsOfGroups:
    """Rows of each group in a piece, or in several.

    Attributes:
        keys: Hash of each group, sorted.
        rows: Number of rows of each group.
    """

    keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def merged(self, other: "RowsOfGroups") -> "RowsOfGroups":
        """Return the rows of both."""
        keys, inverse = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        rows = np.bincount(inverse, np.concatenate([self.rows, other.rows]), len(keys))
        return RowsOfGroups(keys, rows.astype(np.int64))


def count_groups(keys: NDArray[np.int64]) -> RowsOfGroups:
    """Return the rows of each group by the hash of each row's group."""
    return RowsOfGroups(*np.unique(keys.view(np.uint64), return_counts=True))


def split_groups(groups: RowsOfGroups, validation: float, test: float, seed: int, column: str) -> GroupSplit:
    """Divide groups among the splits, so that each split has about its fraction of the rows.

    The groups are taken in an order that depends on the seed and their names alone.

    Args:
        groups: Rows of each group.
        validation: Fraction of the rows for validation.
        test: Fraction of the rows for the test.
        seed: Seed of the order.
        column: Name of the column, for errors.

    Raises:
        ValueError: There are fewer groups than splits with rows.
    """
    keys, rows = groups.keys, groups.rows
    seeds = mixed(np.array([seed], np.uint64) + np.uint64(STEP))
    order = np.argsort(mixed((keys ^ seeds) + np.uint64(STEP)))
    has_training = not math.isclose(validation + test, 1)
    needed = has_training + (validation > 0) + (test > 0)
    if len(keys) < needed:
        raise ValueError(
            f"group_column {column!r} has {len(keys)} different values, where {needed} splits need one each: set a "
            "fraction of split to 0, or name another column"
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


class MapTimes(Protocol):
    """Yields a function of the time of each row, by piece."""

    def __call__(self, function: Callable[[NDArray[np.int64]], Result], /) -> Iterable[Result]:
        """Return the results, which may be a generator."""
        ...


def split_times(times_of_pieces: MapTimes, validation: float, test: float, column: str) -> TimeSplit:
    """Divide rows by time: the newest are the test split, those before them the validation split.

    Rows of one time are in one split, so a split may have more rows than its fraction.

    Args:
        times_of_pieces: Runs a function of the times of each piece. It is called several times.
        validation: Fraction of the rows for validation.
        test: Fraction of the rows for the test.
        column: Name of the column, for errors.

    Raises:
        ValueError: A split with a fraction above 0 gets no row, because its fraction is less than one row, or too many
            rows are of one time.
    """
    rows = sum(times_of_pieces(len))
    test_rows, validation_rows = round(test * rows), round(validation * rows)
    for name, fraction, count in (("validation", validation, validation_rows), ("test", test, test_rows)):
        if fraction and not count:
            raise ValueError(
                f"{name}_fraction {fraction:g} of {rows} rows is less than one row: set it in split to 0 or to more, "
                "or add rows"
            )
    ranks = [rows - test_rows, rows - test_rows - validation_rows]
    places = [min(rank, rows - 1) for rank in ranks]

    def numbers(function: Callable[[Numbers], Result]) -> Iterable[Result]:
        return times_of_pieces(partial(_of_column, function, column))

    times = order_statistics(numbers, lambda count: places)[column]
    first = {VALIDATION: times[1] if validation_rows else None, TEST: times[0] if test_rows else None}
    counts, ties = np.zeros(4, np.int64), dict.fromkeys(first, 0)
    for counts_of_piece, ties_of_piece in times_of_pieces(partial(_count_times, first)):
        counts += counts_of_piece
        ties = {split: ties[split] + ties_of_piece[split] for split in ties}
    for name, split, fraction in (
        ("validation", VALIDATION, validation),
        ("test", TEST, test),
        ("train", TRAIN, 0 if math.isclose(validation + test, 1) else 1),
    ):
        if fraction and not counts[split]:
            raise ValueError(
                f"time_column {column!r}: the {name} split gets no row, because too many rows have one time: change "
                "the fractions of split, or name a column of finer times"
            )
    largest = max(ties, key=lambda split: ties[split])
    together = RowsTogether(first[largest] or 0, ties[largest], largest)
    return TimeSplit(first[VALIDATION], first[TEST], dict(enumerate(counts.tolist())), together)


def _of_column(function: Callable[[Numbers], Result], column: str, times: NDArray[np.int64]) -> Result:
    return function({column: times})


def _count_times(
    first: Mapping[int, int | None], times: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Mapping[int, int]]:
    """Return the rows of each split, and those of the first time of each split."""
    counts = np.bincount(_splits_of_times(times, first[VALIDATION], first[TEST]), minlength=4)
    ties = {split: 0 if time is None else int(np.count_nonzero(times == time)) for split, time in first.items()}
    return counts, ties
