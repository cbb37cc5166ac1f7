"""Describe, partition and read prepared datasets.

A dataset is a folder (or a prefix in an object store) with a manifest, `dataset.json`, and its Parquet shards. The
shards are in the same folder, or in the one that the manifest names: Kubeflow Pipelines downloads everything below the
address of an input artifact into the pod of each step that has this input. Columns of the shards:

- number: nullable float32;
- category: int32 index (0 = missing, i = vocabulary[i - 1]);
- tensor: fixed-size list in row-major order;
- kept: the values in the type of the source;
- label, under its own name: int32 class index, or float64 number to predict.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # The `train` step runs without Arrow.
    import pyarrow as pa

DATASET_MANIFEST = "dataset.json"
JSON_KINDS: tuple[Literal["conversation", "list<object>"], ...] = ("conversation", "list<object>")
"""The source_type of kept columns of JSON texts, whose type is that of other texts."""
_FORMAT = "kfp-distributed-dataset-4"
_READ_FORMATS = (*(f"kfp-distributed-dataset-{number}" for number in (1, 2, 3)), _FORMAT)
_DTYPES = {"number": ("float32",), "category": ("int32",), "tensor": ("uint8", "float32")}
Task = Literal["classification", "regression", "none"]
"""What a dataset is for: to predict a class, to predict a number, or anything else."""
TASKS: tuple[Task, ...] = ("classification", "regression", "none")
# A batch of large images and the model must fit into a small trainer pod.
_BATCH_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Column:
    """An input column.

    Attributes:
        name: Name of the column in the shards.
        kind: Kind of the values. "kept" stands for values that are stored as they are, such as texts and lists. They
            have no form as numbers, so built-in trainers do not take them.
        dtype: Type of the values in the shards. Of a kept column, the name that Arrow gives to it, such as "string",
            "list<element: float>" or "timestamp[us, tz=UTC]".
        shape: Shape of the value of one row. () except for tensors.
        vocabulary: The values of a category in the order of their indices, which start with 1.
        mean: Mean of the non-missing values of the training split. A tuple has the mean of each element of a tensor in
            row-major order, or of each channel (last axis) of an image. A single number applies to all elements.
        std: Standard deviation of the same values, in the form of `mean`. 1 where all values are equal.
        fill: Number that stands for a missing one: the median of the training split. The shards have it in the place
            of each gap. None if gaps stay, as NaN.
        source_type: "date" for a number that counts the days from 1970-01-01 to a date or time in UTC. Where the source
            has texts that are no ISO dates, with their format for strptime, such as "date %d/%m/%Y". Of kept texts,
            "conversation" and "list<object>" are JSON texts, and a "required text" or an "optional text" is one of rows
            for language models, of which the first is not empty. Else "".
        log_unit: Of numbers of several powers of ten. The built-in trainers take `log_values(number, log_unit)` in the
            place of each. None of all others.
        log_mean: Mean of these logarithms in a sample of the training split.
        log_std: Their standard deviation.
    """

    name: str
    kind: Literal["number", "category", "tensor", "kept"]
    dtype: str
    shape: tuple[int, ...] = ()
    vocabulary: tuple[str, ...] = ()
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    fill: float | None = None
    source_type: str = ""
    log_unit: float | None = None
    log_mean: float = 0.0
    log_std: float = 1.0

    @property
    def is_date(self) -> bool:
        """Whether the numbers are days of dates."""
        return self.source_type.startswith("date")

    def __post_init__(self) -> None:
        is_tensor, sizes = self.kind == "tensor", self.shape
        if self.kind == "kept" and self.dtype and not sizes:
            return
        if self.dtype not in _DTYPES.get(self.kind, ()) or is_tensor != bool(sizes) or min(sizes, default=1) < 1:
            raise ValueError(
                f"column {self.name!r}: kind {self.kind!r} with dtype {self.dtype!r} and shape {list(sizes)} is not "
                f"allowed: allowed are {_DTYPES}, 'kept' with a type of Arrow, and a shape of positive sizes for "
                "tensors alone"
            )
        lengths = {math.prod(sizes), sizes[-1]} if is_tensor else set()
        for key, values in (("mean", self.mean), ("std", self.std)):
            if isinstance(values, tuple) and len(values) not in lengths:
                raise ValueError(
                    f"column {self.name!r}: {key} has {len(values)} numbers for the shape {list(sizes)}: allowed are "
                    f"one number{''.join(f', or a list of {length}' for length in sorted(lengths))}"
                )


@dataclass(frozen=True)
class Label:
    """The column to predict.

    Attributes:
        name: Name of the column in the shards; "" if there is nothing to predict.
        classes: The classes in the order of their indices, which start with 0; () if no classes are to be predicted.
        task: "classification", "regression" or "none".
        mean: Mean of the numbers to predict in the training split. 0 for other tasks.
        std: Standard deviation of the same numbers. 1 where all are equal, and for other tasks.
    """

    name: str
    classes: tuple[str, ...] = ()
    task: Task = "classification"
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if self.task not in TASKS or bool(self.name) == (self.task == "none"):
            raise ValueError(
                f"label {self.name!r} with the task {self.task!r} is not allowed: the tasks are {', '.join(TASKS)}, "
                "and 'none' alone has no label"
            )
        if self.task != "classification" and self.classes:
            raise ValueError(f"label {self.name!r}: the task {self.task!r} has no classes, not {self.classes[:9]}")


@dataclass(frozen=True)
class Shard:
    """A Parquet file: its name in the dataset's folder, its rows, its size in bytes and its SHA-256 in hex."""

    path: str
    rows: int
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if Path(self.path).name != self.path or self.path in ("", ".."):
            raise ValueError(f"shard path {self.path!r} is not a file name without folders")


