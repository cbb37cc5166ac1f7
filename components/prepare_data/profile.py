"""Describes the written rows: statistics of all rows, and a random sample."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.moments import Moments
from kfp_distributed.components.prepare_data.duplicates import DuplicateCounter, Duplicates, row_hashes
from kfp_distributed.components.prepare_data.leakage import Predictor, rank_predictors
from kfp_distributed.components.prepare_data.sample import RowSample, Sampler
from kfp_distributed.components.prepare_data.vocabulary import Unseen, VocabularyCounter
from kfp_distributed.storage.dataset import Column, Label, column_matrix, is_image

SPLITS = ("train", "validation", "test")

MAXIMUM_FEATURES = 4096
"""Most elements of a tensor that have a mean and a deviation each. An element needs about 50 bytes in each manifest, so
that 4,096 need 200 KB."""

MAXIMUM_NUMBERS = 2**23
"""Numbers of a piece that are described at once. Describing takes several times their memory as 32-bit floats. Images
are 8-bit numbers, so that a piece has four times as many as one of floats: they are described in parts. Pieces of
floats have fewer, so that the rounding of their sums does not depend on the other columns of a table."""
PART_NUMBERS = 2**20
"""Numbers of a part."""


def feature_count(column: Column) -> int:
    """Return how many means and standard deviations the manifest has of a column of numbers.

    An image has one for each channel. Each element of another tensor has its own, because the columns of a matrix may
    have different units. `has_common_statistics` names the exception.
    """
    if has_common_statistics(column):
        return 1
    return _channels(column) or math.prod(column.shape)


def has_common_statistics(column: Column) -> bool:
    """Return whether all elements share a mean and deviation: those of a tensor of more than MAXIMUM_FEATURES."""
    return not _channels(column) and math.prod(column.shape) > MAXIMUM_FEATURES


def _channels(column: Column) -> int:
    """Return the channels of an image: of a tensor [height, width, 1 or 3] or uint8 [height, width]. 0 for others."""
    if not is_image(column.shape):
        return 0
    if len(column.shape) == 3:
        return column.shape[2]
    # A matrix of floats may be a series of measurements with different units.
    return 1 if column.dtype == "uint8" else 0


def with_statistics(columns: Sequence[Column], moments: Mapping[str, Moments]) -> tuple[Column, ...]:
    """Return the columns, with mean and deviation where they have numbers."""
    return tuple(
        replace(column, mean=_numbers(statistics.mean), std=_numbers(statistics.std))
        if (statistics := moments.get(column.name))
        else column
        for column in columns
    )


def _numbers(values: NDArray[np.float64]) -> float | tuple[float, ...]:
    """Return the numbers in the form of the manifest."""
    return float(values[0]) if len(values) == 1 else tuple(values.tolist())


@dataclass(frozen=True)
class Profile:
    """Description of a prepared dataset.

    Attributes:
        moments: Statistics of each input of numbers in the training split.
        sample: Random training rows.
        predictors: The columns of the sample as only predictors of the label, the best first.
        duplicates: Rows that occur in several splits.
        unseen: Values of categories that no training row has.
    """

    moments: Mapping[str, Moments]
    sample: RowSample
    predictors: Sequence[Predictor]
    duplicates: Sequence[Duplicates]
    unseen: Sequence[Unseen] = ()


class Profiler:
    """Collects the profile of a dataset while its rows are written.

    Its memory does not grow with the number of rows.

    Args:
        vocabularies: The inputs, with the values of the training rows.
        label: The label.
        rows: Number of rows of each split that will be added, in the order of SPLITS. The first one with rows is
            described, usually that of the training rows.
        seed: Seed of the sample.
    """

    def __init__(self, vocabularies: VocabularyCounter, label: Label, rows: Sequence[int], seed: int) -> None:
        columns = vocabularies.columns
        self._described = next((split for split, count in enumerate(rows) if count), 0)
        self.moments = {
            column.name: Moments(feature_count(column)) for column in columns if column.kind in ("number", "tensor")
        }
        self._columns, self._label = columns, label
        self._width = max(1, sum(math.prod(column.shape) for column in columns))
        # Another stream of random numbers than that of the split, which must not depend on the sample.
        generator = np.random.default_rng((seed, 1))
        self._sampler = Sampler(columns, label.name, rows[self._described], generator)
        self._duplicates = DuplicateCounter(SPLITS)
        # The hash of a row, and so `content`, must not depend on the order of the columns.
        self._by_name = sorted(range(len(columns)), key=lambda index: columns[index].name)
        self._vocabularies = vocabularies

    def add(self, rows: pa.RecordBatch, splits: NDArray[np.intp]) -> None:
        """Add rows to the statistics and the sample.

        Args:
            rows: Rows of all splits in the form of the shards, with the vocabularies of all rows, and with numbers in
                the place of gaps.
            splits: Index in SPLITS of each row's split.
        """
        begin = 0
        for part in self._parts(rows):
            described = np.flatnonzero(splits[begin : begin + part.num_rows] == self._described)
            for name, moments in self.moments.items():
                moments.add(column_matrix(part[name])[described])
            self._sampler.add(part, described)
            begin += part.num_rows

    def add_to_duplicates(self, rows: pa.RecordBatch, splits: NDArray[np.intp]) -> None:
        """Add the same rows to the count of duplicates. Another thread may call this.

        Args:
            rows: The rows. Gaps are gaps, so that equal rows of another split are equal.
            splits: Index in SPLITS of each row's split.
        """
        self._duplicates.add(np.concatenate([self._hashes(part) for part in self._parts(rows)]), splits)

    def _hashes(self, rows: pa.RecordBatch) -> NDArray[np.uint64]:
        features, kept = [], []
        for index in self._by_name:
            column = self._columns[index]
            if column.kind == "kept":
                kept.append(rows[column.name])
            else:
                features.append(column_matrix(rows[column.name]))
        return row_hashes(features, kept)

    def _parts(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        count = rows.num_rows
        size = count if count * self._width <= MAXIMUM_NUMBERS else max(1, PART_NUMBERS // self._width)
        for begin in range(0, max(1, count), max(1, size)):
            yield rows.slice(begin, size)

    @property
    def content(self) -> str:
        """Number of the rows that were added and the sum of the hashes of their inputs, whatever their order."""
        return f"{self._duplicates.rows}-{self._duplicates.sum:016x}"

    def profile(self, unknown: Sequence[Unseen] = ()) -> Profile:
        """Return the profile of the rows that were added, with the vocabularies of the training rows.

        Args:
            unknown: Values of categories that another dataset, whose vocabularies are applied, does not have.
        """
        sample = self._sampler.sample(self._vocabularies.recode)
        columns = self._vocabularies.training_columns()
        predictors = []
        if self._label.task == "classification":
            predictors = rank_predictors(columns, sample.columns(columns), sample.labels)
        duplicates = self._duplicates.duplicates()
        return Profile(self.moments, sample, predictors, duplicates, [*unknown, *self._vocabularies.unseen()])
