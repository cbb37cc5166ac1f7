"""Columns that number the rows: IDs and the index that pandas writes (pure)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

INDEX_NAMES = ("", "Unnamed: 0", "__index_level_0__")
"""Names of the index of a pandas table: in CSV without a name, after it was read again, and in Parquet."""

_ID_NAME = re.compile(r"(.*[^a-zA-Z])?([iI][dD]|(?i:index|idx|uuid|guid))|.*[a-z]I[dD]", re.DOTALL)


@dataclass
class WholeNumbers:
    """Whether the numbers of a column are whole, and whether they increase or decrease from each row to the next.

    Attributes:
        are_whole: Whether all numbers are whole and none is missing.
        increase: Whether each is more than the one before.
        decrease: Whether each is less than the one before.
    """

    are_whole: bool = True
    increase: bool = True
    decrease: bool = True
    _first: float | None = None
    _last: float | None = None

    def add(self, numbers: NDArray[np.float64]) -> None:
        """Add a batch of finite numbers and NaN."""
        # NaN is not equal to itself. Most columns of fractions have one among the first numbers.
        for part in (numbers[:100], numbers[100:]):
            self.are_whole = self.are_whole and bool((part == np.floor(part)).all())
        if self.are_whole and len(numbers):
            steps = np.diff(numbers if self._last is None else np.concatenate([[self._last], numbers]))
            self.increase = self.increase and bool((steps > 0).all())
            self.decrease = self.decrease and bool((steps < 0).all())
            self._first = float(numbers[0]) if self._first is None else self._first
            self._last = float(numbers[-1])

    def merge(self, other: "WholeNumbers") -> None:
        """Add the numbers of the rows that follow."""
        self.are_whole = self.are_whole and other.are_whole
        self.increase, self.decrease = self.increase and other.increase, self.decrease and other.decrease
        if self._last is not None and other._first is not None:
            self.increase = self.increase and other._first > self._last
            self.decrease = self.decrease and other._first < self._last
        self._first = other._first if self._first is None else self._first
        self._last = self._last if other._last is None else other._last

    def is_id(self, name: str) -> bool:
        """Return whether a column of this name looks like an ID or row number."""
        has_order = self.increase or self.decrease
        return self._last is not None and self.are_whole and (has_order or _ID_NAME.fullmatch(name) is not None)


def counts_rows(batches: Iterable[tuple[str, pa.Array]]) -> bool:
    """Return whether the values are 0, 1, 2, …, or from 1, in each file or over all files.

    Args:
        batches: The values, with the name of their file.
    """
    file, in_file, in_all, row, begin, start = "", True, True, 0, 0, 0
    for name, values in batches:
        if name != file:
            file, begin = name, row
        try:
            numbers = values.cast(pa.int64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return False
        if numbers.null_count:
            return False
        if not row and len(numbers):
            start = min(1, max(0, numbers[0].as_py()))
        rows = np.arange(row, row + len(numbers)) + start
        in_file, in_all = (
            in_file and bool((numbers.to_numpy() == rows - begin).all()),
            in_all and bool((numbers.to_numpy() == rows).all()),
        )
        row += len(numbers)
        if not (in_file or in_all):
            return False
    return True


def lines_about_index(name: str, *, is_left_out: bool) -> list[str]:
    """Return one line about the index column of a table.

    Args:
        name: Name of the column.
        is_left_out: Whether it is no input.
    """
    advice = "Write the source without it (to_csv(index=False), row.names=FALSE)"
    if is_left_out:
        return [
            f"left out column {name!r}, which numbers the rows, as the index of pandas or the names of R do. {advice}"
        ]
    return [
        f"column {name!r}, whose name is that of an index of pandas, is used as an input. {advice}, or name it in "
        "drop_columns"
    ]
