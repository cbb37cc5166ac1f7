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

from kfp_distributed.components.prepare_data.column_kinds import class_names
from kfp_distributed.components.prepare_data.data_warnings import (
    ColumnCounts,
    column_warnings,
    spelling_warnings,
    text_form,
)
from kfp_distributed.components.prepare_data.growing_vocabulary import GrowingVocabulary, sorted_codes
from kfp_distributed.components.prepare_data.pieces import Pieces
from kfp_distributed.components.prepare_data.plan import order_classes
from kfp_distributed.components.prepare_data.profile import MAXIMUM_FEATURES
from kfp_distributed.components.prepare_data.read_ahead import read_ahead
from kfp_distributed.components.prepare_data.reading import Reject, RejectedRows, Rows
from kfp_distributed.components.prepare_data.sources import Source
from kfp_distributed.storage.dataset import Column, Label, column_matrix

# A text column with more values is a name, an address or free text rather than a category. The manifest stays small.
MAXIMUM_DISTINCT = 1000
# Rows between two log lines about the progress of the pass.
_ROWS_PER_LOG_LINE = 1_000_000


class Scan(NamedTuple):
    """What the pass has found.

    Attributes:
        columns: The inputs with their vocabularies.
        label: The label with its classes.
        class_counts: Rows of each class.
        missing: Rows of each input without a value.
        warnings: One line for each problem of a column.
        collapsed: Inputs whose different numbers become equal as 32-bit floats.
        codes: For each category and the label, the index of a value by its code in the pieces.
    """

    columns: tuple[Column, ...]
    label: Label
    class_counts: tuple[int, ...]
    missing: dict[str, int]
    warnings: list[str]
    collapsed: tuple[str, ...]
    codes: Mapping[str, NDArray[np.int32]]


def scan(source: Source, pieces: Pieces, rejected: RejectedRows | None = None) -> Scan:
    """Check all rows, count the classes, collect the vocabularies, and add the rows to the pieces.

    Args:
        source: The rows.
        pieces: Place for the rows, in the form of the shards, but for the codes of categories and label: these are in
            the order in which the values first appear.
        rejected: Gets the rows that cannot be used. Default: they are refused.

    Raises:
        ValueError: A row or column cannot be used. The message names it and what to do.
        CodesFound: A column of numbers has codes.
    """
    rejected = rejected or RejectedRows()
    encoder = _Encoder(source)
    for file, rows in read_ahead(_counted(source, rejected)):
        pieces.add(encoder.encode(rows, partial(rejected.add, file)))
    rejected.check()
    pieces.flush()
    return encoder.result()


