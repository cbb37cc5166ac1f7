"""Vocabularies of the training rows alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import Column

_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Unseen:
    """Values of a category that no training row has. Their rows count as rows without a value.

    Attributes:
        column: Name of the column.
        values: The values.
        rows: Number of their rows, in validation and test.
        splits: Splits with values of the column of which none is in a training row; "new" for all rows that are
            prepared like another dataset.
        known: Values of that dataset. Default: the values are in other rows of the source, where they have a line if
            they look alike.
    """

    column: str
    values: tuple[str, ...]
    rows: int
    splits: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


@dataclass
class VocabularyCounter:
    """Counts the values of categories in the rows of each split.

    A model must not learn from the validation and test rows which values exist. Which rows are for training is known
    only after the values of all rows were collected, so the indices are changed afterwards, by `recoded`.

    Attributes:
        columns: The inputs with the vocabularies of all rows.
        is_complete: Whether the vocabularies stay as they are, because they are those of another dataset.
    """

    columns: Sequence[Column]
    is_complete: bool = False
    _rows: dict[str, NDArray[np.int64]] = field(init=False)

    def __post_init__(self) -> None:
        self._rows = {
            column.name: np.zeros((len(_SPLITS), len(column.vocabulary) + 1), np.int64)
            for column in self.columns
            if column.kind == "category"
        }

    def add(self, counts: Mapping[str, NDArray[np.int64]]) -> None:
        """Add the counts of a piece, of `count_values`."""
        for name, rows in counts.items():
            self._rows[name] += rows

    def training_columns(self) -> tuple[Column, ...]:
        """Return the columns with the vocabularies of the training rows."""
        if self.is_complete:
            return tuple(self.columns)
        return tuple(
            replace(column, vocabulary=tuple(np.array(column.vocabulary, object)[self._rows[column.name][0, 1:] > 0]))
            if column.name in self._rows
            else column
            for column in self.columns
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Number of the values of each category, with the missing one."""
        return {name: rows.shape[1] for name, rows in self._rows.items()}

    def unseen(self) -> list[Unseen]:
        """Return the values that no training row has."""
        result: list[Unseen] = []
        for column in () if self.is_complete else self.columns:
            if column.name in self._rows:
                rows = self._rows[column.name][:, 1:]
                unseen = rows * (rows[0] == 0)
                if unseen.any():
                    values = tuple(np.array(column.vocabulary, object)[unseen.any(axis=0)])
                    is_strange = unseen.any(axis=1) & (unseen == rows).all(axis=1)
                    splits = tuple(compress(_SPLITS, is_strange))
                    result.append(Unseen(column.name, values, int(unseen.sum()), splits))
        return result

    @cached_property
    def indices(self) -> Mapping[str, NDArray[np.int32]]:
        """New index of each old index in `training_columns`, for the columns whose indices change, for `recoded`."""
        changed: dict[str, NDArray[np.int32]] = {}
        if self.is_complete:
            return changed
        for name, rows in self._rows.items():
            is_seen = rows[0, 1:] > 0
            if not is_seen.all():
                indices = np.where(is_seen, np.cumsum(is_seen), 0)
                changed[name] = np.concatenate([[0], indices]).astype(np.int32)
        return changed


def count_values(
    sizes: Mapping[str, int], shards: int, rows: pa.RecordBatch, files: NDArray[np.uint16]
) -> dict[str, NDArray[np.int64]]:
    """Return how many rows of each split have each value of the categories of a piece.

    Args:
        sizes: Number of the values of each category, with the missing one.
        shards: Number of training shards.
        rows: Rows with indices of the vocabularies of all rows, sorted by their files.
        files: File of each row.

    Returns:
        The rows by column, each [splits, values].
    """
    edges = [0, *np.searchsorted(files, (shards, shards + 1)).tolist(), len(files)]
    counts = {}
    for name, size in sizes.items():
        values = rows[name].to_numpy()
        counts[name] = np.array([np.bincount(values[slice(*ends)], minlength=size) for ends in pairwise(edges)])
    return counts


def recoded(rows: pa.RecordBatch, indices: Mapping[str, NDArray[np.int32]]) -> pa.RecordBatch:
    """Return rows with the indices of the training columns. A value that no training row has becomes 0, missing.

    Args:
        rows: Rows with indices of the vocabularies of all rows.
        indices: New index of each old one, by column.
    """
    for name, new in indices.items():
        position = rows.schema.get_field_index(name)
        rows = rows.set_column(position, rows.schema.field(position), pa.array(new[rows[name].to_numpy()]))
    return rows
