"""Tables, arrays and images, all read as batches of rows in one form.

In a batch a number is a float32 column (null or NaN where it is missing), a category and the label are string columns,
and a tensor is a fixed-size list of uint8 or float32. A reader holds about one batch in memory, and gives the same rows
each time it is asked.
"""

import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, ImageOps

from kfp_distributed.components.prepare_data.plan import Options
from kfp_distributed.storage.dataset import Column

# Bytes of a batch, about.
_BATCH_BYTES = 2**20
_NUMBER = r"^\s*[-+]?(\d+\.?|\.\d)\d*([eE][-+]?\d+)?\s*$"


@dataclass(frozen=True)
class Source:
    """A reader.

    Attributes:
        columns: Inputs with their kinds; no vocabulary and no statistics yet.
        label: The label's name.
        parts: For each file its rows with at least these columns, as they stand in it, from the beginning at each call.
        first_row: What a person calls a file's first row: 2 where there is a header.
    """

    columns: tuple[Column, ...]
    label: str
    parts: Mapping[str, Callable[[], Iterator[pa.RecordBatch]]]
    first_row: int = 1

    def batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield all rows with the name of the file they are in.

        Raises:
            ValueError: A file is damaged, or a column in it missing or of another type.
        """
        for name, read in self.parts.items():
            with _reading(name):
                for part in read():
                    rows = {self.label: _class_names(part[self.label])}
                    for column in self.columns:
                        rows[column.name] = values = part[column.name]
                        if not column.shape:
                            with _reading(f"column {column.name!r}"):
                                kind = pa.float32() if column.kind == "number" else pa.string()
                                rows[column.name] = values.cast(kind, safe=False)
                    yield name, pa.record_batch(rows)


def open_source(path: Path | None, options: Options, scratch: Path) -> Source:
    """Find out what a path holds and how its columns are to be read.

    Args:
        path: A file or folder; None for scikit-learn's 1,797 handwritten digits, 8 by 8 pixels of 0 to 16.
        options: Label, columns to drop and image size.
        scratch: Folder for what must be unpacked.

    Raises:
        ValueError: Nothing known is there, or its columns do not fit the options.
    """
    if path is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = digits.images.astype(np.uint8)[..., np.newaxis]
        return _array_source("digits", {options.label_column: digits.target, "image": pixels}, options)
    files = _visible(path) if path.is_dir() else [path]
    types = {"folders" if file.is_dir() else file.suffix.lower() or "no ending" for file in files}
    if types in ({".csv"}, {".parquet"}):
        return _table_source(files, options)
    if types == {".npz"} and len(files) == 1:
        # Unpacked, so that the system keeps in memory what is being read and no more.
        with _reading(path.name, zipfile.BadZipFile, zlib.error), zipfile.ZipFile(files[0]) as archive:
            archive.extractall(scratch)
            names = [Path(name).stem for name in archive.namelist()]
            arrays = {name: np.load(scratch / f"{name}.npy", mmap_mode="r") for name in names}
        return _array_source(path.name, arrays, options)
    images = [image for file in files if file.is_dir() for image in _visible(file)]
    if images and types.isdisjoint({".csv", ".parquet", ".npz"}):
        # Few large images fit into a row group: classes that come one after the other would not be mixed there.
        np.random.default_rng(options.seed).shuffle(images)
        labels = np.array([image.parent.name for image in images])
        return _array_source(path.name, {options.label_column: labels, "image": _Images(images, options)}, options)
    raise ValueError(
        f"source {path.name} has {', '.join(sorted(types)) or 'no files'}: it must be .csv or .parquet files, one .npz "
        "file, or a folder with a folder of images for each class"
    )


@contextmanager
def _reading(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn what a library raises on a damaged file into a ValueError that names the file."""
    try:
        yield
    except (OSError, ValueError, KeyError, NotImplementedError, *errors) as error:  # type: ignore[misc]
        raise ValueError(f"{name} cannot be read: {error}") from error


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, sorted, without what systems leave there (.DS_Store, _SUCCESS)."""
    return sorted(path for path in folder.iterdir() if path.name[0] not in "._")


def _input_names(names: Sequence[str], options: Options, where: str) -> list[str]:
    """The columns that are inputs, where label and dropped columns are there and no name is there twice."""
    others = {options.label_column, *options.drop_columns}
    inputs = [name for name in names if name not in others]
    counts = Counter(names)
    twice = [name for name in counts if counts[name] > 1]
    if missing := others - {*names}:
        fault = f"there is no column {' or '.join(map(repr, sorted(missing)))}"
    elif twice:
        fault = f"the column {twice[0]!r} is there {counts[twice[0]]} times"
    elif not inputs:
        fault = "there is no column beside these"
    else:
        return inputs
    wanted = f"label_column {options.label_column!r}, drop_columns {list(options.drop_columns)}"
    raise ValueError(f"{wanted}: {fault} in {where}; it has {list(names[:50])}")


def _column(name: str, values: pa.Array, shape: tuple[int, ...] = (), *, is_csv: bool = False) -> Column:
    """An input, by its first values and the shape of one of them."""
    kind = str(values.type)
    if shape:
        return Column(name, "tensor", "uint8" if "uint8" in kind else "float32", shape)
    known = values.drop_null()
    # A column without any value is one of numbers.
    if re.match("u?int|half|float|double|decimal|null", kind) or (
        is_csv and kind == "string" and 2 * pc.match_substring_regex(known, _NUMBER).true_count >= len(known)
    ):
        return Column(name, "number", "float32")
    return Column(name, "category", "int32")


def _class_names(values: pa.Array) -> pa.Array:
    """A label's values as texts: NaN is missing, and 2.0 is 2, as a column with a gap writes it."""
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), None, values)
    return pc.replace_substring_regex(values.cast(pa.string()), r"^(-?\d+)\.0*$", r"\1")