class _Encoder:
    """Checks and counts the rows of a source in batches, and brings them into the form of the pieces."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._counts = {column.name: ColumnCounts(column.kind) for column in source.columns}
        names = [source.label, *(column.name for column in source.columns if column.kind == "category")]
        self._vocabularies = {name: GrowingVocabulary() for name in names}

    def encode(self, rows: Rows, reject: Reject) -> pa.RecordBatch:
        """Return the usable rows in the form of the pieces, and count them.

        Args:
            rows: The rows.
            reject: Is called for each row that cannot be used.
        """
        batch = {name: _checked(values) for name, values in zip(rows.rows.schema.names, rows.rows.columns, strict=True)}
        unusable = self._unusable(batch)
        for row in sorted(unusable):
            reject(int(rows.numbers[row]), *unusable[row])
        if unusable:
            is_usable = np.ones(rows.rows.num_rows, bool)
            is_usable[[*unusable]] = False
            usable = rows.rows.filter(pa.array(is_usable))
            batch = {name: _checked(values) for name, values in zip(usable.schema.names, usable.columns, strict=True)}
        return pa.record_batch({name: self._count(name, values) for name, values in batch.items()})

    def _unusable(self, batch: Mapping[str, _Values]) -> dict[int, tuple[str, str]]:
        """Return the column and the problem of each row that cannot be used."""
        unusable: dict[int, tuple[str, str]] = {}
        for name, values in batch.items():
            if values.numbers is None:
                if name == self._source.label and values.source.null_count:
                    for row in np.flatnonzero(np.asarray(values.source.is_null())).tolist():
                        unusable.setdefault(row, (name, "is missing: fill it in, or leave the row out"))
            elif math.isinf(values.low) or math.isinf(values.high):
                advice = "correct it, leave it empty, or name the column in drop_columns"
                for row in np.flatnonzero(np.isinf(values.numbers).any(axis=1)).tolist():
                    unusable.setdefault(row, (name, f"is infinite or too large for a 32-bit number: {advice}"))
        return unusable

    def _count(self, name: str, values: _Values) -> pa.Array:
        """Count the values of a column, and return them in the form of the pieces."""
        if values.numbers is None:
            return self._count_texts(name, values.source)
        counts, numbers = self._counts[name], values.numbers
        counts.missing += int(np.isnan(numbers).any(axis=1).sum())
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
        if len(vocabulary.codes) > MAXIMUM_DISTINCT:
            is_label = name == self._source.label
            advice = "name another label_column (a regression target?)" if is_label else "name it in drop_columns"
            raise ValueError(
                f"column {name!r} has more than {MAXIMUM_DISTINCT} different values, of the form "
                f"{text_form(next(iter(vocabulary.codes)))!r}: {advice}"
            )
        return pa.array(codes)

    def result(self) -> Scan:
        """Return what all batches have shown.

        Raises:
            ValueError: The label cannot be used.
        """
        for name, vocabulary in self._vocabularies.items():
            if name in self._counts:
                self._counts[name].values, self._counts[name].missing = vocabulary.rows, vocabulary.missing
        label, counts = self._source.label, self._counts
        spellings = _spellings_by_class(self._vocabularies[label].codes)
        label_rows = self._vocabularies[label].rows
        class_rows = {name: sum(label_rows[text] for text in texts) for name, texts in spellings.items()}
        classes = order_classes(class_rows, label)
        columns = tuple(
            replace(column, vocabulary=tuple(sorted(counts[column.name].values))) for column in self._source.columns
        )
        return Scan(
            columns,
            Label(label, classes),
            tuple(class_rows[name] for name in classes),
            {name: count.missing for name, count in counts.items()},
            [*column_warnings(counts, label_rows.total(), label, classes), *spelling_warnings(label, spellings)],
            tuple(name for name, count in counts.items() if count.precision.collapses()),
            self._codes(columns, classes, spellings),
        )

    def _codes(
        self, columns: Iterable[Column], classes: Iterable[str], spellings: Mapping[str, Iterable[str]]
    ) -> dict[str, NDArray[np.int32]]:
        """Return the index in the vocabulary of each code; of the label the index of the class."""
        orders = {
            column.name: {text: index for index, text in enumerate(column.vocabulary, 1)}
            for column in columns
            if column.kind == "category"
        }
        orders[self._source.label] = {text: index for index, name in enumerate(classes) for text in spellings[name]}
        return {name: sorted_codes(self._vocabularies[name].codes, order) for name, order in orders.items()}


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
    if pa.types.is_string(values.type):
        return _Values(values)
    exact = None if hasattr(values.type, "list_size") else values.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        numbers = column_matrix(values) if exact is None else exact.astype(np.float32)[:, np.newaxis]
    # These two ignore NaN, and return it if there is nothing else.
    low, high = (reduce(numbers, axis=None, initial=np.nan) for reduce in (np.fmin.reduce, np.fmax.reduce))
    return _Values(values, numbers, exact, float(low), float(high))


def _spellings_by_class(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the spellings of each class."""
    spellings: dict[str, list[str]] = {}
    for text, name in zip(texts, class_names(pa.array(texts, pa.string())).to_pylist(), strict=True):
        spellings.setdefault(name, []).append(text)
    return spellings


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
