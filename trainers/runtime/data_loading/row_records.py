"""Converts the rows of a Parquet row group into the records that trainers read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import DatasetManifest, column_matrix
from kfp_distributed.trainers.runtime.data_loading.target import scale_labels

# Rows that are converted at once. Their records stay in the processor's cache while the columns are written into them.
_ROWS_AT_ONCE = 2048


def to_records(
    table: pa.Table,
    rows: NDArray[np.int64],
    manifest: DatasetManifest,
    weights: NDArray[np.float64] | None,
    records: NDArray[np.float32],
) -> None:
    """Write rows of a table as records: the inputs, the scaled label and the weight, or the label itself.

    Args:
        table: Table with the columns `columns_of_records`, in their order.
        rows: Numbers of the rows, in ascending order.
        manifest: Manifest of the dataset.
        weights: Weight of each class. Without classes, each row has the weight 1. None for the label itself, whose 64
            bits then take the place of the scaled label and the weight, see `exact_labels`.
        records: Array to write, [n, width + 2].
    """
    arrays = [column.combine_chunks() for column in table.columns]
    values = [column_matrix(array) for array in arrays[:-1]]
    labels: NDArray[Any] = arrays[-1].to_numpy()
    if len(rows) < table.num_rows:
        values, labels = [column[rows] for column in values], labels[rows]
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part, column = slice(start, start + _ROWS_AT_ONCE), 0
        for matrix in values:
            records[part, column : column + matrix.shape[1]] = matrix[part]
            column += matrix.shape[1]
    if weights is None:
        records[:, -2:] = labels.astype(np.float64).view(np.float32).reshape(-1, 2)
        return
    records[:, -2] = scale_labels(labels, manifest.label)
    records[:, -1] = weights[labels] if len(weights) else 1


def exact_labels(records: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the labels [n] of records with exact labels, [n, width + 2]. A 32-bit float would round them."""
    return np.ascontiguousarray(records[:, -2:]).view(np.float64)[:, 0]
