"""Opens files, folders, arrays and images as sources of rows."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.column_kinds import column_of, declared_column, first_texts
from kfp_distributed.components.prepare_data.columns.column_names import DEFAULT_LABEL, input_names
from kfp_distributed.components.prepare_data.columns.conversations import are_conversations
from kfp_distributed.components.prepare_data.columns.date_columns import DateForms, find_forms, open_dates
from kfp_distributed.components.prepare_data.columns.row_forms import EITHER, options_of_form, row_form
from kfp_distributed.components.prepare_data.columns.source import Source
from kfp_distributed.components.prepare_data.columns.split_times import time_type
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources.chunks import (
    CountRows,
    FilePart,
    ignore_count,
    image_parts,
    whole_file,
)
from kfp_distributed.components.prepare_data.sources.folder_splits import splits_of
from kfp_distributed.components.prepare_data.sources.left_out import LeftOut, lines_about_files
from kfp_distributed.components.prepare_data.sources.npz_file import DAMAGED, array_names, read_arrays
from kfp_distributed.components.prepare_data.sources.read_rows import Reject, Rows, ignore, numbered, read_errors
from kfp_distributed.components.prepare_data.sources.source_files import (
    DELIMITED,
    JSON_LINES,
    TABLES,
    SourceFiles,
    ending,
    list_folder,
    relative_name,
)
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.prepare_data.tables.arrow_table import ArrowTable
from kfp_distributed.components.prepare_data.tables.csv_table import CsvTable
from kfp_distributed.components.prepare_data.tables.image_files import Images
from kfp_distributed.components.prepare_data.tables.json_files import JSON_TEXT
from kfp_distributed.components.prepare_data.tables.json_table import JsonTable
from kfp_distributed.components.prepare_data.tables.schema_table import ParquetTable
from kfp_distributed.components.prepare_data.tables.table_format import TableFormat
from kfp_distributed.components.prepare_data.tables.table_source import split_by, table_source
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks
from kfp_distributed.storage.dataset import Task

BATCH_BYTES = 2**24
"""Approximate size of a batch of arrays."""

# Rows of texts of dates that are read together.
_TEXT_ROWS = 2**16

IMAGE = "image"
"""Name of the column of images of a folder."""

DIGITS_FILE = Path(__file__).parents[1] / "digits.csv.gz"
"""The handwritten digits: 64 pixels and the label of each row. The file is scikit-learn's."""


def open_source(
    source: SourcePath | SourceFiles | None,
    options: Options,
    scratch: Path,
    codes: Mapping[str, str] = MappingProxyType({}),
    task: Task = "classification",
) -> Source:
    """Open a file or folder, and choose how each of its columns is read.

    Args:
        source: A file or folder, or some of its files; None for scikit-learn's 1,797 handwritten digits, 8 by 8
            pixels of 0 to 16.
        options: Label, columns to drop and image size.
        scratch: Empty folder for unpacked files.
        codes: Columns of a CSV file whose numbers are codes, with a code of each. Default: none.
        task: What is predicted. Default: "classification".

    Raises:
        ValueError: The format is not supported, or the columns do not fit the options.
    """
    if source is None:
        digits, numbers = _read_digits()
        name = options.label_column or DEFAULT_LABEL
        return array_source("digits", {name: numbers, "image": digits}, options, task)
    listing = splits_of(source)[""] if not isinstance(source, SourceFiles) else source
    path, files, left_out = listing.path, listing.files, [*listing.left_out]
    types = {"folders" if file.is_dir() else ending(file) or "no ending" for file in files}
    empty = {file for file in files if _has_no_byte(file)} if types <= DELIMITED else set()
    if 0 < len(empty) < len(files):
        left_out += [LeftOut(relative_name(file, path), "empty") for file in files if file in empty]
        files = tuple(file for file in files if file not in empty)
    if table := _table_format(types, options, files):
        opened = table_source(files, table, options, codes, task)
        if options.csv_format.given and not isinstance(table, CsvTable):
            line = f"csv_format has no effect: {path.name} has no CSV files"
            opened = replace(opened, notes=(*opened.notes, line))
        if options.image_size and not any(column.shape for column in opened.columns):
            size = "x".join(map(str, options.image_size))
            line = f"image_size is {size!r}, and has no effect: no input of {path.name} is an image"
            opened = replace(opened, notes=(*opened.notes, line))
    elif types == {".npz"} and len(files) == 1:
        opened = _npz_source(path.name, files[0], options, scratch, task)
    else:
        images, others = _list_images(files, path)
        left_out += others
        if not images or not TABLES.isdisjoint(types | {image.suffix.lower() for image in images}):
            ignored = (entry for entry in left_out if entry.reason != "no class")
            raise ValueError(
                f"source {path.name} has {', '.join(sorted(types)) or 'no files'}: it must be .csv, .tsv, .txt, .data, "
                ".parquet, .arrow or .jsonl files (all of one kind, in one folder), one .npz file, or a folder with a "
                "folder of images for " + "; ".join(["each class", *lines_about_files(ignored)])
            )
        labels = np.array([image.parent.name for image in images])
        pixels = Images(images, IMAGE, options.image_size, options.image_shapes.get(IMAGE))
        name = options.label_column or DEFAULT_LABEL
        opened = array_source(path.name, {name: labels, IMAGE: pixels}, options, task)
        opened = replace(
            opened,
            late_notes=pixels.notes,
            late_findings=pixels,
            read=pixels.usable(opened.read),
            parts=partial(image_parts, path.name, len(images)),
            file_of_row=pixels.name_of_row,
        )
    return replace(opened, notes=(*lines_about_files(left_out), *opened.notes))


