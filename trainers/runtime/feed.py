"""Converts Parquet shards into fixed-length records in a local file, which training steps read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import (
    DATASET_MANIFEST,
    DatasetManifest,
    Label,
    Shard,
    ShardPart,
    mean_and_std,
    read_batches,
    width,
)
from kfp_distributed.storage.files import sha256_of
from kfp_distributed.trainers.program import check_batch
from kfp_distributed.trainers.runtime.target import scale_labels, weights_of_classes

if TYPE_CHECKING:
    import tensorflow as tf

RECORDS = "train.records"
"""The record file, in the working directory. The path is relative, because under ParameterServerStrategy the chief
builds the input pipeline, but each worker opens the file in its own working directory."""

# Limits of the shuffle buffer: the memory of a small trainer, and TensorFlow's 24 bytes for each slot.
_SHUFFLE_BYTES, _SHUFFLE_RECORDS = 64 * 2**20, 100_000


def read_manifest(folder: str) -> DatasetManifest:
    """Read the manifest of a dataset in a local folder."""
    return DatasetManifest.from_json(Path(folder, DATASET_MANIFEST).read_text())


def scaling(manifest: DatasetManifest) -> NDArray[np.float32]:
    """Return mean, std and scale, [3, width]. (input - mean) / std * scale is of size 1, and 0 for a category."""
    scale = [np.full(math.prod(column.shape), column.kind != "category", np.float32) for column in manifest.columns]
    return np.vstack([mean_and_std(manifest), np.concatenate(scale)])


def fills(manifest: DatasetManifest) -> NDArray[np.float32]:
    """Return the number that stands for NaN in each value of a row, [width]: `fill` of the column, or else the mean.

    The mean of a category is 0, the index of a missing value.
    """
    values = mean_and_std(manifest)[0]
    own = [
        np.full(math.prod(column.shape), np.nan if column.fill is None else column.fill) for column in manifest.columns
    ]
    filled: NDArray[np.float32] = np.where(np.isnan(np.concatenate(own)), values, np.concatenate(own)).astype(
        np.float32
    )
    return filled


def categories(manifest: DatasetManifest) -> dict[int, int]:
    """Return the number of values of each category, by its index in [n, width]: the vocabulary and "missing"."""
    ends = np.cumsum([math.prod(column.shape) for column in manifest.columns]).tolist()
    columns = zip(manifest.columns, ends, strict=True)
    return {end - 1: len(column.vocabulary) + 1 for column, end in columns if column.kind == "category"}


class Epoch(NamedTuple):
    """Plan of an epoch for one input rank.

    Attributes:
        steps: Number of steps, the same for all ranks.
        batch: Rows of one device in one step.
        records: Rows of the rank, including the records that fill up the last step.
    """

    steps: int
    batch: int
    records: int


def plan_epoch(rows: int, batch_size: int, ranks: int = 1, devices: int = 1) -> Epoch:
    """Divide an epoch into batches of one size, so that every row comes once and no rank waits for another.

    Each device has `batch` rows in a step, so a step has a multiple of the number of devices: the largest one that is
    not above batch_size. It has fewer rows if that fills the last step better.

    Args:
        rows: Rows of all ranks together.
        batch_size: Rows of one step over all ranks, at most.
        ranks: Number of processes that read a part each. The parts differ by one row at most. Default: 1.
        devices: Devices of each rank. Default: 1.

    Returns:
        The plan. Records of weight 0 fill up the last batches; there are fewer of them than one for each device and
        step.

    Raises:
        ValueError: batch_size is below the number of devices.
    """
    check_batch(batch_size, ranks * devices)
    part = math.ceil(rows / ranks)
    steps = math.ceil(part / (batch_size // ranks // devices * devices))
    batch = math.ceil(part / (steps * devices))
    return Epoch(steps, batch, steps * batch * devices)


def describe_batch(plan: Epoch, batch_size: int, devices: int) -> str:
    """Return the line for the log about the rows of an update, which may be fewer than batch_size.

    Args:
        plan: The plan.
        batch_size: Rows of one update that the user has set.
        devices: Devices of all ranks together.
    """
    rows = plan.batch * devices
    return f"batch_size {batch_size} over {devices} devices: {rows} rows in each of {plan.steps} updates an epoch"


class Step(NamedTuple):
    """One step of an epoch.

    Attributes:
        part: Its rows, among the rows of a rank.
        rows: Number of its rows over all ranks.
    """

    part: slice
    rows: int


def steps_of_epoch(rows: int, batch_size: int, ranks: int, rank: int) -> list[Step]:
    """Divide an epoch into steps of exactly batch_size rows over all ranks. The last step has the rest.

    The batches of the ranks in a step differ by one row at most. A rank may have no row in the last step.

    Args:
        rows: Rows of all ranks together. Rank number r has the rows from rows * r // ranks on, as in `parts_of_rank`.
        batch_size: Rows of one step over all ranks.
        ranks: Number of ranks.
        rank: Number of this rank.

    Raises:
        ValueError: batch_size is below the number of ranks.
    """
    check_batch(batch_size, ranks)
    parts = [rows * (number + 1) // ranks - rows * number // ranks for number in range(ranks)]
    # The ranks take rows in turns, those with a row more first. Then each has used its part after the last step.
    turn = sorted(range(ranks), key=lambda number: -parts[number]).index(rank)
    ends = [*range(0, rows, batch_size), rows]
    return [
        Step(slice((start + ranks - 1 - turn) // ranks, (stop + ranks - 1 - turn) // ranks), stop - start)
        for start, stop in pairwise(ends)
    ]


def write_records(
    folder: Path,
    manifest: DatasetManifest,
    parts: Sequence[ShardPart],
    records: int = 1,
    class_weights: str = "none",
) -> None:
    """Write rows into RECORDS as records of width + 2 float32: the inputs, the label, the weight.

    The label is the index of the class, or the number to predict after `scale_labels`. The weight of a row is more than
    0: that of its class, or 1.

    Args:
        folder: Folder of the shards.
        manifest: Manifest of the complete dataset.
        parts: Rows to write.
        records: Number of records. Zeros, whose weight is 0, fill the file up to it. Default: 1, because an empty file
            cannot be mapped.
        class_weights: See `weights_of_classes`. Default: "none".
    """
    size, of_classes = (width(manifest) + 2) * 4, weights_of_classes(manifest, class_weights)
    with Path(RECORDS).open("wb") as stream:
        for inputs, labels in read_batches(folder, manifest, parts):
            weights = of_classes[labels] if len(of_classes) else np.ones(len(labels))
            rows = np.column_stack([inputs, scale_labels(labels, manifest.label), weights])
            stream.write(rows.astype("<f4").tobytes())
        stream.truncate(max(stream.tell(), records * size))


def map_records(manifest: DatasetManifest) -> NDArray[np.float32]:
    """Return RECORDS as a memory-mapped array [records, width + 2]."""
    return np.memmap(RECORDS, "<f4", "r").reshape(-1, width(manifest) + 2)


def read_records(
    manifest: DatasetManifest,
    batch: int,
    seed: int,
    epoch: int = 0,
    skipped: int = 0,
    written: Label | None = None,
) -> tf.data.Dataset:
    """Return an endless tf.data.Dataset of inputs [batch, width], labels [batch] and weights [batch] from RECORDS.

    Each epoch shuffles the records with a buffer of at most 64 MB and 100,000 records. The order depends on the seed
    and the number of the epoch alone, so that a resumed training sees the rows that it would have seen.

    Args:
        manifest: Manifest of the dataset.
        batch: Rows of a batch.
        seed: Seed of the order of the rows.
        epoch: Number of the first epoch, from 0. Default: 0.
        skipped: Number of records of this epoch to leave out at its beginning. Default: 0.
        written: Label with whose mean and deviation the numbers to predict were written. They are scaled with those of
            the manifest's label. Default: None, the same.
    """
    import tensorflow as tf

    columns, label = width(manifest), manifest.label
    written = written or label
    factor, offset = written.std / label.std, (written.mean - label.mean) / label.std

    def split(records: tf.Tensor) -> tuple[tf.Tensor, ...]:
        values = tf.ensure_shape(tf.io.decode_raw(records, tf.float32), [None, columns + 2])
        return values[:, :columns], values[:, columns] * factor + offset, values[:, columns + 1]

    size = (columns + 2) * 4
    buffer = max(1, min(_SHUFFLE_RECORDS, _SHUFFLE_BYTES // size))

    def shuffle(number: tf.Tensor) -> tf.data.Dataset:
        # Sets the seed of this function's graph, which TensorFlow combines with that of the shuffle. By default it is
        # that of the process, and a tensor as seed of the shuffle cannot be combined with 0.
        tf.compat.v1.set_random_seed(1)
        # A prime number, so that neighbouring seeds and epochs do not share orders.
        seed_of_epoch = number + seed * 1_000_003 % 2**31
        return tf.data.FixedLengthRecordDataset(RECORDS, size).shuffle(buffer, seed_of_epoch, False)

    records = tf.data.Dataset.range(epoch, 2**62).flat_map(shuffle).skip(skipped)
    options = tf.data.Options()
    # Autotuning does not speed up such a short pipeline, and its thread may take seconds to end (see
    # tensorflow_internals.py).
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 2
    return records.batch(batch, drop_remainder=True).map(split).prefetch(2).with_options(options)


def keep_rows(folder: Path, manifest: DatasetManifest, parts: Sequence[ShardPart]) -> None:
    """Cut the shards in a folder to some rows, and write a manifest for them.

    A program that reads every file in the folder then sees each of its rows once.

    Args:
        folder: Folder of the shards.
        manifest: Manifest of the complete dataset.
        parts: Rows to keep.
    """
    shards, counts, label = [], np.zeros(len(manifest.label.classes), int), manifest.label.name
    for part in parts:
        file = folder / part.shard.path
        if part.rows < part.shard.rows:
            pq.write_table(pq.read_table(file).take(pa.array(part.row_numbers())), file)
        if manifest.label.classes:
            counts += np.bincount(pq.read_table(file, columns=[label])[label], minlength=len(counts))
        shards.append(Shard(part.shard.path, part.rows, file.stat().st_size, sha256_of(file)))
    own = replace(manifest, shards=tuple(shards), class_counts=tuple(counts.tolist()))
    (folder / DATASET_MANIFEST).write_text(own.to_json())
