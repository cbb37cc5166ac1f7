"""The prepared dataset: a manifest over Parquet shards, how it is cut among ranks, and how it is read.

A dataset is a folder (or a prefix in an object store) with one `dataset.json` and its Parquet shards.
In the shards a number is a nullable float32, a category is an int32 index (0 = missing, i = vocabulary[i - 1]),
a tensor is a fixed-size list in row-major order, and the label (under its own name) is an int32 class index.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # The `train` step has no Arrow.
    import pyarrow as pa

DATASET_MANIFEST = "dataset.json"
_FORMAT = "kfp-distributed-dataset-1"
_DTYPES = {"number": ("float32",), "category": ("int32",), "tensor": ("uint8", "float32")}
# A batch of large images must fit into a small trainer pod beside the model.
_BATCH_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Column:
    """One input column.

    Attributes:
        name: Name of the column in the shards.
        kind: What the column holds.
        dtype: Type of its values in the shards.
        shape: Shape of one row's value; () except for tensors.
        vocabulary: The values of a category, in the order of their indices, which begin with 1.
        mean: Mean of the training split's values that are there (over all elements of a tensor).
        std: Their standard deviation; 1 where they are all equal.
    """

    name: str
    kind: Literal["number", "category", "tensor"]
    dtype: Literal["float32", "uint8", "int32"]
    shape: tuple[int, ...] = ()
    vocabulary: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        is_tensor, sizes = self.kind == "tensor", self.shape
        if self.dtype not in _DTYPES.get(self.kind, ()) or is_tensor != bool(sizes) or min(sizes, default=1) < 1:
            raise ValueError(f"column {self.name!r}: there is no kind {self.kind!r} of {self.dtype!r} {list(sizes)}")


@dataclass(frozen=True)
class Label:
    """The column to predict: its name and its classes, in the order of their indices from 0."""

    name: str
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Shard:
    """One Parquet file: its name beside the manifest, its rows, bytes and SHA-256 (hex)."""

    path: str
    rows: int
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if Path(self.path).name != self.path or self.path in ("", ".."):
            raise ValueError(f"shard path {self.path!r} is not a bare name")


@dataclass(frozen=True)
class DatasetManifest:
    """What `dataset.json` says.

    Attributes:
        split: "train", "validation" or "test".
        columns: The inputs, in the order in which they are concatenated.
        label: The column to predict.
        shards: The files, in the order of the rows; none for an empty split.
        class_counts: Rows of each class of this split, in the order of `label.classes`.
        seed: Seed of the split.
        source: Where the data came from.
    """

    split: str
    columns: tuple[Column, ...]
    label: Label
    shards: tuple[Shard, ...]
    class_counts: tuple[int, ...]
    seed: int
    source: str

    def __post_init__(self) -> None:
        if len(self.class_counts) != len(self.label.classes) or sum(self.class_counts) != self.rows:
            raise ValueError(f"class_counts {list(self.class_counts)} do not fit the classes or {self.rows} rows")

    @property
    def rows(self) -> int:
        """Number of rows of all shards."""
        return sum(shard.rows for shard in self.shards)

    def to_json(self) -> str:
        """Return the text of `dataset.json`, the same for equal manifests."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DatasetManifest:
        """Read the text of a `dataset.json`.

        Raises:
            ValueError: The text is not a manifest of this format; the message says what is wrong.
        """
        try:
            data = json.loads(text, object_hook=_with_tuples)
            if data.pop("format") != _FORMAT:
                raise ValueError(f"its format is not {_FORMAT!r}")
            columns = tuple(Column(**column) for column in data.pop("columns"))
            shards = tuple(Shard(**shard) for shard in data.pop("shards"))
            return cls(columns=columns, label=Label(**data.pop("label")), shards=shards, **data)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{DATASET_MANIFEST} cannot be read: {error!r}") from error


def _with_tuples(item: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}


@dataclass(frozen=True)
class ShardSlice:
    """Rows start (included) to stop (not included) of one shard."""

    shard: Shard
    start: int
    stop: int


def slices_of_rank(manifest: DatasetManifest, rank: int, world: int) -> tuple[ShardSlice, ...]:
    """Cut the dataset into `world` parts and return that of `rank`.

    Rank r of n has the rows r*N//n to (r+1)*N//n of the concatenated shards: each row is in exactly one part, and
    the parts differ by one row at most.

    Raises:
        ValueError: There is no such rank.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world} ranks: it must be 0 to {world - 1}")
    first, last = (edge * manifest.rows // world for edge in (rank, rank + 1))
    slices = []
    for shard in manifest.shards:
        if max(first, 0) < min(last, shard.rows):
            slices.append(ShardSlice(shard, max(first, 0), min(last, shard.rows)))
        first, last = first - shard.rows, last - shard.rows
    return tuple(slices)


def width(manifest: DatasetManifest) -> int:
    """Return how many float32 values `read_batches` yields for a row: all columns flattened."""
    return sum(math.prod(column.shape) for column in manifest.columns)


def input_shape(manifest: DatasetManifest) -> tuple[int, ...]:
    """Return the shape of one row as a model sees it: that of the only tensor, else (width,)."""
    shape = manifest.columns[0].shape if len(manifest.columns) == 1 else ()
    return shape or (width(manifest),)


def read_batches(
    folder: Path, manifest: DatasetManifest, slices: Sequence[ShardSlice] | None = None, batch_rows: int = 4096
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32]]]:
    """Read rows in the order of the shards, with memory for one batch.

    Args:
        folder: Where the shards are.
        manifest: The dataset's manifest.
        slices: The rows to read; all if not given.
        batch_rows: Rows of a batch at most; fewer at the end of a slice and where the rows are large.

    Yields:
        The inputs as float32 [n, width], columns side by side in the manifest's order (a category as its index, a
        missing number as NaN, tensors as they were stored), and the class indices as int32 [n].
    """
    import pyarrow.parquet as pq

    names, label = [column.name for column in manifest.columns], manifest.label.name
    rows_at_once = max(1, min(batch_rows, _BATCH_BYTES // (4 * width(manifest))))
    for part in slices_of_rank(manifest, 0, 1) if slices is None else slices:
        # A slice was fetched as a whole shard, so reading past the rows before it costs little beside that.
        with pq.ParquetFile(Path(folder) / part.shard.path) as file:
            begin = 0
            for batch in file.iter_batches(rows_at_once, columns=[*names, label]):
                rows = batch[max(part.start - begin, 0) : max(part.stop - begin, 0)]
                begin += batch.num_rows
                if rows.num_rows:
                    yield np.hstack([column_matrix(rows[name]) for name in names]), rows[label].to_numpy()
                if begin >= part.stop:
                    break


def column_matrix(column: pa.Array) -> NDArray[np.float32]:
    """Return an Arrow column of n numbers or tensors as float32 [n, size of a row]; what is missing is NaN."""
    values = column.flatten() if hasattr(column.type, "list_size") else column
    matrix: NDArray[np.float32] = values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(column), -1)
    return matrix
