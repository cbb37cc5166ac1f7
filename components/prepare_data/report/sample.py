"""A random sample of the training rows, of a bounded size."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.conversations import CONVERSATION, spoken_text, word_counts
from kfp_distributed.components.prepare_data.columns.json_texts import OBJECTS
from kfp_distributed.components.prepare_data.columns.python_values import python_values
from kfp_distributed.storage.dataset import Column, column_matrix

SHOWN_ROWS = 10
"""Rows of the sample that the overview shows."""

# Shares of 20,000 rows are precise to less than one percentage point.
_MAXIMUM_ROWS = 20_000
_MAXIMUM_BYTES = 2**24


@dataclass(frozen=True)
class RowSample:
    """Random training rows in random order.

    Attributes:
        features: The inputs as numbers, [rows, width], in the order of their columns. Kept columns are left out.
        labels: Index of each row's class, or the number to predict; 0 without a label.
        total: Rows of which these are a sample.
        kept: Texts of the values of the kept columns, of the first rows alone.
        words: Number of words of each row in kept columns of texts, [rows].
    """

    features: NDArray[np.float32]
    labels: NDArray[Any]
    total: int
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def columns(self, columns: Sequence[Column]) -> dict[str, NDArray[np.float32]]:
        """Return the values of each column, [rows, size of a value]. Kept columns are left out."""
        columns = [column for column in columns if column.kind != "kept"]
        if not columns:
            return {}
        edges = np.cumsum([math.prod(column.shape) for column in columns])[:-1]
        return dict(zip((column.name for column in columns), np.split(self.features, edges, axis=1), strict=True))


@dataclass
class Sampler:
    """Draws a sample of rows that come piece by piece. Each row is equally likely, and only drawn rows are kept.

    Attributes:
        columns: The inputs.
        label: Name of the label.
        rows: Number of training rows of all pieces.
        generator: Random generator.
        maximum: Number of rows to draw; None for up to 20,000 rows and 16 MiB.
    """

    columns: Sequence[Column]
    label: str
    rows: int
    generator: np.random.Generator
    maximum: int | None = None
    _drawn: list[pa.RecordBatch] = field(default_factory=list)
    _numbers: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        row_bytes = sum(4 * math.prod(column.shape) if column.kind != "kept" else 32 for column in self.columns)
        maximum = self.maximum or min(_MAXIMUM_ROWS, max(1, _MAXIMUM_BYTES // row_bytes))
        self._numbers = np.sort(self.generator.choice(self.rows, min(self.rows, maximum), replace=False))

    def numbers(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return which of the training rows from `begin` to `end` are drawn: their numbers, from 0 for `begin`."""
        first, last = np.searchsorted(self._numbers, (begin, end))
        return self._numbers[first:last] - begin

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Keep the drawn rows of a piece, which follows the one before, in the form of the shards."""
        self._drawn += rows

    def sample(self, change: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows) -> RowSample:
        """Return the drawn rows.

        Args:
            change: Changes values of the rows. Default: no change.
        """
        rows = change(pa.concat_batches(self._drawn))
        order = self.generator.permutation(rows.num_rows)
        numbers = [column_matrix(rows[column.name]) for column in self.columns if column.kind != "kept"]
        features = np.hstack([np.empty((len(order), 0), np.float32), *numbers])
        labels = rows[self.label].to_numpy() if self.label else np.zeros(len(order), np.int32)
        first = pa.array(order[:SHOWN_ROWS])
        columns = [column for column in self.columns if column.kind == "kept"]
        kept = {column.name: _shown(column, rows[column.name].take(first)) for column in columns}
        words = {
            column.name: word_counts(rows[column.name], are_conversations=column.source_type == CONVERSATION)[order]
            for column in columns
            if column.dtype == "string" and column.source_type != OBJECTS
        }
        return RowSample(features[order], labels[order], self.rows, kept, words)


def _shown(column: Column, values: pa.Array) -> list[str]:
    show = spoken_text if column.source_type == CONVERSATION else str
    return ["" if value is None else show(value) for value in python_values(values)]
