"""Vocabularies of the training rows alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import Column


@dataclass(frozen=True)
class Unseen:
    """Values of a category that no training row has. Their rows count as rows without a value.

    Attributes:
        column: Name of the column.
        values: The values.
        rows: Number of their rows, in validation and test.
    """

    column: str
    values: tuple[str, ...]
    rows: int


@dataclass
class VocabularyCounter:
    """Counts the values of categories in the training rows and in all rows.

    A model must not learn from the validation and test rows which values exist. Which rows are for training is known
    only after the values of all rows were collected, so the indices are changed afterwards, by `recode`.

    Attributes:
        columns: The inputs with the vocabularies of all rows.
        is_complete: Whether the vocabularies stay as they are, because they are those of another dataset.
    """

    columns: Sequence[Column]
    is_complete: bool = False
    _training: dict[str, NDArray[np.int64]] = field(init=False)
    _all: dict[str, NDArray[np.int64]] = field(init=False)

    def __post_init__(self) -> None:
        sizes = {column.name: len(column.vocabulary) + 1 for column in self.columns if column.kind == "category"}
        self._training = {name: np.zeros(size, np.int64) for name, size in sizes.items()}
        self._all = {name: np.zeros(size, np.int64) for name, size in sizes.items()}

    def add(self, rows: pa.RecordBatch, training_rows: NDArray[np.intp]) -> None:
        """Add rows with indices of the vocabularies of all rows.

        Args:
            rows: Rows of all splits.
            training_rows: Indices of the training rows.
        """
        for name, counts in self._all.items():
            indices = rows[name].to_numpy()
            counts += np.bincount(indices, minlength=len(counts))
            self._training[name] += np.bincount(indices[training_rows], minlength=len(counts))

    def training_columns(self) -> tuple[Column, ...]:
        """Return the columns with the vocabularies of the training rows."""
        if self.is_complete:
            return tuple(self.columns)
        return tuple(
            replace(column, vocabulary=tuple(np.array(column.vocabulary, object)[self._training[column.name][1:] > 0]))
            if column.name in self._training
            else column
            for column in self.columns
        )

    @property
    def names(self) -> list[str]:
        """Names of the categories."""
        return [*self._all]

    def recode(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the indices of `training_columns`. A value that no training row has becomes 0, missing."""
        for name, indices in self._indices.items():
            position = rows.schema.get_field_index(name)
            codes = pa.array(indices[rows[name].to_numpy()])
            rows = rows.set_column(position, rows.schema.field(position), codes)
        return rows

    def unseen(self) -> list[Unseen]:
        """Return the values that no training row has."""
        result: list[Unseen] = []
        for column in () if self.is_complete else self.columns:
            if column.name in self._training:
                counts = self._all[column.name][1:] * (self._training[column.name][1:] == 0)
                if counts.any():
                    values = tuple(np.array(column.vocabulary, object)[counts > 0])
                    result.append(Unseen(column.name, values, int(counts.sum())))
        return result

    @cached_property
    def _indices(self) -> Mapping[str, NDArray[np.int32]]:
        """Return the new index of each old index, for the columns whose indices change."""
        changed: dict[str, NDArray[np.int32]] = {}
        if self.is_complete:
            return changed
        for name, counts in self._training.items():
            is_seen = counts[1:] > 0
            if not is_seen.all():
                indices = np.where(is_seen, np.cumsum(is_seen), 0)
                changed[name] = np.concatenate([[0], indices]).astype(np.int32)
        return changed
