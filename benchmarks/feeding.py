"""Measure how fast trainers read rows: records on disk, and the same rows in memory as the upper limit.

In memory, tf.data reads complete batches. NumPy selects the rows of a batch from an array, as it does from the file.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from measure import table

from kfp_distributed.storage.dataset import DatasetManifest, parts_of_rank, width
from kfp_distributed.trainers.runtime.feed import map_records, read_manifest, read_records, write_records

_BATCH, _RUNS = 256, 3


def feeding_table(data: Path, folder: Path) -> str:
    """Return a table of the rows/s of one epoch of `data`, without processing of the rows. Medians of three runs."""
    manifest = read_manifest(str(data / "train"))
    folder.mkdir(parents=True)
    original_folder = Path.cwd()
    os.chdir(folder)  # Records are stored in the working directory.
    try:
        started = time.monotonic()
        write_records(data / "train", manifest, parts_of_rank(manifest, 0, 1))
        conversion_rate = manifest.rows / (time.monotonic() - started)
        ours = {"tf.data": _tensorflow_from_disk(manifest), "NumPy": _numpy_from_disk(manifest)}
        limits = {"tf.data": _tensorflow_in_memory(manifest), "NumPy": _numpy_in_memory(manifest)}
        rows = [
            [f"{name}, batches of {_BATCH}", _rate(ours[name], manifest), _rate(limits[name], manifest)]
            for name in ours
        ]
    finally:
        os.chdir(original_folder)
    size = f"{manifest.rows:,} rows of {width(manifest)} numbers"
    conversion = f"conversion of Parquet to records, once before the first epoch ({size})"
    return table(
        ["rows/s", "from disk, as in our trainers", "in memory"], [[conversion, f"{conversion_rate:,.0f}", ""], *rows]
    )


def _rate(epoch: Callable[[], Iterable[object]], manifest: DatasetManifest) -> str:
    rates = []
    for _ in range(_RUNS):
        started = time.monotonic()
        for _ in epoch():
            pass
        rates.append(manifest.rows / (time.monotonic() - started))
    return f"{statistics.median(rates):,.0f}"


def _tensorflow_from_disk(manifest: DatasetManifest) -> Callable[[], Iterable[object]]:
    return lambda: read_records(manifest, _BATCH, seed=0).take(manifest.rows // _BATCH)


def _tensorflow_in_memory(manifest: DatasetManifest) -> Callable[[], Iterable[object]]:
    import tensorflow as tf

    records = np.array(map_records(manifest))[: manifest.rows // _BATCH * _BATCH]
    batches = records.reshape(-1, _BATCH, records.shape[1])
    ready = tf.data.Dataset.from_tensor_slices((batches[..., :-2], batches[..., -2], batches[..., -1]))
    return lambda: ready.prefetch(2)


def _numpy_from_disk(manifest: DatasetManifest) -> Callable[[], Iterable[object]]:
    return lambda: _slices(map_records(manifest))


def _numpy_in_memory(manifest: DatasetManifest) -> Callable[[], Iterable[object]]:
    records = np.array(map_records(manifest))
    return lambda: _slices(records)


def _slices(records: np.ndarray) -> Iterable[object]:
    order = np.random.default_rng(0).permutation(len(records))
    for start in range(0, len(records) - _BATCH + 1, _BATCH):
        yield records[order[start : start + _BATCH]]
