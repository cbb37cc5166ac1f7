"""The pass over a source: check every row, and keep the rows on the disk, in the form of the shards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.booleans import value_names
from kfp_distributed.components.prepare_data.data_warnings import ColumnCounts, column_warnings, text_form
from kfp_distributed.components.prepare_data.frequent_texts import FrequentTexts
from kfp_distributed.components.prepare_data.growing_vocabulary import GrowingVocabulary, sorted_codes
from kfp_distributed.components.prepare_data.label_counts import LabelCounts
from kfp_distributed.components.prepare_data.pieces import Pieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.profile import MAXIMUM_FEATURES
from kfp_distributed.components.prepare_data.read_ahead import read_ahead
from kfp_distributed.components.prepare_data.reading import Reject, RejectedRows, Rows
from kfp_distributed.components.prepare_data.source import SPLIT_KEY, Source
from kfp_distributed.components.prepare_data.split_rows import DRAWN, hashes_of_texts
from kfp_distributed.components.prepare_data.vocabulary import Unseen
from kfp_distributed.storage.dataset import Column, Label, column_matrix

FIXED_SPLIT = "\0file"
"""Name of a column of pieces: the split of a row whose file decides about it. No source has a column of this name."""

# A text column with more values is a name, an address or free text rather than a category. The manifest stays small.
MAXIMUM_DISTINCT = 1000
# Rows between two log lines about the progress of the pass.
_ROWS_PER_LOG_LINE = 1_000_000


class Scan(NamedTuple):
    """What the pass has found.

    Attributes:
        columns: The inputs with their vocabularies.
        label: The label with its classes.
        class_counts: Rows of each class; () without classes.
        missing: Rows of each input without a value.
        warnings: One line for each problem of a column.
        collapsed: Inputs whose different numbers become equal as 32-bit floats.
        codes: For each category and the label with classes, the index of a value by its code in the pieces.
        dropped: Rows that were left out because a value is missing.
        unseen: Values of categories that the dataset does not have whose vocabularies are applied.
        frequent_groups: Values of the group column, among which are those of many rows.
    """

    columns: tuple[Column, ...]
    label: Label
    class_counts: tuple[int, ...]
    missing: dict[str, int]
    warnings: list[str]
    collapsed: tuple[str, ...]
    codes: Mapping[str, NDArray[np.int32]]
    dropped: int = 0
    unseen: tuple[Unseen, ...] = ()
    frequent_groups: tuple[str, ...] = ()


class Scanner:
    """The pass over one source or several, whose rows have the same columns.

    Args:
        source: The first source.
        pieces: Place for the rows, in the form of the shards, but for the codes of categories and label: these are in
            the order in which the values first appear.
        options: What becomes of missing values, whether the task is open, and the dataset whose classes are applied.
    """

    def __init__(self, source: Source, pieces: Pieces, options: Options | None = None) -> None:
        options = options or Options()
        self._source, self._pieces = source, pieces
        self._encoder = _Encoder(source, options)

    def add(
        self, source: Source, rejected: RejectedRows, split: int = DRAWN, *, has_fixed_splits: bool = False
    ) -> None:
        """Check all rows, count the classes, collect the vocabularies, and add the rows to the pieces.

        Args:
            source: The rows.
            rejected: Gets the rows that cannot be used.
            split: Split of all rows of the source. Default: it is drawn, or the source's column decides.
            has_fixed_splits: Whether any source has a split. Then it is recorded for each row. Default: false.

        Raises:
            ValueError: A row or column cannot be used. The message names it and what to do.
            ReadAgain: A column of numbers has codes, or the labels are numbers to predict, and the task is open.
        """
        for file, rows in read_ahead(_counted(source, rejected)):
            batch = self._encoder.encode(rows, partial(rejected.add, file))
            if has_fixed_splits:
                batch = batch.append_column(FIXED_SPLIT, pa.array(np.full(batch.num_rows, split, np.int8)))
            self._pieces.add(batch)

    @property
    def reason(self) -> str:
        """Why the task is what it is, for the log."""
        return self._encoder.reason

    def result(self, rejected: RejectedRows) -> Scan:
        """Return what all rows have shown.

        Raises:
            ValueError: Rows or the label cannot be used.
        """
        rejected.check()
        if not self._pieces.rows:
            notes = [*lines_about_gaps(self._encoder.dropped), *rejected.notes()]
            raise ValueError(
                "; ".join(["no row is left", *notes]) + ". Correct the rows, or drop the columns with gaps"
            )
        self._pieces.flush()
        return self._encoder.result()


def scan(source: Source, pieces: Pieces, rejected: RejectedRows | None = None, options: Options | None = None) -> Scan:
    """Check all rows of one source, and add them to the pieces, see `Scanner`."""
    scanner, rejected = Scanner(source, pieces, options), rejected or RejectedRows()
    scanner.add(source, rejected)
    return scanner.result(rejected)


class _Encoder:
    """Checks and counts the rows of a source in batches, and brings them into the form of the pieces."""

    def __init__(self, source: Source, options: Options) -> None:
        self._source, self._options = source, options
        self._missing = options.missing or ("keep" if source.task == "none" else "impute")
        self._counts = {
            column.name: ColumnCounts(
                column.kind, is_date=column.source_type == "date", is_declared=column.name in options.columns
            )
            for column in source.columns
        }
        self._label = LabelCounts(source.label, source.task, is_task_open=options.task is None)
        names = [column.name for column in source.columns if column.kind == "category"]
        self._vocabularies = {name: GrowingVocabulary() for name in names}
        if source.task == "classification":
            self._vocabularies[source.label] = self._label.vocabulary
        self._groups = FrequentTexts()
        self.dropped = self._rows = 0

    def encode(self, rows: Rows, reject: Reject) -> pa.RecordBatch:
        """Return the usable rows in the form of the pieces, and count them.

        Args:
            rows: The rows.
            reject: Is called for each row that cannot be used.
        """
        batch = self._checked(rows.rows)
        unusable = self._unusable(batch)
        gaps = self._gaps(batch) if self._missing in ("drop", "refuse") else {}
        if self._missing == "refuse":
            unusable |= {row: gap for row, gap in gaps.items() if row not in unusable}
        for row in sorted(unusable):
            reject(int(rows.numbers[row]), *unusable[row])
        self.dropped += len({*gaps} - {*unusable})
        if left_out := {*unusable, *gaps}:
            is_usable = np.ones(rows.rows.num_rows, bool)
            is_usable[[*left_out]] = False
            batch = self._checked(rows.rows.filter(pa.array(is_usable)))
        self._rows += rows.rows.num_rows - len(left_out)
        return pa.record_batch({name: self._count(name, values) for name, values in batch.items()})

    def _checked(self, rows: pa.RecordBatch) -> dict[str, _Values]:
        """Return the columns, with their numbers where these are not kept as they are."""
        return {
            name: _Values(values) if name in self._source.types else _checked(values)
            for name, values in zip(rows.schema.names, rows.columns, strict=True)
        }

    def _unusable(self, batch: Mapping[str, _Values]) -> dict[int, tuple[str, str]]:
        """Return the column and the problem of each row that cannot be used."""
        unusable: dict[int, tuple[str, str]] = {}
        for name, values in batch.items():
            if name == self._source.label:
                for row, problem in self._label.unusable(values.source, self._options.like).items():
                    unusable.setdefault(row, (name, problem))
            elif math.isinf(values.low) or math.isinf(values.high):
                advice = "correct it, leave it empty, or name the column in drop_columns"
                assert values.numbers is not None
                for row in np.flatnonzero(np.isinf(values.numbers).any(axis=1)).tolist():
                    unusable.setdefault(row, (name, f"is infinite or too large for a 32-bit number: {advice}"))
        return unusable

    def _gaps(self, batch: Mapping[str, _Values]) -> dict[int, tuple[str, str]]:
        """Return the column and the problem of each row in which an input is missing."""
        gaps: dict[int, tuple[str, str]] = {}
        for name in self._counts:
            values = batch[name]
            is_missing = (
                values.source.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
                if values.numbers is None
                else np.isnan(values.numbers).any(axis=1)
            )
            for row in np.flatnonzero(is_missing).tolist():
                gaps.setdefault(row, (name, 'is missing: fill it in, or set missing to "impute" or "drop"'))
        return gaps

    def _count(self, name: str, values: _Values) -> pa.Array:
        """Count the values of a column, and return them in the form of the pieces."""
        if name == SPLIT_KEY:
            if self._source.split_by.kind == "time":
                return values.source
            self._groups.add(values.source)
            return pa.array(hashes_of_texts(values.source))
        if name in self._vocabularies:
            return self._count_texts(name, values.source)
        if name == self._source.label:
            return self._label.count(values.source)
        if values.numbers is None:
            self._counts[name].missing += values.source.is_null(nan_is_null=True).true_count
            return values.source
        counts, numbers = self._counts[name], values.numbers
        counts.missing += _rows_with_nan(numbers)
        if not math.isnan(values.low):
            counts.lowest, counts.highest = min(counts.lowest, values.low), max(counts.highest, values.high)
        if values.exact is not None:
            counts.precision.add(values.exact)
            counts.whole_numbers.add(values.exact)
            return pa.array(numbers[:, 0], from_pandas=True)
        kind = values.source.type.value_type
        if kind == pa.float64() and numbers.shape[1] <= MAXIMUM_FEATURES:
            counts.precision.add(values.source.flatten().to_numpy().reshape(numbers.shape))
        if kind == pa.uint8():
            return values.source
        return pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), numbers.shape[1])

    def _count_texts(self, name: str, texts: pa.Array) -> pa.Array:
        vocabulary = self._vocabularies[name]
        codes = vocabulary.encode(texts)
        if name == self._source.label:
            self._label.check()
        elif len(vocabulary.codes) > MAXIMUM_DISTINCT and not self._options.like:
            raise ValueError(
                f"column {name!r} has more than {MAXIMUM_DISTINCT} different values, of the form "
                f"{text_form(next(iter(vocabulary.codes)))!r}: name it in drop_columns, or keep it for a function of "
                f'your own by columns={{{name!r}: "text"}}'
            )
        return pa.array(codes)

    @property
    def reason(self) -> str:
        """Why the task is what it is, for the log."""
        return self._label.reason()

    def result(self) -> Scan:
        """Return what all batches have shown.

        Raises:
            ValueError: The label cannot be used.
        """
        counts, like = self._counts, self._options.like
        known = {column.name: column.vocabulary for column in like.columns} if like else {}
        names: dict[str, dict[str, str]] = {}
        for name, vocabulary in self._vocabularies.items():
            if name in counts:
                names[name] = value_names(vocabulary.codes, known.get(name))
                counts[name].missing = vocabulary.missing
                for text, rows in vocabulary.rows.items():
                    counts[name].values[names[name][text]] += rows
        label, class_counts, spelled = self._label.result(like)
        columns = (
            like.columns
            if like
            else tuple(
                replace(column, vocabulary=tuple(sorted(counts[column.name].values))) for column in self._source.columns
            )
        )
        is_imputed = self._missing == "impute"
        filled = {column.name for column in columns if (column.fill is not None if like else is_imputed)}
        return Scan(
            columns,
            label,
            class_counts,
            {name: count.missing for name, count in counts.items()},
            [*column_warnings(counts, self._rows, label.name, label.classes, filled), *self._label.warnings()],
            tuple(name for name, count in counts.items() if count.precision.collapses()),
            self._codes(columns, names, spelled),
            self.dropped,
            self._unseen(columns) if like else (),
            self._groups.texts,
        )

    def _unseen(self, columns: Iterable[Column]) -> tuple[Unseen, ...]:
        found = []
        for column in columns:
            if column.kind == "category":
                values = {
                    text: rows
                    for text, rows in self._counts[column.name].values.items()
                    if text not in column.vocabulary
                }
                if values:
                    found.append(Unseen(column.name, tuple(values), sum(values.values())))
        return tuple(found)

    def _codes(
        self, columns: Iterable[Column], names: Mapping[str, Mapping[str, str]], spelled: Mapping[str, int]
    ) -> dict[str, NDArray[np.int32]]:
        """Return the index in the vocabulary of each code; of the label the index of the class."""
        orders = {}
        for column in columns:
            if column.kind == "category":
                indices = {text: index for index, text in enumerate(column.vocabulary, 1)}
                orders[column.name] = {text: indices.get(name, 0) for text, name in names[column.name].items()}
        if self._source.task == "classification":
            orders[self._source.label] = dict(spelled)
        return {name: sorted_codes(self._vocabularies[name].codes, order) for name, order in orders.items()}


def lines_about_gaps(dropped: int) -> list[str]:
    """Return a line about the rows that were left out because a value is missing, if there are any."""
    return [f"left out {dropped:,} rows in which a value is missing"] if dropped else []


def _rows_with_nan(numbers: NDArray[np.float32]) -> int:
    if numbers.shape[1] == 1:
        return len(numbers) - int(np.count_nonzero(numbers == numbers))
    return int(np.isnan(numbers).any(axis=1).sum())


class _Values(NamedTuple):
    """A batch of values of a column.

    Attributes:
        source: The values as they are read.
        numbers: The numbers as 32-bit floats, [rows, values of a row]; None for texts. Those that are too large are
            infinite.
        exact: The numbers of a column as 64-bit floats; None for tensors and texts.
        low: The lowest number; NaN if there is none.
        high: The highest number; NaN if there is none.
    """

    source: pa.Array
    numbers: NDArray[np.float32] | None = None
    exact: NDArray[np.float64] | None = None
    low: float = math.nan
    high: float = math.nan


def _checked(values: pa.Array) -> _Values:
    """Return the numbers of values, if they are numbers."""
    is_tensor = pa.types.is_fixed_size_list(values.type)
    if values.type != pa.float64() and not is_tensor:
        return _Values(values)
    exact = None if is_tensor else values.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        numbers = column_matrix(values) if exact is None else exact.astype(np.float32)[:, np.newaxis]
    # These two ignore NaN, and return it if there is nothing else.
    low, high = (reduce(numbers, axis=None, initial=np.nan) for reduce in (np.fmin.reduce, np.fmax.reduce))
    return _Values(values, numbers, exact, float(low), float(high))


def _counted(source: Source, rejected: RejectedRows) -> Iterator[tuple[str, Rows]]:
    """Yield each batch with its file, and log the progress."""
    count = logged = 0
    for file, rows in source.batches(rejected):
        yield file, rows
        count += rows.rows.num_rows
        if count >= logged + _ROWS_PER_LOG_LINE:
            logged = count
            print(f"read {count:,} rows", flush=True)
    print(f"read {count:,} rows, all", flush=True)
