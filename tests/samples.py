"""A table with columns of all kinds."""

import numpy as np
import pyarrow as pa

from kfp_distributed.storage.dataset import Column

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
