"""The pass over a source: check every row, and keep the rows on the disk, in the form of the shards."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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


def scan(source: Source, pieces: Pieces) -> Scan:
    """Check all rows, count the classes, collect the vocabularies, and add the rows to the pieces.

    Args:
        source: The rows.
        pieces: Place for the rows, in the form of the shards, but for the codes of categories and label: these are in
            the order in which the values first appear.

    Raises:
        ValueError: A row or column cannot be used. The message names it and what to do.
    """
    encoder = _Encoder(source)
    for file, begin, batch in read_ahead(_counted(source)):
        pieces.add(encoder.encode(file, begin, batch))
    pieces.flush()
    return encoder.result()


class _Encoder:
    """Checks and counts the rows of a source in batches, and brings them into the form of the pieces."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._counts = {column.name: ColumnCounts(column.kind) for column in source.columns}
        names = [source.label, *(column.name for column in source.columns if column.kind == "category")]
        self._vocabularies = {name: GrowingVocabulary() for name in names}

    def encode(self, file: str, begin: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the form of the pieces.

        Args:
            file: File of the rows, for errors.
            begin: Number of the first row in its file.
            batch: The rows.

        Raises:
            ValueError: A row cannot be used.
        """
        rows = {}
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            try:
                encode = self._encode_texts if name in self._vocabularies else self._encode_numbers
                rows[name] = encode(name, values)
            except _UnusableRow as unusable:
                raise ValueError(f"row {begin + unusable.row} of {file}: {name!r} {unusable.reason}") from None
        return pa.record_batch(rows)

    def _encode_texts(self, name: str, values: pa.Array) -> pa.Array:
        """Return the codes of texts."""
        is_label = name == self._source.label
        if is_label and values.null_count:
            raise _UnusableRow(_first(values.is_null()), "is missing: fill it in, or leave the row out")
        vocabulary = self._vocabularies[name]
        codes = vocabulary.encode(values)
        if len(vocabulary.codes) > MAXIMUM_DISTINCT:
            advice = "name another label_column (a regression target?)" if is_label else "name it in drop_columns"
            raise ValueError(
                f"column {name!r} has more than {MAXIMUM_DISTINCT} different values, of the form "
                f"{text_form(next(iter(vocabulary.codes)))!r}: {advice}"
            )
        return pa.array(codes)

    def _encode_numbers(self, name: str, values: pa.Array) -> pa.Array:
        """Return numbers or tensors with 32-bit floats."""
        counts, is_number = self._counts[name], not hasattr(values.type, "list_size")
        exact = values.to_numpy(zero_copy_only=False) if is_number else None
        # Numbers that are too large for a 32-bit float become infinite.
        with np.errstate(over="ignore"):
            numbers = column_matrix(values) if exact is None else exact.astype(np.float32)[:, np.newaxis]
        is_nan = np.isnan(numbers)
        counts.missing += int(is_nan.any(axis=1).sum())
        # These two ignore NaN.
        low = np.fmin.reduce(numbers, axis=None, initial=np.inf)
        high = np.fmax.reduce(numbers, axis=None, initial=-np.inf)
        if not is_nan.all() and (math.isinf(low) or math.isinf(high)):
            advice = "correct it, leave it empty, or name the column in drop_columns"
            row = int(np.isinf(numbers).any(axis=1).argmax())
            raise _UnusableRow(row, f"is infinite or too large for a 32-bit number: {advice}")
        counts.lowest, counts.highest = min(counts.lowest, float(low)), max(counts.highest, float(high))
        if exact is not None:
            counts.precision.add(exact)
            counts.whole_numbers.add(exact)
            return pa.array(numbers[:, 0], from_pandas=True)
        if values.type.value_type == pa.float64() and numbers.shape[1] <= MAXIMUM_FEATURES:
            counts.precision.add(values.flatten().to_numpy().reshape(numbers.shape))
        if values.type.value_type == pa.uint8():
            return values
        return pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), numbers.shape[1])

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


@dataclass
class _UnusableRow(Exception):
    """A row that cannot be used: its index in the batch, and the reason."""

    row: int
    reason: str


def _first(is_true: pa.BooleanArray) -> int:
    return int(np.asarray(is_true).argmax())


def _spellings_by_class(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the spellings of each class."""
    spellings: dict[str, list[str]] = {}
    for text, name in zip(texts, class_names(pa.array(texts, pa.string())).to_pylist(), strict=True):
        spellings.setdefault(name, []).append(text)
    return spellings


def _counted(source: Source) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Yield each batch with its file and the line number of its first row, and log the progress."""
    rows: Counter[str] = Counter()
    logged = 0
    for file, batch in source.batches():
        yield file, rows[file] + source.first_row, batch
        rows[file] += batch.num_rows
        if rows.total() >= logged + _ROWS_PER_LOG_LINE:
            logged = rows.total()
            print(f"read {logged:,} rows", flush=True)
    print(f"read {rows.total():,} rows, all", flush=True)
