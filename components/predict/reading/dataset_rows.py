"""Reads the rows of a dataset of `prepare_data`."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kfp_distributed.components.predict.asked_model.predictor import BATCH_BYTES, BATCH_ROWS
from kfp_distributed.components.predict.reading.input_rows import InputRows
from kfp_distributed.components.prepare_data.columns.python_values import python_values
from kfp_distributed.components.prepare_data.sources.chunks import Chunk, CountRows, FilePart
from kfp_distributed.components.prepare_data.sources.read_rows import Reject
from kfp_distributed.storage.alignment import align
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard, column_matrix
from kfp_distributed.storage.files import FileEntry, describe_file
from kfp_distributed.storage.model import ModelManifest
from kfp_distributed.storage.opener import open_store


@dataclass(frozen=True)
class DatasetRows:
    """The rows of a dataset, see `RowReader`.

    Attributes:
        folder: Folder of the dataset.json.
        manifest: The manifest, with the columns in the order in which the model takes them.
        key_columns: Names of inputs, or of the label, that are copied to the output.
    """

    folder: str
    manifest: DatasetManifest
    key_columns: tuple[str, ...]

    file_column = "shard"
    first_row = 1

    late_findings = None
    late_notes = tuple[str, ...]

    @property
    def key_schema(self) -> pa.Schema:
        """See `RowReader`."""
        columns = {column.name: column for column in self.manifest.columns}
        return pa.schema(
            [
                (name, _key_type(columns[name]) if name in columns else _label_type(self.manifest.label))
                for name in self.key_columns
            ]
        )

    def chunks(self) -> Sequence[Chunk]:
        """Return the shards, each as one chunk."""
        folder = Path(self.folder)
        return [(FilePart(shard.path, folder / shard.path, size=shard.size),) for shard in self.manifest.shards]

    def read(self, part: FilePart, reject: Reject, count_rows: CountRows) -> Iterator[InputRows]:
        """See `RowReader`."""
        (shard,) = (shard for shard in self.manifest.shards if shard.path == part.name)
        columns, label = self.manifest.columns, self.manifest.label
        names = [column.name for column in columns]
        width = sum(math.prod(column.shape) for column in columns)
        rows_at_once = max(1, min(BATCH_ROWS, BATCH_BYTES // (4 * max(1, width))))
        has_label = label.name in self.key_columns
        begin = 1
        with self._local(shard) as path, pq.ParquetFile(path) as file:
            for batch in file.iter_batches(rows_at_once, columns=[*names, *[label.name] * has_label]):
                count_rows(batch.num_rows)
                keys = [self._key(name, batch[name]) for name in self.key_columns]
                numbers = np.arange(begin, begin + batch.num_rows)
                yield InputRows(self._values(batch), pa.record_batch(keys, schema=self.key_schema), numbers)
                begin += batch.num_rows

    def file_names(self, part: FilePart, numbers: NDArray[np.int64]) -> None:
        """Return None: a shard has several rows."""

    @contextmanager
    def _local(self, shard: Shard) -> Iterator[Path]:
        """Yield the path of a shard, which is compared with the manifest.

        Raises:
            ValueError: It is missing or damaged.
            ChecksumMismatch: It was replaced in the store.
            StorageError: It cannot be downloaded.
        """
        expected = FileEntry(shard.path, shard.size, shard.sha256)
        if self.manifest.shards_uri:
            with tempfile.TemporaryDirectory(prefix="predict-shard-") as scratch:
                path = Path(scratch, shard.path)
                open_store(self.manifest.shards_uri).download(shard.path, path, expected)
                yield path
            return
        path = Path(self.folder, shard.path)
        if not path.is_file() or describe_file(path, shard.path) != expected:
            raise ValueError(f"shard {shard.path} of the dataset is missing or damaged: run prepare_data again")
        yield path

    def _values(self, batch: pa.RecordBatch) -> dict[str, Any] | NDArray[np.float32]:
        """Return the rows as a matrix, or by column if a column has no form as numbers."""
        columns = self.manifest.columns
        if all(column.kind != "kept" for column in columns):
            return np.hstack([column_matrix(batch[column.name]) for column in columns])
        return {column.name: _raw(column, batch[column.name]) for column in columns}

    def _key(self, name: str, values: pa.Array) -> pa.Array:
        for column in self.manifest.columns:
            if column.name == name:
                return (
                    _texts(column.vocabulary, values, 1)
                    if column.kind == "category"
                    else values.cast(_key_type(column))
                )
        label = self.manifest.label
        return _texts(label.classes, values, 0) if label.classes else values.cast(_label_type(label))


def _raw(column: Column, values: pa.Array) -> NDArray[Any]:
    if column.kind == "kept":
        objects = np.empty(len(values), object)
        objects[:] = python_values(values)
        return objects
    if column.kind == "category":
        return np.array(_texts(column.vocabulary, values, 1).to_pylist(), object)
    return column_matrix(values).reshape(-1, *column.shape)


def _texts(names: Sequence[str], indices: pa.Array, first: int) -> pa.StringArray:
    """Return the text of each index. `first` is the index of the first text; a lower one is missing."""
    positions = indices.to_numpy(zero_copy_only=False) - first
    return pa.array(names, pa.string()).take(pa.array(positions, mask=positions < 0))


def _key_type(column: Column) -> pa.DataType:
    if column.kind == "category":
        return pa.string()
    if column.kind == "tensor":
        return pa.list_(pa.uint8() if column.dtype == "uint8" else pa.float32(), math.prod(column.shape))
    return pa.float32() if column.kind == "number" else None


def _label_type(label: Label) -> pa.DataType:
    return pa.string() if label.classes else pa.float64()


def read_dataset(folder: Path) -> DatasetManifest:
    """Return the manifest of a dataset.

    Raises:
        FileNotFoundError: There is no manifest.
        ValueError: It is not valid.
    """
    file = folder / DATASET_MANIFEST
    if not file.is_file():
        raise FileNotFoundError(f"{folder} has no {DATASET_MANIFEST}: pass a dataset of prepare_data, or set source")
    return DatasetManifest.from_json(file.read_text(encoding="utf-8"))


def described_by(dataset: DatasetManifest, model: ModelManifest) -> ModelManifest:
    """Return the manifest of a model that has no columns, with the columns and the label of a dataset."""
    columns = tuple(asdict(column) for column in dataset.columns)
    return replace(model, columns=columns, label=model.label or asdict(dataset.label))


def open_dataset(
    folder: Path, manifest: DatasetManifest, model: ModelManifest, key_columns: Sequence[str]
) -> DatasetRows:
    """Open a dataset for a model.

    Args:
        folder: Folder of the dataset.json.
        manifest: Its manifest.
        model: Manifest of the model, which has columns.
        key_columns: Names of inputs, or of the label.

    Raises:
        ValueError: The dataset has other columns or vocabularies than the model, other classes, or no such key column.
    """
    label = model.label if manifest.label.name and model.label else asdict(manifest.label)
    try:
        manifest = align(manifest, model.columns, label)
    except ValueError as error:
        raise ValueError(
            f"the dataset is not of the kind that the model was trained on: {error}. Prepare it with `like`, the "
            "address of a dataset that the model was trained with, or set source to the rows themselves"
        ) from None
    names = [*(column.name for column in manifest.columns), *filter(None, [manifest.label.name])]
    if unknown := [name for name in key_columns if name not in names]:
        raise ValueError(f"key_columns has {unknown[0]!r}, which the dataset lacks; it has {names[:50]}")
    return DatasetRows(str(folder), manifest, tuple(key_columns))
