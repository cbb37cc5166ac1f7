"""Reads the raw rows of a table, of arrays or of images by the readers of `prepare_data`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.predict.reading.input_rows import InputRows
from kfp_distributed.components.predict.reading.joined_rows import joined_rows
from kfp_distributed.components.predict.reading.seen_values import seen_values
from kfp_distributed.components.prepare_data.columns.column_names import ColumnsMissing
from kfp_distributed.components.prepare_data.columns.python_values import python_values
from kfp_distributed.components.prepare_data.columns.source import Source
from kfp_distributed.components.prepare_data.columns.spelled_values import as_written, number_names, value_names
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.read import kept_types, options_like
from kfp_distributed.components.prepare_data.sources.chunks import CHUNK_BYTES, Chunk, CountRows, FilePart, ignore_count
from kfp_distributed.components.prepare_data.sources.folder_splits import splits_of
from kfp_distributed.components.prepare_data.sources.read_rows import LateFindings, Reject
from kfp_distributed.components.prepare_data.sources.source_files import DELIMITED, SourceFiles, ending
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.prepare_data.tables.open_source import lines_about_missing, open_source
from kfp_distributed.storage.dataset import Column, Task, column_matrix


@dataclass(frozen=True)
class SourceRows:
    """The rows of a source, see `RowReader`.

    Attributes:
        source: Reader of the model's columns.
        keys: Reader of the key columns; None for none.
        columns: Columns of the model.
        is_filled: Whether gaps in numbers get the number that the training data have there. A model with an input for
            each column fills them itself. The matrix of a dataset has no gaps.
        has_header: Whether the first row of a file is a header.
    """

    source: Source
    keys: Source | None
    columns: tuple[Column, ...]
    is_filled: bool
    has_header: bool

    file_column = "file"

    @property
    def key_schema(self) -> pa.Schema:
        """See `RowReader`."""
        if not self.keys:
            return pa.schema([])
        return pa.schema([(column.name, _key_type(column, self.keys.types)) for column in self.keys.columns])

    @property
    def first_row(self) -> int:
        """See `RowReader`."""
        return 1 + self.has_header

    @property
    def late_findings(self) -> LateFindings | None:
        """See `RowReader`."""
        return self.source.late_findings

    def late_notes(self) -> list[str]:
        """See `RowReader`."""
        return [*self.source.late_notes(), *lines_about_missing([self.late_findings])]

    def chunks(self) -> Sequence[Chunk]:
        """See `RowReader`."""
        return self.source.chunks(CHUNK_BYTES)

    def read(self, part: FilePart, reject: Reject, count_rows: CountRows) -> Iterator[InputRows]:
        """See `RowReader`."""
        read = self.source.rows(part, reject, count_rows)
        keys = self.keys.rows(part, reject, ignore_count) if self.keys else None
        for numbers, batch, key_batch in joined_rows(read, keys):
            found = self._usable(batch, numbers, reject)
            rows = InputRows(found[0], self._keys_of(key_batch), numbers).take(found[1])
            yield replace(rows, seen=seen_values(self.columns, batch))

    def file_names(self, part: FilePart, numbers: NDArray[np.int64]) -> list[str] | None:
        """See `RowReader`."""
        name = self.source.file_of_row
        return name and [name(part.begin + number - 1) for number in numbers.tolist()]

    def _keys_of(self, batch: pa.RecordBatch | None) -> pa.RecordBatch:
        schema = self.key_schema
        if batch is None:
            return pa.record_batch([], schema=schema)
        columns = [batch[name].cast(kind) for name, kind in zip(schema.names, schema.types, strict=True)]
        return pa.record_batch(columns, schema=schema)

    def _usable(
        self, batch: pa.RecordBatch, numbers: NDArray[np.int64], reject: Reject
    ) -> tuple[dict[str, Any], NDArray[np.bool_]]:
        """Return the raw values of the columns, and which rows have finite numbers."""
        is_usable = np.ones(batch.num_rows, np.bool_)
        values = {column.name: self._values(column, batch[column.name]) for column in self.columns}
        for name, column in values.items():
            if column.dtype.kind != "f":
                continue
            for row in np.flatnonzero(np.isinf(column).any(axis=tuple(range(1, column.ndim)))).tolist():
                is_usable[row] = False
                reject(
                    int(numbers[row]),
                    name,
                    "is infinite or too large for a 32-bit number: correct it, or leave it empty",
                )
        return values, is_usable

    def _values(self, column: Column, values: pa.Array) -> NDArray[Any]:
        if column.kind == "kept":
            return _objects(python_values(values))
        if column.kind == "category":
            return _category(column, values)
        with np.errstate(over="ignore"):
            numbers = column_matrix(values)
        if column.shape:
            return numbers.reshape(-1, *column.shape)
        numbers = numbers[:, 0]
        if self.is_filled and column.fill is not None:
            numbers = np.where(np.isnan(numbers), np.float32(column.fill), numbers)
        return numbers


def _category(column: Column, texts: pa.StringArray) -> NDArray[Any]:
    """Return the texts of a category in the spelling of the training data, None for a gap."""
    coded = texts.dictionary_encode()
    different = coded.dictionary
    if column.vocabulary:
        names = [*value_names(different.to_pylist(), column.vocabulary).values()]
    else:  # Nothing is known about the spelling of booleans.
        names = [*map(as_written, number_names(different).to_pylist())]
    by_index = _objects([None, *names])
    found: NDArray[Any] = by_index[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False) + 1]
    return found


def _objects(values: Sequence[object]) -> NDArray[Any]:
    """Return an array of objects, [n], also for lists."""
    array = np.empty(len(values), object)
    array[:] = [*values]
    return array


def _key_type(column: Column, types: Mapping[str, pa.DataType]) -> pa.DataType:
    if column.name in types:
        return types[column.name]
    size = int(np.prod(column.shape))
    return pa.list_(pa.uint8() if column.dtype == "uint8" else pa.float32(), size)


def open_rows(
    path: SourcePath | None,
    options: Options,
    columns: tuple[Column, ...],
    key_columns: Sequence[str],
    scratch: Path,
    codes: Mapping[str, str],
    *,
    are_kept: bool,
    are_kinds_known: bool,
    is_filled: bool,
) -> SourceRows:
    """Open a source.

    Args:
        path: File or folder; None for the digits.
        options: How CSV files are written, and what becomes of rows that cannot be used.
        columns: Columns of the model.
        key_columns: Names of the key columns.
        scratch: Empty folder for unpacked files.
        codes: Key columns of CSV files whose numbers are codes, with a code of each.
        are_kept: See `ModelPlan`.
        are_kinds_known: Whether the columns are those of the training data. Else a column of numbers may have dates.
        is_filled: See `SourceRows`.

    Raises:
        ValueError: The format is not supported, or the columns are not those of the model.
    """
    files = _files(path) if path else None
    folders = scratch / "inputs", scratch / "keys"
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    like = options_like(options, columns)
    if not are_kinds_known:
        like = replace(like, columns={name: kind for name, kind in like.columns.items() if kind == "category"})
    # The label is not read, so that no other task is needed.
    task: Task = "none" if are_kept else "classification"
    source = _open(files, like, folders[0], {}, task, "the columns of the model")
    source = _checked(source, columns)
    keys = None
    if key_columns:
        key_options = Options(
            label_column="",
            csv_format=options.csv_format,
            on_bad_row=options.on_bad_row,
            inputs=tuple(key_columns),
            image_shapes={name: shape for name, shape in like.image_shapes.items() if name in key_columns},
        )
        keys = _open(files, key_options, folders[1], codes, "none", "the key_columns")
    is_csv = files is not None and any(ending(file) in DELIMITED for file in files.files)
    return SourceRows(source, keys, columns, is_filled, is_csv and options.csv_format.header)


def _files(path: SourcePath) -> SourceFiles:
    splits = splits_of(path)
    if len(splits) > 1:
        raise ValueError(
            f"source {path.name} has splits of its own ({', '.join(name or 'train' for name in splits)}): give the "
            "files of one split"
        )
    return splits[""]


def _open(
    files: SourceFiles | None, options: Options, scratch: Path, codes: Mapping[str, str], task: Task, what: str
) -> Source:
    """Open a source for some of its columns.

    Args:
        files: Its files.
        options: Names of the columns.
        scratch: Empty folder for unpacked files.
        codes: Columns of codes.
        task: What is predicted.
        what: What the columns are, for errors.
    """
    try:
        return open_source(files, options, scratch, codes, task)
    except ColumnsMissing as error:
        lacking = ", ".join(map(repr, error.missing[:10])) + ", …" * (len(error.missing) > 10)
        raise ValueError(
            f"{error.where} lacks {lacking} of {what}; it has {list(error.names[:50])}: write these columns into the "
            "source, with the names that they have there"
        ) from None


def _checked(source: Source, columns: Sequence[Column]) -> Source:
    """Check that the columns of a source are of the kinds that the model takes, and return the source with these.

    Raises:
        ValueError: They are not.
    """
    found = {column.name: column for column in source.columns}
    for column in columns:
        own = found[column.name]
        if (own.kind, own.shape) != (column.kind, column.shape):
            raise ValueError(
                f"column {column.name!r} of the source is a {own.kind} of the shape {list(own.shape)}, and the model "
                f"takes a {column.kind} of the shape {list(column.shape)}: write the column in the form of the "
                "training data"
            )
    types = kept_types(source, columns)
    return replace(source, types=types)