def as_row_form(source: SourcePath | SourceFiles | None, options: Options) -> tuple[Options, str]:
    """Return the options by which rows for language models are read, and a line about them.

    They are such rows if there is no column of the default label, and there are the columns of a form, see `row_form`.

    Returns:
        The same options and "" for other rows.

    Raises:
        ValueError: The first file is damaged.
    """
    if source is None or options.label_column != DEFAULT_LABEL or options.task not in (None, "none") or options.like:
        return options, ""
    files = (source if isinstance(source, SourceFiles) else splits_of(source)[""]).files
    first = next((file for file in files if not _has_no_byte(file)), None)
    # Without a label, CSV files may have one column.
    table = _table_format({ending(first)}, replace(options, label_column=""), (first,)) if first else None
    if not first or not table:
        return options, ""
    with read_errors(first.name):
        names = table.names(first)
        form = row_form(names, options)
    if not form:
        return options, ""
    same = [file for file in files if ending(file) == ending(first)]
    either = [name for name, kind in form.columns.items() if kind == EITHER]
    conversations = {name for name in either if _has_conversations(table, same, name)}
    return options_of_form(form, names, conversations, options)


def _has_conversations(table: TableFormat, files: Iterable[SourcePath], name: str) -> bool:
    """Return whether the first value of a column that is not empty is a conversation."""
    for file in files:
        with read_errors(file.name):
            if _has_no_byte(file) or name not in table.names(file):
                continue
            for rows, _ in table.read(whole_file(file), {name: JSON_TEXT}, ignore):
                found = are_conversations(rows[name])
                if found is not None:
                    return found
    return False


def _has_no_byte(file: SourcePath) -> bool:
    try:
        return not file.stat().st_size
    except OSError:  # The reader names the file.
        return False


def lines_about_missing(readers: Iterable[object]) -> list[str]:
    """Return a line about the texts for missing values that no value is, after all rows were read.

    Args:
        readers: The readers of the sources, of which those of CSV files count.
    """
    tables = [reader for reader in readers if isinstance(reader, CsvTable)]
    unused = (
        [text for text in tables[0].unused_texts if all(text in table.unused_texts for table in tables)]
        if tables
        else []
    )
    texts = json.dumps(unused, ensure_ascii=False)
    return [f'csv_format: "missing" has {texts}, which no value is'] if unused else []


def _table_format(endings: set[str], options: Options, files: Sequence[SourcePath]) -> TableFormat | None:
    """Return the format of files with these endings; None if they are no tables of one format."""
    if len(endings) == 1 and endings <= DELIMITED:
        return CsvTable(options, files)
    if endings == {".parquet"}:
        return ParquetTable(options)
    if endings == {".arrow"}:
        return ArrowTable(options)
    return JsonTable(options) if endings and endings <= JSON_LINES else None


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


def _list_images(entries: Sequence[SourcePath], source: SourcePath) -> tuple[list[SourcePath], list[LeftOut]]:
    """Return the files in the folders of the classes, sorted, and what is left out there and beside the folders."""
    images: list[SourcePath] = []
    left_out: list[LeftOut] = []
    for path in entries:
        if not path.is_dir():
            left_out.append(LeftOut(relative_name(path, source), "no class"))
            continue
        listing = list_folder(path, source)
        images += listing.files
        left_out += listing.left_out
        if not listing.files:
            left_out.append(LeftOut(relative_name(path, source), "no images"))
    return images, left_out


def _npz_source(name: str, file: SourcePath, options: Options, scratch: Path, task: Task) -> Source:
    """Open an .npz file. Dropped arrays are not unpacked."""
    with read_errors(name, *DAMAGED):
        names = array_names(file)
    inputs = input_names(names, options, name)
    with read_errors(name, *DAMAGED):
        arrays = read_arrays(file, [*_others(options), *inputs], scratch)
    return replace(array_source(name, arrays, replace(options, drop_columns=()), task), is_portable=False)


def _others(options: Options) -> list[str]:
    """Return the columns that are read and are no inputs."""
    names = (options.label_column, options.group_column, options.time_column)
    return [name for name in names if name and name not in options.columns]


