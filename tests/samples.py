"""A table with columns of all kinds, and datasets of given rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.files import sha256_of

COLUMNS = [
    Column("size", "number", "float32", mean=500.0, std=100.0),
    Column("color", "category", "int32", vocabulary=("blue", "red")),
    Column("shop", "category", "int32", vocabulary=tuple(f"shop {number}" for number in range(40))),
    Column("signal", "tensor", "float32", (2, 3), mean=10.0, std=2.0),
]
CLASSES = ["a", "b", "c"]


def table(rows, seed):
    """Return Arrow arrays and labels.

    Each column depends on the class. In two columns, one value in ten is missing.
    """
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, rows)
    missing = random.random((2, rows)) < 0.1
    signal = random.normal(10, 2, (rows, 6)) + labels[:, None]
    return [
        pa.array(random.normal(400 + 100 * labels, 50), pa.float32(), mask=missing[0]),
        pa.array(np.where(missing[1], 0, 1 + (labels == 2)), pa.int32()),
        pa.array(1 + labels * 13 + random.integers(0, 13, rows), pa.int32()),
        pa.FixedSizeListArray.from_arrays(pa.array(signal.reshape(-1), pa.float32()), 6),
    ], labels


def write_dataset(folder, columns, arrays, labels, classes, shards, split="train", label=None):
    """Write a dataset: `arrays` has an Arrow array for each column, `shards` the number of rows of each shard.

    With a label of the task "regression" or "none", `classes` is (), and without a label, `labels` is not used.
    """
    folder.mkdir(parents=True)
    names = [column.name for column in columns]
    label = label or Label("label", tuple(classes))
    types = {"classification": pa.int32(), "regression": pa.float64()}
    of_label = [pa.array(labels, types[label.task])] if label.name else []
    content = pa.table([*arrays, *of_label], names + [label.name] * bool(label.name))
    written, start = [], 0
    for number, rows in enumerate(shards):
        file = folder / f"part-{number:05d}.parquet"
        pq.write_table(content.slice(start, rows), file, row_group_size=100)
        written.append(Shard(file.name, rows, file.stat().st_size, sha256_of(file)))
        start += rows
    counts = np.bincount(labels, minlength=len(classes)).tolist() if classes else ()
    manifest = DatasetManifest(split, tuple(columns), label, tuple(written), tuple(counts), 0, "test", shuffled=True)
    (folder / DATASET_MANIFEST).write_text(manifest.to_json())
    return manifest
