"""Rows as readers yield them, rows that cannot be used, and errors of damaged files."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.storage.errors import one_line

REPORTED_ROWS = 20
"""Rows that cannot be used and are reported together."""
MAXIMUM_LINES = 50
"""Most lines about problems of one kind. Nobody reads more."""

_NAMED_COLUMNS = 10

Reject = Callable[[int, str, str], None]
"""Is called with a row that cannot be used: its number in the file, the column ("" for the whole row) and the problem,
such as "is missing: fill it in"."""


class LateFindings(Protocol):
    """A reader that notes, beside the rows, what only a pass over all rows shows. It can be pickled."""

    def take_late(self) -> Any:  # noqa: ANN401  (each reader has its own)
        """Return what the reader has noted, in a form that can be pickled, and forget it."""

    def add_late(self, found: Any) -> None:  # noqa: ANN401
        """Add what `take_late` of the same source has returned in any process."""


def ignore(row: int, column: str, problem: str) -> None:
    """Leave a row out, where the pass over all rows reports it."""


class Rows(NamedTuple):
    """Rows of a file.

    Attributes:
        rows: The rows.
        numbers: The number of each row in the file, from 1. The header of a CSV file is row 1.
    """

    rows: pa.RecordBatch
    numbers: NDArray[np.int64]


@dataclass
class ReadAgain(Exception):
    """A later row shows that the source must be read in another way than its first rows told.

    Attributes:
        codes: Columns that were read as numbers and have codes, such as "01234", with a code of each.
        image_shapes: Height, width and channels of columns whose images have colour and were read as grey ones.
        regression: Why the labels are numbers to predict and no classes; "" if they are classes.
    """

    codes: Mapping[str, str] = field(default_factory=dict)
    image_shapes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    regression: str = ""


class RowsRefused(ValueError):
    """Rows cannot be used. The message names each with its file."""


class RejectedRow(NamedTuple):
    """A row that cannot be used.

    Attributes:
        file: Name of the file.
        row: Number of the row in the file.
        column: Name of the column; "" for the whole row.
        problem: What is wrong, such as "is missing: fill it in".
    """

    file: str
    row: int
    column: str
    problem: str

    def __str__(self) -> str:
        """Return the line that tells a user about the row."""
        column = f": {self.column!r}" if self.column else ""
        return f"row {self.row} of {self.file}{column} {self.problem}"


@dataclass
class RejectedRows:
    """The rows of a source, or of a part of it, that cannot be used.

    Attributes:
        policy: "refuse": such rows are an error. "skip": they are counted and left out.
        count: Number of the rows.
        first: The first of them.
        columns: Number of the rows by column, "" for whole rows.
        first_of_columns: The first of them by column.
    """

    policy: Literal["refuse", "skip"] = "refuse"
    count: int = 0
    first: list[RejectedRow] = field(default_factory=list)
    columns: Counter[str] = field(default_factory=Counter)
    first_of_columns: dict[str, RejectedRow] = field(default_factory=dict)

    def add(self, file: str, row: int, column: str, problem: str) -> None:
        """Add a row, see `RejectedRow`.

        Raises:
            RowsRefused: The policy is "refuse", and this is the 20th row.
        """
        found = RejectedRow(file, row, column, problem)
        self.add_unnamed({column: 1})
        self.first_of_columns.setdefault(column, found)
        if len(self.first) < REPORTED_ROWS:
            self.first.append(found)
        if self.count == REPORTED_ROWS:
            self.check()

    def add_unnamed(self, columns: Mapping[str, int]) -> None:
        """Add the numbers of rows by column, without their places."""
        self.columns.update(columns)
        self.count += sum(columns.values())

    def merge(self, later: "RejectedRows", rows_before: Mapping[str, int]) -> None:
        """Add the rows of a later part of the source.

        Args:
            later: The rows, with their numbers in the part.
            rows_before: Rows of each file before the part. Default of a file: none.

        Raises:
            RowsRefused: The policy is "refuse", and there are 20 rows.
        """
        for file, row, column, problem in later.first:
            self.add(file, rows_before.get(file, 0) + row, column, problem)
        self.add_unnamed(later.columns - Counter(found.column for found in later.first))
        for column, found in later.first_of_columns.items():
            self.first_of_columns.setdefault(column, found._replace(row=rows_before.get(found.file, 0) + found.row))

    def check(self) -> None:
        """Check that there are no rows, unless they are to be skipped.

        Raises:
            RowsRefused: There are some. The message names each of the first 20, in one line those of one problem.
        """
        if self.count and self.policy == "refuse":
            if self.count == 1:
                raise RowsRefused(f'{self.first[0]} (on_bad_row="skip" leaves such rows out)')
            which = f"the first {self.count} rows" if self.count == REPORTED_ROWS else f"{self.count} rows"
            raise RowsRefused(
                "\n".join(_lines_of_rows(self.first))
                + f'\nthese are {which} that cannot be used: correct them, or set on_bad_row to "skip" to leave such '
                "rows out"
            )

    def notes(self) -> list[str]:
        """Return the lines for log and overview about rows that were left out."""
        if not self.count:
            return []
        rows = f"{self.count:,} row{'s' * (self.count != 1)}"
        most = max(self.columns, key=lambda column: (self.columns[column], column == self.first[0].column, column))
        columns = f" ({rows_by_column(self.columns)})" if len(self.columns) > 1 else ""
        return [f"left out {rows} that cannot be used{columns}, such as {self.first_of_columns[most]}"]


def _lines_of_rows(rows: Sequence[RejectedRow]) -> list[str]:
    """Return a line for each problem, which names all rows that have it."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for file, row, column, problem in rows:
        found.setdefault((file, column, problem), []).append(row)
    return [
        str(RejectedRow(file, numbers[0], column, problem))
        if len(numbers) == 1
        else f"rows {', '.join(map(str, numbers))} of {file}: {repr(column) if column else 'each'} {problem}"
        for (file, column, problem), numbers in found.items()
    ]


