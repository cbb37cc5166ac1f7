"""Opens CSV and Parquet files, and chooses how each of their columns is read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kfp_distributed.components.prepare_data.column_kinds import (
    CSV_TYPES,
    KEPT_TYPES,
    TextKind,
    column_of,
    declared_column,
    kept_type_of_texts,
    lines_about_codes,
    lines_about_dates,
    survey_texts,
)
from kfp_distributed.components.prepare_data.column_names import check_names, input_names
from kfp_distributed.components.prepare_data.csv_files import csv_names, read_csv
from kfp_distributed.components.prepare_data.left_out import lines_about_columns
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.reading import Reject, RejectedRows, Rows, numbered, readable, reading
from kfp_distributed.components.prepare_data.row_numbers import INDEX_NAMES, counts_rows, lines_about_index
from kfp_distributed.components.prepare_data.source import Source, SplitBy
from kfp_distributed.storage.dataset import Column, Task

# Approximate size of a batch.
_BATCH_BYTES = 2**23
# Bytes of each column of a Parquet file that are read at once.
_READ_BYTES = 2**20

ReadTable = Callable[[Path, Mapping[str, pa.DataType], Reject], Iterator[Rows]]
"""Yields the rows of a file. It gets the columns and their types; all columns as they are if there are none."""


def table_source(files: Sequence[Path], options: Options, codes: Mapping[str, str], task: Task) -> Source:
    """Open CSV or Parquet files, which must all have the columns of the first one that has rows.

    Args:
        files: The files, all of one kind.
        options: The options of reading.
        codes: Columns of CSV files whose numbers are codes, with a code of each.
        task: What is predicted.

    Raises:
        ValueError: A file cannot be read, or the columns do not fit the options.
    """
    is_csv = _is_csv(files[0])
    read: ReadTable = partial(read_csv, csv_format=options.csv_format) if is_csv else read_parquet
    first, found = _first_rows(files, read)
    with reading(first):
        if is_csv and len(found) == 1 and options.label_column not in ("", found[0]):
            raise ValueError(
                f"its header is one column {found[0]!r}: separate the columns by {options.csv_format.separator!r}"
            )
    names = {}
    for file in files:
        with reading(file.name):
            names[file.name] = csv_names(file, options.csv_format) if is_csv else _parquet_schema(file).names
    inputs = input_names(names[first], options, first, {name for others in names.values() for name in others})
    used = [name for name in (options.label_column, options.group_column, options.time_column) if name]
    for file_name, present in names.items():
        with reading(file_name):
            check_names(present, (*used, *inputs), first)
    inputs, notes_about_index = _without_index(files, read, inputs)
    find = _csv_columns if is_csv else _parquet_columns
    columns, types, read_types, notes = find(files, read, inputs, options, codes, task)
    read_types |= {name: read_types.get(name, pa.string()) for name in used}
    if task == "regression" and is_csv:
        read_types[options.label_column] = pa.float64()
    return Source(
        columns,
        options.label_column,
        {file.name: partial(read, file, read_types) for file in files},
        (*lines_about_columns(names, first, options.drop_columns), *notes_about_index, *notes),
        sum(map(_expected_bytes, files)),
        task,
        types,
        split_by(options),
    )


def split_by(options: Options) -> SplitBy:
    """Return the column that decides about the split."""
    if options.group_column:
        return SplitBy(options.group_column, "group")
    return SplitBy(options.time_column, "time") if options.time_column else SplitBy()


def _is_csv(file: Path) -> bool:
    return ".parquet" not in file.suffix.lower()


def _expected_bytes(file: Path) -> int:
    """Return the approximate size of a table's rows in the shards."""
    if _is_csv(file):
        return file.stat().st_size  # Most numbers take 4 characters or more, and 4 bytes in the shards.
    with _parquet(file) as opened:
        return int(opened.metadata.num_rows * opened.metadata.num_columns * 4)


