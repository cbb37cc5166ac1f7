"""Reads tables, arrays and images as batches of rows.

In a batch, a number is a float64 column (null or NaN if missing), a category and the label are string columns, and a
tensor is a fixed-size list of uint8, float32 or float64. A reader holds about one batch in memory. Every pass yields
the same rows.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.column_kinds import (
    TextKind,
    cast,
    check_type,
    column_of,
    lines_about_codes,
    spellings,
    survey_texts,
)
from kfp_distributed.components.prepare_data.column_names import check_names, input_names
from kfp_distributed.components.prepare_data.csv_files import DIGITS, csv_names, read_csv
from kfp_distributed.components.prepare_data.image_files import Images
from kfp_distributed.components.prepare_data.left_out import (
    LeftOut,
    lines_about_columns,
    lines_about_files,
    reason_to_leave_out,
)
from kfp_distributed.components.prepare_data.npz_file import DAMAGED, array_names, read_arrays
from kfp_distributed.components.prepare_data.plan import Options
from kfp_distributed.components.prepare_data.reading import Reject, RejectedRows, Rows, readable, reading
from kfp_distributed.components.prepare_data.row_numbers import INDEX_NAMES, counts_rows, lines_about_index
from kfp_distributed.storage.dataset import Column

# Approximate size of a batch.
_BATCH_BYTES = 2**24
# Bytes of each column of a Parquet file that are read at once.
_READ_BYTES = 2**20
_TABLES = {".csv", ".parquet", ".npz"}
# Types in which columns of CSV files are read. Others are read as texts.
_CSV_TYPES = {"number": pa.float64(), "digits": DIGITS}

_Read = Callable[[Path, Mapping[str, pa.DataType], Reject], Iterator[Rows]]
"""Yields the rows of a file. It gets the columns and their types; all columns as they are if there are none."""

DIGITS_FILE = Path(__file__).with_name("digits.csv.gz")
"""The handwritten digits: 64 pixels and the label of each row. The file is scikit-learn's."""


@dataclass(frozen=True)
class Source:
    """Reader of one source.

    Attributes:
        columns: Inputs with their kinds, still without vocabularies and statistics.
        label: Name of the label.
        parts: Functions by file that yield all rows of the file with at least these columns, in the file's types.
        notes: Lines about the files and columns of the source that are left out, for log and overview.
        expected_bytes: Approximate size of all rows in the shards.
    """

    columns: tuple[Column, ...]
    label: str
    parts: Mapping[str, Callable[[Reject], Iterator[Rows]]]
    notes: tuple[str, ...] = ()
    expected_bytes: int = 0

    def batches(self, rejected: RejectedRows | None = None) -> Iterator[tuple[str, Rows]]:
        """Yield all usable rows, with labels as they are spelled, and the name of the file they are in.

        Args:
            rejected: Gets the rows that cannot be read. Default: they are refused.

        Raises:
            ValueError: A file is damaged, or a column is missing or has another type.
        """
        rejected = rejected or RejectedRows()
        for name, read in self.parts.items():
            for rows in readable(name, self._converted(read(partial(rejected.add, name)))):
                yield name, rows

    def _converted(self, parts: Iterable[Rows]) -> Iterator[Rows]:
        """Yield rows with numbers as float64, and categories and labels as texts."""
        for part, numbers in parts:
            rows = {self.label: spellings(self.label, part[self.label])}
            for column in self.columns:
                values = part[column.name]
                rows[column.name] = values if column.shape else cast(column.name, values, column.kind)
            yield Rows(pa.record_batch(rows), numbers)


def open_source(
    path: Path | None, options: Options, scratch: Path, codes: Mapping[str, str] = MappingProxyType({})
) -> Source:
    """Open a file or folder, and choose how each of its columns is read.

    Args:
        path: A file or folder; None for scikit-learn's 1,797 handwritten digits, 8 by 8 pixels of 0 to 16.
        options: Label, columns to drop and image size.
        scratch: Empty folder for unpacked files.
        codes: Columns of a CSV file whose numbers are codes, with a code of each. Default: none.

    Raises:
        ValueError: The format is not supported, or the columns do not fit the options.
    """
    if path is None:
        digits, numbers = _read_digits()
        return array_source("digits", {options.label_column: numbers, "image": digits}, options)
    files, left_out = _list_folder(path, path) if path.is_dir() else ([path], [])
    types = {"folders" if file.is_dir() else file.suffix.lower() or "no ending" for file in files}
    if types in ({".csv"}, {".parquet"}):
        source = _table_source(files, options, codes)
    elif types == {".npz"} and len(files) == 1:
        source = _npz_source(path.name, files[0], options, scratch)
    else:
        images, others = _list_images(files, path)
        left_out += others
        if not images or not _TABLES.isdisjoint(types | {image.suffix.lower() for image in images}):
            ignored = (entry for entry in left_out if entry.reason != "no class")
            raise ValueError(
                f"source {path.name} has {', '.join(sorted(types)) or 'no files'}: it must be .csv or .parquet files "
                "(unpacked, all of one kind, in one folder), one .npz file, or a folder with a folder of images for "
                + "; ".join(["each class", *lines_about_files(ignored)])
            )
        labels = np.array([image.parent.name for image in images])
        pixels = Images(images, options.image_size)
        source = array_source(path.name, {options.label_column: labels, "image": pixels}, options)
        source = replace(source, notes=tuple(pixels.notes))
    return replace(source, notes=(*lines_about_files(left_out), *source.notes))