def rows_by_column(rows: Mapping[str, int]) -> str:
    """Return how many rows there are by column, the column with the most rows first: "'day': 1,200, 'volume': 3"."""
    largest = sorted(rows.items(), key=lambda item: (-item[1], item[0]))
    texts = [f"{repr(name) if name else 'whole rows'}: {count:,}" for name, count in largest[:_NAMED_COLUMNS]]
    return ", ".join([*texts, "…"] if len(largest) > _NAMED_COLUMNS else texts)


def bounded(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and one line with the number of the others."""
    hidden = len(lines) - MAXIMUM_LINES
    return [*lines] if hidden <= 0 else [*lines[:MAXIMUM_LINES], f"… and {hidden} more such lines"]


@contextmanager
def read_errors(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn the errors that libraries raise for a damaged file into a ValueError that names the file.

    Args:
        name: Name of the file.
        errors: More errors than OSError, ValueError, KeyError and NotImplementedError.

    Raises:
        ValueError: One of the errors occurred.
    """
    try:
        yield
    except RowsRefused:
        raise
    except (OSError, ValueError, KeyError, NotImplementedError, *errors) as error:  # type: ignore[misc]
        raise ValueError(f"{name} cannot be read: {one_line(error)}") from error


def read_rows(name: str, batches: Iterator[Rows]) -> Iterator[Rows]:
    """Yield rows of a file. Errors of reading it name the file.

    Raises:
        ValueError: The file is damaged, or has other columns or types.
    """
    while True:
        with read_errors(name):
            rows = next(batches, None)
        if rows is None:
            return
        yield rows


def numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[Rows]:
    """Yield rows with their numbers, the first of which is 1."""
    begin = 1
    for batch in batches:
        yield Rows(batch, np.arange(begin, begin + batch.num_rows))
        begin += batch.num_rows


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