def _table_source(files: Sequence[Path], options: Options) -> Source:
    """CSV or Parquet files with the columns of the first one.

    In CSV a column is of numbers if at least half of its first values are; a text in it further on is an error, not a
    reason to read the numbers as text.
    """
    first, is_csv = files[0], files[0].suffix.lower() == ".csv"
    read = _read_csv if is_csv else _read_parquet
    with _reading(first.name):
        if is_csv:
            with first.open("rb") as file:
                if found := re.match(rb"[^,\n]*([;\t|])[^,\n]*$", file.readline(_BATCH_BYTES)):
                    raise ValueError(f"its columns are separated by {found[1].decode()!r}, where ',' is needed")
        sample = next((part for file in files for part in read(file, {}) if len(part)), None)
        if sample is None:
            raise ValueError("it has no rows")
    inputs = _input_names(sample.schema.names, options, first.name)
    columns = tuple(_column(name, sample[name], is_csv=is_csv) for name in inputs)
    types = {column.name: pa.float32() if column.kind == "number" else pa.string() for column in columns}
    types[options.label_column] = pa.string()
    return Source(columns, options.label_column, {file.name: partial(read, file, types) for file in files}, 1 + is_csv)


def _read_parquet(file: Path, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(file) as opened:
        rows = max(1, _BATCH_BYTES // (8 * opened.metadata.num_columns))
        yield from opened.iter_batches(rows, columns=[*types] or None)


def _read_csv(file: Path, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """The columns of these types, or all; what stands for a missing value ("", "NA", "null", ...) as null."""
    # One thread: many read far ahead, and do not know the number of the row that an error is about.
    reading = pa_csv.ReadOptions(use_threads=False, block_size=_BATCH_BYTES)
    parsing = pa_csv.ParseOptions(newlines_in_values=True)
    converting = pa_csv.ConvertOptions(column_types=types, include_columns=[*types], strings_can_be_null=True)
    names = pa_csv.open_csv(file, reading, parsing).schema.names
    try:
        yield from pa_csv.open_csv(file, reading, parsing, converting)
    except pa.ArrowInvalid as error:
        raise ValueError(re.sub(r"CSV column #(\d+)", lambda at: repr(names[int(at[1])]), str(error))) from error


def _array_source(name: str, arrays: Mapping[str, Any], options: Options) -> Source:
    """Arrays of one dimension as numbers or texts, of more as a tensor in each row.

    They are whatever has the dtype and shape of an array and gives one for a slice of its rows.
    """
    label = options.label_column
    inputs = _input_names([*arrays], options, name)
    kept = {key: arrays[key] for key in (label, *inputs)}
    for key, array in kept.items():
        if array.dtype.kind not in "biuf" + "US" * (len(array.shape) == 1) or array.shape[:1] != kept[label].shape:
            raise ValueError(
                f"{name}: array {key!r} is {array.dtype} {list(array.shape)}: it must be numbers or 1-D texts, "
                f"as many as the labels {label!r} {list(kept[label].shape)}"
            )
    columns = tuple(_column(key, _arrow(kept[key][:1]), kept[key].shape[1:]) for key in inputs)
    at_once = max(1, _BATCH_BYTES // sum(8 * math.prod(column.shape) for column in columns))

    def read() -> Iterator[pa.RecordBatch]:
        for begin in range(0, kept[label].shape[0], at_once):
            yield pa.record_batch({key: _arrow(array[begin : begin + at_once]) for key, array in kept.items()})

    return Source(columns, label, {name: read})


def _arrow(values: NDArray[Any]) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values.astype(values.dtype.newbyteorder("=")))
    numbers = values.reshape(-1).astype(np.uint8 if values.dtype in (np.uint8, np.bool_) else np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), math.prod(values.shape[1:]))


class _Images:
    """Image files as an array uint8 [n, height, width, 1 or 3], decoded when asked for.

    All become as the first of their names: grey or RGB, and as large, or as large as the option image_size says.
    """

    def __init__(self, files: Sequence[Path], options: Options) -> None:
        self._files = files
        with _opened(min(files)) as first:
            # Letters of Pillow's mode are the numbers of a pixel.
            self._mode = "L" if first.mode in ("1", "L", "LA") else "RGB"
            self._size = options.image_size or first.size
        self.dtype, self.shape = np.dtype("uint8"), (len(files), *self._size[::-1], len(self._mode))

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]:
        return np.stack([self._decode(file) for file in self._files[rows]])

    def _decode(self, file: Path) -> NDArray[np.uint8]:
        with _opened(file) as image:
            return np.asarray(image.convert(self._mode).resize(self._size))


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    """An image, turned as its camera says."""
    errors = SyntaxError, Image.DecompressionBombError
    with _reading(f"image {file.parent.name}/{file.name}", *errors), Image.open(file) as image:
        if image.mode[0] in "IF":
            raise ValueError("it has more than 8 bits a colour")
        yield ImageOps.exif_transpose(image)