def _read_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return pixels and labels of the digits.

    The file is the one that scikit-learn has, so that a step does not install scikit-learn and SciPy for it. Its data
    are the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine
    Learning Repository, https://doi.org/10.24432/C50P49, licensed under CC BY 4.0.

    Raises:
        OSError: The file is missing.
    """
    rows = np.loadtxt(DIGITS_FILE, np.uint8, delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1]


def _list_folder(folder: Path, source: Path) -> tuple[list[Path], list[LeftOut]]:
    """Return the entries of a folder that are data, sorted, and those that are left out."""
    data, left_out = [], []
    # Unlike Path.is_dir, os.scandir needs no request for each file, of which there may be a million.
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = folder / entry.name
            if reason := reason_to_leave_out(entry.name, is_folder=entry.is_dir()):
                left_out.append(LeftOut(_relative(path, source), reason))
            else:
                data.append(path)
    return data, left_out


def _list_images(entries: Sequence[Path], source: Path) -> tuple[list[Path], list[LeftOut]]:
    """Return the files in the folders of the classes, sorted, and what is left out there and beside the folders."""
    images, left_out = [], []
    for path in entries:
        if not path.is_dir():
            left_out.append(LeftOut(_relative(path, source), "no class"))
            continue
        files, others = _list_folder(path, source)
        images += files
        left_out += others if files else [*others, LeftOut(_relative(path, source), "no images")]
    return images, left_out


def _relative(path: Path, source: Path) -> str:
    return path.relative_to(source).as_posix() + "/" * path.is_dir()


def _table_source(files: Sequence[Path], options: Options, codes: Mapping[str, str]) -> Source:
    """Open CSV or Parquet files, which must all have the columns of the first one that has rows."""
    is_csv = files[0].suffix.lower() == ".csv"
    read: _Read = partial(read_csv, csv_format=options.csv_format) if is_csv else _read_parquet
    first, sample = _first_rows(files, read)
    with reading(first):
        if is_csv and sample.schema.names != [options.label_column] and sample.num_columns == 1:
            raise ValueError(f"its header is one column {sample.schema.names[0]!r}: separate the columns by ','")
    names = {}
    for file in files:
        with reading(file.name):
            names[file.name] = csv_names(file, options.csv_format) if is_csv else _parquet_schema(file).names
    inputs = input_names(names[first], options, first, {name for others in names.values() for name in others})
    for file_name, present in names.items():
        with reading(file_name):
            check_names(present, (options.label_column, *inputs), first)
    inputs, notes_about_index = _without_index(files, read, inputs)
    if is_csv:
        kinds = {**_csv_kinds(files, read, [name for name in inputs if name not in codes]), **dict.fromkeys(codes, "")}
        columns = tuple(column_of(name, pa.float64() if kinds[name] in _CSV_TYPES else pa.string()) for name in inputs)
        types = {name: _CSV_TYPES.get(kinds[name], pa.string()) for name in inputs}
    else:
        columns = _parquet_columns(files, inputs, options)
        types = dict.fromkeys(inputs, pa.string())
    types[options.label_column] = pa.string()
    return Source(
        columns,
        options.label_column,
        {file.name: partial(read, file, types) for file in files},
        (
            *lines_about_columns(names, first, options.drop_columns),
            *notes_about_index,
            *lines_about_codes(codes),
        ),
        sum(map(_expected_bytes, files)),
    )


def _expected_bytes(file: Path) -> int:
    """Return the approximate size of a table's rows in the shards."""
    if file.suffix.lower() == ".csv":
        return file.stat().st_size  # Most numbers take 4 characters or more, and 4 bytes in the shards.
    with _parquet(file) as opened:
        return int(opened.metadata.num_rows * opened.metadata.num_columns * 4)


def _without_index(files: Sequence[Path], read: _Read, names: Sequence[str]) -> tuple[list[str], list[str]]:
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