def _without_index(files: Sequence[Path], read: ReadTable, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the inputs without an index column that numbers the rows, and lines about the index columns."""
    inputs, notes = [*names], []

    def values(name: str) -> Iterator[tuple[str, pa.Array]]:
        for file in files:
            for rows, _ in readable(file.name, read(file, {name: pa.string()}, _ignore)):
                yield file.name, rows[name]

    for name in [name for name in names if name in INDEX_NAMES]:
        # The last input stays, because a dataset needs one.
        is_left_out = len(inputs) > 1 and counts_rows(values(name))
        if is_left_out:
            inputs.remove(name)
        notes += lines_about_index(name, is_left_out=is_left_out)
    return inputs, notes


_Found = tuple[tuple[Column, ...], dict[str, pa.DataType], dict[str, pa.DataType], list[str]]
"""The inputs, the types of the kept ones, the types in which columns are read, and lines about them."""


def _csv_columns(
    files: Sequence[Path], read: ReadTable, names: Sequence[str], options: Options, codes: Mapping[str, str], task: Task
) -> _Found:
    """Choose how the columns of CSV files are read."""

    def read_texts(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for file in files:
            texts = dict.fromkeys(names, pa.string())
            yield from (part.rows for part in readable(file.name, read(file, texts, _ignore)))

    guessed = [name for name in names if name not in options.columns and name not in codes]
    guessed += [options.time_column] * (options.time_column != "" and options.time_column not in names)
    found: dict[str, TextKind] = {**survey_texts(guessed, read_texts), **dict.fromkeys(codes, "category")}
    columns, types, read_types = [], {}, {}
    for name in names:
        declared = options.columns.get(name)
        if declared:
            column = declared_column(name, declared)
            read_types[name] = pa.float64() if declared == "number" else pa.string()
        else:
            column = column_of(name, found[name], is_kept=task == "none")
            read_types[name] = CSV_TYPES.get(found[name], pa.string())
        if column.kind == "kept":
            types[name] = KEPT_TYPES[declared] if declared else kept_type_of_texts(found[name])
        columns.append(column)
    if options.time_column and found.get(options.time_column) in CSV_TYPES:
        read_types[options.time_column] = pa.float64()
    dates = [name for name in guessed if name in names and found[name] == "date" and task != "none"]
    return tuple(columns), types, read_types, [*lines_about_codes(codes), *lines_about_dates(dates)]


def _parquet_columns(
    files: Sequence[Path], read: ReadTable, names: Sequence[str], options: Options, codes: Mapping[str, str], task: Task
) -> _Found:
    """Choose how the columns of Parquet files are read. The first file in which a column has a type sets its kind."""
    found: dict[str, pa.DataType] = {}
    for file in files:
        schema = _parquet_schema(file)
        for name in names:
            kind = schema.field(name).type
            if found.get(name, pa.null()) == pa.null():
                found[name] = kind.value_type if pa.types.is_dictionary(kind) else kind
    columns, types = [], {}
    for name in names:
        declared = options.columns.get(name)
        with reading(files[0].name):
            column = (
                declared_column(name, declared) if declared else column_of(name, found[name], is_kept=task == "none")
            )
        if column.kind == "kept":
            types[name] = KEPT_TYPES[declared] if declared else found[name]
        columns.append(column)
    dates = [column.name for column in columns if column.source_type == "date" and column.name not in options.columns]
    return tuple(columns), types, dict.fromkeys(names, pa.string()), lines_about_dates(dates)


def _ignore(row: int, column: str, problem: str) -> None:
    """Leave a row out. The pass over all rows reports it."""


def _first_rows(files: Sequence[Path], read: ReadTable) -> tuple[str, Sequence[str]]:
    """Return the name of the first file that has rows, and the names of its columns."""
    rejected = RejectedRows()
    for file in files:
        if not _is_csv(file):
            with reading(file.name), _parquet(file) as opened:
                if opened.metadata.num_rows:
                    return file.name, opened.schema_arrow.names
            continue
        for rows, _ in readable(file.name, read(file, {}, partial(rejected.add, file.name))):
            if len(rows):
                return file.name, rows.schema.names
    rejected.check()
    with reading(files[0].name):
        raise ValueError("it has no rows")


def _parquet_schema(file: Path) -> pa.Schema:
    with reading(file.name), _parquet(file) as opened:
        return opened.schema_arrow


def read_parquet(file: Path, types: Mapping[str, pa.DataType], reject: Reject) -> Iterator[Rows]:
    """Yield the rows of a Parquet file, see `ReadTable`."""
    with _parquet(file) as opened:
        rows = max(1, _BATCH_BYTES // (8 * max(1, opened.metadata.num_columns)))
        yield from numbered(opened.iter_batches(rows, columns=[*types] or None))


@contextmanager
def _parquet(file: Path) -> Iterator[pq.ParquetFile]:
    try:
        # Without the buffer, a whole row group would be in memory.
        with pq.ParquetFile(file, pre_buffer=False, buffer_size=_READ_BYTES) as opened:
            yield opened
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"it is not a complete Parquet file: write or copy it again ({error})") from None