def array_source(name: str, arrays: Mapping[str, Any], options: Options, task: Task = "classification") -> Source:
    """Open arrays: 1-D arrays as numbers or texts, others as one tensor per row.

    Args:
        name: Name of the source, for errors.
        arrays: Arrays, or objects that have `dtype` and `shape` and return an array for a slice of rows.
        options: Label and columns to drop.
        task: What is predicted. Default: "classification".

    Raises:
        ValueError: An array has a wrong type or number of rows, or the names do not fit the options.
    """
    inputs = input_names([*arrays], options, name)
    used = {key: arrays[key] for key in (*_others(options), *inputs)}
    first = next(iter(used))
    rows = used[first].shape[0] if used[first].shape else 0
    for key, array in used.items():
        is_flat = len(array.shape) == 1
        allowed = "biuf" + "US" * is_flat
        must_be_flat = key in _others(options)
        if (
            array.dtype.kind not in allowed
            or array.shape[:1] != (rows,)
            or 0 in array.shape
            or (must_be_flat and not is_flat)
        ):
            if array.dtype.kind == "M" and is_flat:
                raise ValueError(
                    f"{name}: array {key!r} has dates: save them as texts, by astype(str), and set columns to "
                    f'{{{key!r}: "date"}}'
                )
            if must_be_flat and not is_flat:
                raise ValueError(
                    f"{name}: array {key!r} is {array.dtype} {list(array.shape)}: save it as 1-D, by argmax(axis=1) if "
                    "it has one column for each class, else by ravel()"
                )
            raise ValueError(
                f"{name}: array {key!r} is {array.dtype} {list(array.shape)}: it must have numbers or be 1-D with "
                f"texts, and have as many rows as the 1-D {'labels ' if options.label_column else ''}{first!r} "
                f"{list(used[first].shape)}, at least one{'' if options.inputs else '. Or name it in drop_columns'}"
            )
    forms = _date_forms(options, used, rows)
    columns, types = [], {}
    for key in inputs:
        shape = used[key].shape[1:]
        # The type of a tensor needs no element, which may be an image to decode.
        kind = _arrow(np.zeros((1, *shape), used[key].dtype) if shape else used[key][:1]).type
        declared = options.columns.get(key)
        if declared and shape:
            if options.inputs:
                raise ValueError(
                    f"{key!r} is a tensor of {list(shape)}, but a {declared} in the training data: write one "
                    f"{declared} in each row"
                )
            raise ValueError(
                f"columns declares {key!r} as {declared!r}, but it is a tensor of {list(shape)}: take it out"
            )
        if declared:
            columns.append(forms.dated(declared_column(key, declared)))
        else:
            columns.append(column_of(key, kind, shape, is_kept=task == "none"))
        if columns[-1].kind == "kept":
            types[key] = pa.string() if declared else kind
    row_size = sum(math.prod(column.shape) * (1 if column.dtype == "uint8" else 4) for column in columns)
    batch_rows = max(1, BATCH_BYTES // sum(8 * math.prod(column.shape) for column in columns))

    times = time_type(_arrow(used[name][:1]).type for name in (options.time_column,) if name)

    return Source(
        tuple(columns),
        options.label_column,
        partial(_array_parts, FilePart(name, Path(name), size=rows * row_size)),
        partial(_read_slices, used, rows, batch_rows),
        tuple(forms.lines(())),
        expected_bytes=rows * row_size,
        task=task,
        types=types,
        split_by=split_by(options, times, forms.form(options.time_column)),
        has_given_kinds=bool(options.inputs),
    )


def _date_forms(options: Options, arrays: Mapping[str, Any], rows: int) -> DateForms:
    """Return the forms of the texts that are read as dates."""

    def read_texts(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        part, texts = FilePart("", Path()), {name: arrays[name] for name in names}
        return (found.rows for found in _read_slices(texts, rows, _TEXT_ROWS, part, ignore, ignore_count))

    names = [name for name in open_dates(options) if arrays[name].dtype.kind == "U"]
    return find_forms(options, first_texts(names, read_texts), read_texts)


def _array_parts(part: FilePart, most: int, run: RunTasks | None = None) -> list[FilePart]:
    return [part]


def _read_slices(
    arrays: Mapping[str, Any], rows: int, batch_rows: int, part: FilePart, reject: Reject, count_rows: CountRows
) -> Iterator[Rows]:
    """Yield the rows of a part of arrays in batches."""
    end = rows if part.end is None else part.end
    count_rows(end - part.begin)
    edges = [*range(part.begin, end, batch_rows), end]
    return numbered(
        pa.record_batch({key: _arrow(array[first:last]) for key, array in arrays.items()})
        for first, last in pairwise(edges)
    )


def _arrow(values: NDArray[Any]) -> pa.Array:
    if values.ndim == 1:
        # Arrow has no numbers of more than 64 bits.
        is_long = values.dtype.kind == "f" and values.dtype.itemsize > 8
        return pa.array(values.astype(np.float64 if is_long else values.dtype.newbyteorder("=")))
    # Types with more digits than a 32-bit float keep them, so that the first pass notices what the cast loses.
    wide = np.float32 if np.can_cast(values.dtype, np.float32) else np.float64
    numbers = values.reshape(-1).astype(np.uint8 if values.dtype in (np.uint8, np.bool_) else wide)
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), math.prod(values.shape[1:]))