@dataclass(frozen=True)
class DatasetManifest:
    """The content of `dataset.json`.

    Attributes:
        split: "train", "validation" or "test".
        columns: The input columns, in the order in which they are concatenated.
        label: The column to predict.
        shards: The files, in the order of the rows. Empty for an empty split.
        class_counts: Number of rows of each class in this split, in the order of `label.classes`. () without classes.
        seed: Seed of the split.
        source: Origin of the data.
        shuffled: Whether each shard is a random sample of the split in random order. Shards of format 1 keep parts of
            the order of the source.
        preparation: Identifies one result of `prepare_data`: a hash of all shards of its three splits, whose rows are
            different ones. "" in format 1.
        content: Number of rows of the source and the sum of the hashes of their inputs, whatever their order. "" in
            format 1.
        source_fingerprint: Value of `fingerprint_source` that was passed to `prepare_data`: the state of the source's
            files just before they were read. "" if none was passed.
        like: `preparation` of the dataset whose columns, vocabularies and statistics this one has; "" for its own.
        shards_uri: Address of the folder of the shards. Default: "", the folder of the manifest.
    """

    split: str
    columns: tuple[Column, ...]
    label: Label
    shards: tuple[Shard, ...]
    class_counts: tuple[int, ...]
    seed: int
    source: str
    shuffled: bool = False
    preparation: str = ""
    content: str = ""
    source_fingerprint: str = ""
    like: str = ""
    shards_uri: str = ""

    def __post_init__(self) -> None:
        rows = self.rows if self.label.task == "classification" else 0
        if len(self.class_counts) != len(self.label.classes) or sum(self.class_counts) != rows:
            raise ValueError(
                f"class_counts {list(self.class_counts)} must have {len(self.label.classes)} numbers with the sum "
                f"{rows}, the number of rows with a class"
            )

    @property
    def rows(self) -> int:
        """Total number of rows of all shards."""
        return sum(shard.rows for shard in self.shards)

    def to_json(self) -> str:
        """Return the text of `dataset.json`. Equal manifests have equal texts."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DatasetManifest:
        """Parse the text of a `dataset.json`.

        Raises:
            ValueError: The text is not a manifest of this format. The message has the cause.
        """
        try:
            data = json.loads(text, object_hook=_with_tuples)
            if (name := data.pop("format")) not in _READ_FORMATS:
                raise ValueError(f"the format is {name!r}, not {' or '.join(_READ_FORMATS)}: run prepare_data again")
            columns = tuple(Column(**column) for column in data.pop("columns"))
            shards = tuple(Shard(**shard) for shard in data.pop("shards"))
            return cls(columns=columns, label=Label(**data.pop("label")), shards=shards, **data)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{DATASET_MANIFEST} is not valid: {error!r}") from error


def _with_tuples(item: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}


@dataclass(frozen=True)
class ShardPart:
    """The rows of a shard that one rank reads.

    Ranks that share a shard interleave: each reads rows of every part of the file.

    Attributes:
        shard: The shard.
        counts: Rows of each rank that reads this shard. Their sum is the number of the shard's rows.
        index: Position in `counts` of the rank.
    """

    shard: Shard
    counts: tuple[int, ...]
    index: int

    @property
    def rows(self) -> int:
        """Number of the rows of this part."""
        return self.counts[self.index]

    def row_numbers(self, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """Return the rows of this part in ascending order.

        Row m of a rank with n rows belongs at (m + 0.5) / n of the file. The rows are dealt in the order of these
        positions: two ranks with as many rows take turns.

        Args:
            start: Index, among the rows of this part, of the first row to return. Default: 0.
            stop: Index after the last row to return. Default: all rows.
        """
        own = self.rows
        numbers = np.arange(start, own if stop is None else min(stop, own), dtype=np.int64)
        # Row i of another rank with n rows is before row m if (2 i + 1) own < (2 m + 1) n. At equal positions, the
        # lower rank is first. Counting them needs no memory for the other rows of a shard, which may be very long.
        before = [
            -(-((2 * numbers + 1) * count - own + (rank < self.index)) // (2 * own))
            for rank, count in enumerate(self.counts)
            if rank != self.index
        ]
        return numbers + sum(before)


def whole_shard(shard: Shard) -> ShardPart:
    """Return all rows of a shard as a part."""
    return ShardPart(shard, (shard.rows,), 0)


def parts_of_rank(manifest: DatasetManifest, rank: int, world: int) -> tuple[ShardPart, ...]:
    """Return the rows of a rank.

    Rank r of n has the rows between r / n and (r + 1) / n of all N rows, rounded down, so that it reads few shards.
    Ranks that share a shard interleave. Each row belongs to exactly one rank, and the numbers of rows differ by at most
    1.

    Args:
        manifest: The dataset's manifest.
        rank: The rank, from 0.
        world: Number of ranks.

    Raises:
        ValueError: The rank is out of range.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world} ranks: the rank must be from 0 to {world - 1}")
    edges = [number * manifest.rows // world for number in range(world + 1)]
    parts, begin = [], 0
    for shard in manifest.shards:
        end = begin + shard.rows
        if max(begin, edges[rank]) < min(end, edges[rank + 1]):
            shared = [max(0, min(end, stop) - max(begin, start)) for start, stop in pairwise(edges)]
            counts = tuple(count for count in shared if count)
            parts.append(ShardPart(shard, counts, sum(count > 0 for count in shared[:rank])))
        begin = end
    return tuple(parts)


def width(manifest: DatasetManifest) -> int:
    """Return the number of float32 values that `read_batches` yields for a row: all columns, flattened.

    Raises:
        ValueError: There is a column without a form as numbers.
    """
    if kept := [column.name for column in manifest.columns if column.kind == "kept"]:
        names = ", ".join(map(repr, kept[:9])) + ", …" * (len(kept) > 9)
        raise ValueError(
            f"the columns {names} are kept as they are, such as texts and lists, and have no form as numbers: train "
            "with a function of your own, which reads the Parquet shards, or run prepare_data with these columns in "
            "drop_columns"
        )
    return sum(math.prod(column.shape) for column in manifest.columns)


def input_shape(manifest: DatasetManifest) -> tuple[int, ...]:
    """Return the shape of a model's input for one row: that of the tensor if it is the only column, else (width,)."""
    shape = manifest.columns[0].shape if len(manifest.columns) == 1 else ()
    return shape or (width(manifest),)


def mean_and_std(manifest: DatasetManifest) -> NDArray[np.float32]:
    """Return mean and standard deviation of each value of a row that `read_batches` yields, float32 [2, width].

    A category, which is an index, has the mean 0 and the deviation 1.
    """
    columns = [
        [np.tile(values, math.prod(column.shape) // np.size(values)) for values in (column.mean, column.std)]
        for column in manifest.columns
    ]
    return np.hstack(columns).astype(np.float32)


def log_values(numbers: NDArray[np.floating], unit: NDArray[np.floating] | float) -> NDArray[np.float64]:
    """Return sign(x) * log(1 + |x| / unit) of each number x, as float64: nearly linear near 0, logarithmic far from it.

    Args:
        numbers: The numbers.
        unit: `log_unit` of their column, above 0.
    """
    values = np.asarray(numbers, np.float64)
    logarithms: NDArray[np.float64] = np.sign(values) * np.log1p(np.abs(values) / unit)
    return logarithms


def is_image(shape: Sequence[int]) -> bool:
    """Return whether rows of a shape are images: [height, width], [height, width, 1] or [height, width, 3]."""
    return (*shape, 1)[2:] in ((1,), (1, 1), (3, 1))


def columns_of_records(manifest: DatasetManifest) -> list[str]:
    """Return the names of the columns of which records are made: the inputs and the label.

    Raises:
        ValueError: The dataset has no label.
    """
    if not manifest.label.name:
        raise ValueError(
            'the dataset has no label, because it was prepared with the task "none": read its Parquet shards with a '
            'function of your own, or run prepare_data with a label_column and the task "auto"'
        )
    return [*(column.name for column in manifest.columns), manifest.label.name]


def read_batches(
    folder: Path, manifest: DatasetManifest, parts: Sequence[ShardPart] | None = None, batch_rows: int = 4096
) -> Iterator[tuple[NDArray[np.float32], NDArray[Any]]]:
    """Read rows in the order of the shards. Only one batch is held in memory.

    Args:
        folder: The folder with the shards.
        manifest: The dataset's manifest.
        parts: The rows to read. Default: all rows.
        batch_rows: Maximum number of rows of a batch. Default: 4096. Batches are smaller where other rows are skipped,
            and for rows so large that a batch would exceed 64 MiB.

    Yields:
        The inputs as float32 [n, width], and the labels [n]: class indices as int32, or numbers to predict as float64.
        The columns are concatenated in the manifest's order: a category as its index, a missing number as NaN, a tensor
        with its stored values.

    Raises:
        ValueError: The dataset has no label, or a column without a form as numbers.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    *names, label = columns_of_records(manifest)
    rows_at_once = max(1, min(batch_rows, _BATCH_BYTES // (4 * width(manifest))))
    for part in map(whole_shard, manifest.shards) if parts is None else parts:
        begin = done = 0
        with pq.ParquetFile(Path(folder) / part.shard.path) as file:
            for batch in file.iter_batches(rows_at_once, columns=[*names, label]):
                numbers = part.row_numbers(done, done + batch.num_rows) - begin
                numbers = numbers[numbers < batch.num_rows]
                rows = batch if len(numbers) == batch.num_rows else batch.take(pa.array(numbers))
                begin, done = begin + batch.num_rows, done + len(numbers)
                if rows.num_rows:
                    yield np.hstack([column_matrix(rows[name]) for name in names]), rows[label].to_numpy()


def column_matrix(column: pa.Array) -> NDArray[np.float32]:
    """Return an Arrow column of n numbers or tensors as float32 [n, values of a row]. Missing values are NaN."""
    size = getattr(column.type, "list_size", None)
    values = column if size is None else column.flatten()
    numbers: NDArray[np.float32] = values.to_numpy(zero_copy_only=False).astype(np.float32)
    return numbers.reshape(len(column), 1 if size is None else size)