def _csv_kinds(files: Sequence[Path], read: _Read, names: Sequence[str]) -> dict[str, TextKind]:
    """Return what the texts of the columns of CSV files are."""

    def read_texts(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from (
                part.rows for part in readable(file.name, read(file, dict.fromkeys(names, pa.string()), _ignore))
            )

    return survey_texts(names, read_texts)


def _ignore(row: int, column: str, problem: str) -> None:
    """Leave a row out. The pass over all rows reports it."""


def _parquet_columns(files: Sequence[Path], names: Sequence[str], options: Options) -> tuple[Column, ...]:
    """Return the inputs of Parquet files. The first file in which a column has a type sets its kind."""
    types: dict[str, pa.DataType] = {}
    for file in files:
        with reading(file.name):
            schema = _parquet_schema(file)
            for name in (options.label_column, *names):
                kind = schema.field(name).type
                if types.get(name, pa.null()) == pa.null():
                    check_type(name, kind)
                    types[name] = kind
    return tuple(column_of(name, types[name]) for name in names)


def _first_rows(files: Sequence[Path], read: _Read) -> tuple[str, pa.RecordBatch]:
    """Return the name of the first file that has rows, and its first rows with all columns."""
    rejected = RejectedRows()
    for file in files:
        for rows, _ in readable(file.name, read(file, {}, partial(rejected.add, file.name))):
            if len(rows):
                return file.name, rows
    rejected.check()
    with reading(files[0].name):
        raise ValueError("it has no rows")


def _parquet_schema(file: Path) -> pa.Schema:
    with _parquet(file) as opened:
        return opened.schema_arrow


def _read_parquet(file: Path, types: Mapping[str, pa.DataType], reject: Reject) -> Iterator[Rows]:
    with _parquet(file) as opened:
        rows = max(1, _BATCH_BYTES // (8 * max(1, opened.metadata.num_columns)))
        yield from _numbered(opened.iter_batches(rows, columns=[*types] or None))


def _numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[Rows]:
    """Yield rows with their numbers, the first of which is 1."""
    begin = 1
    for batch in batches:
        yield Rows(batch, np.arange(begin, begin + batch.num_rows))
        begin += batch.num_rows


@contextmanager
def _parquet(file: Path) -> Iterator[pq.ParquetFile]:
    try:
        # Without the buffer, a whole row group would be in memory.
        with pq.ParquetFile(file, pre_buffer=False, buffer_size=_READ_BYTES) as opened:
            yield opened
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"it is not a complete Parquet file: write or copy it again ({error})") from None


def _npz_source(name: str, file: Path, options: Options, scratch: Path) -> Source:
    """Open an .npz file. Dropped arrays are not unpacked."""
    with reading(name, *DAMAGED):
        names = array_names(file)
    inputs = input_names(names, options, name)
    with reading(name, *DAMAGED):
        arrays = read_arrays(file, [options.label_column, *inputs], scratch)
    return array_source(name, arrays, replace(options, drop_columns=()))


def array_source(name: str, arrays: Mapping[str, Any], options: Options) -> Source:
    """Open arrays: 1-D arrays as numbers or texts, others as one tensor per row.

    Args:
        name: Name of the source, for errors.
        arrays: Arrays, or objects that have `dtype` and `shape` and return an array for a slice of rows.
        options: Label and columns to drop.

    Raises:
        ValueError: An array has a wrong type or number of rows, or the names do not fit the options.
    """
    label = options.label_column
    inputs = input_names([*arrays], options, name)
    used = {key: arrays[key] for key in (label, *inputs)}
    for key, array in used.items():
        allowed = "biuf" + "US" * (len(array.shape) == 1)
        if array.dtype.kind not in allowed or array.shape[:1] != used[label].shape or 0 in array.shape:
            raise ValueError(
                f"{name}: array {key!r} is {array.dtype} {list(array.shape)}: it must have numbers or be 1-D with "
                f"texts, and have as many rows as the 1-D labels {label!r} {list(used[label].shape)}, at least one. "
                "Or name it in drop_columns"
            )
    columns = tuple(column_of(key, _arrow(used[key][:1]).type, used[key].shape[1:]) for key in inputs)
    batch_rows = max(1, _BATCH_BYTES // sum(8 * math.prod(column.shape) for column in columns))

    def read(reject: Reject) -> Iterator[Rows]:
        return _numbered(
            pa.record_batch({key: _arrow(array[begin : begin + batch_rows]) for key, array in used.items()})
            for begin in range(0, used[label].shape[0], batch_rows)
        )

    row_size = sum(math.prod(column.shape) * (1 if column.dtype == "uint8" else 4) for column in columns)
    return Source(columns, label, {name: read}, expected_bytes=used[label].shape[0] * row_size)


def _arrow(values: NDArray[Any]) -> pa.Array:
    if values.ndim == 1:
        # Arrow has no numbers of more than 64 bits.
        is_long = values.dtype.kind == "f" and values.dtype.itemsize > 8
        return pa.array(values.astype(np.float64 if is_long else values.dtype.newbyteorder("=")))
    # Types with more digits than a 32-bit float keep them, so that the first pass notices what the cast loses.
    wide = np.float32 if np.can_cast(values.dtype, np.float32) else np.float64
    numbers = values.reshape(-1).astype(np.uint8 if values.dtype in (np.uint8, np.bool_) else wide)
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), math.prod(values.shape[1:]))
