"""Describes the written rows: statistics of all rows, and a random sample."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.report.duplicates import DuplicateCounter, Duplicates, row_hashes
from kfp_distributed.components.prepare_data.report.leakage import Predictor, rank_predictors
from kfp_distributed.components.prepare_data.report.sample import RowSample, Sampler
from kfp_distributed.components.prepare_data.report.vocabulary import Unseen, VocabularyCounter, recoded
from kfp_distributed.components.summaries.moments import Moments
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
        labels: Statistics of the numbers to predict by split.
    """

    moments: Mapping[str, Moments]
    sample: RowSample
    predictors: Sequence[Predictor]
    duplicates: Sequence[Duplicates]
    unseen: Sequence[Unseen] = ()
    labels: Mapping[str, Moments] = field(default_factory=dict)


@dataclass
class PieceProfile:
    """Description of the rows of a piece; of several after `merge`.

    Attributes:
        moments: Statistics of each input of numbers in the described split.
        labels: Statistics of the numbers to predict by split.
        class_counts: Rows of each class, [splits, classes]; one class without classes.
        sample: The drawn rows of the described split, in order.
    """

    moments: dict[str, Moments]
    labels: dict[str, Moments]
    class_counts: NDArray[np.int64]
    sample: Sequence[pa.RecordBatch] = ()

    def merge(self, later: "PieceProfile") -> None:
        """Add the piece that follows. Its sample is left out."""
        for name, moments in self.moments.items():
            moments.merge(later.moments[name])
        for split, labels in self.labels.items():
            labels.merge(later.labels[split])
        self.class_counts += later.class_counts


@dataclass(frozen=True)
class Describing:
    """How the rows of a piece are described.

    Attributes:
        columns: The inputs, with the values of all rows.
        label: The label.
        described: Index in SPLITS of the split that is described.
    """

    columns: tuple[Column, ...]
    label: Label
    described: int

    def empty(self) -> PieceProfile:
        """Return the description of no row."""
        names = [column for column in self.columns if column.kind in ("number", "tensor")]
        return PieceProfile(
            {column.name: Moments(feature_count(column)) for column in names},
            {split: Moments() for split in SPLITS},
            np.zeros((len(SPLITS), max(1, len(self.label.classes))), np.int64),
        )

    def profile(self, rows: pa.RecordBatch, splits: NDArray[np.intp], sampled: NDArray[np.int64]) -> PieceProfile:
        """Return the description of the rows of a piece.

        Args:
            rows: Rows of all splits in the form of the shards, with the vocabularies of all rows, and with numbers in
                the place of gaps.
            splits: Index in SPLITS of each row's split.
            sampled: Which rows of the described split are drawn, from 0.
        """
        found, sample, begin, seen = self.empty(), [], 0, 0
        if self.label.task == "classification":
            cells = splits * len(self.label.classes) + rows[self.label.name].to_numpy()
            found.class_counts += np.bincount(cells, minlength=found.class_counts.size).reshape(len(SPLITS), -1)
        elif self.label.task == "regression":
            for split, labels in enumerate(found.labels.values()):
                labels.add(rows[self.label.name].to_numpy()[splits == split])
        for part in self._parts(rows):
            described = np.flatnonzero(splits[begin : begin + part.num_rows] == self.described)
            for name, moments in found.moments.items():
                moments.add(column_matrix(part[name])[described])
            first, last = np.searchsorted(sampled, (seen, seen + len(described)))
            if first < last:
                sample.append(part.take(pa.array(described[sampled[first:last] - seen])))
            begin, seen = begin + part.num_rows, seen + len(described)
        found.sample = sample
        return found

    def duplicates(self, rows: pa.RecordBatch, splits: NDArray[np.intp], limit: int | None = None) -> DuplicateCounter:
        """Return the count of equal rows of a piece, which needs up to 4 MiB. Another thread may call this.

        Args:
            rows: The rows. Gaps are gaps, so that equal rows of another split are equal.
            splits: Index in SPLITS of each row's split.
            limit: Limit of the hashes of the pieces before. Default: none.
        """
        counter = DuplicateCounter(SPLITS)
        counter.limit = limit or counter.limit
        counter.add(np.concatenate([self._hashes(part) for part in self._parts(rows)]), splits)
        return counter

    def _hashes(self, rows: pa.RecordBatch) -> NDArray[np.uint64]:
        features, kept = [], []
        # The hash of a row, and so `content`, must not depend on the order of the columns.
        for column in sorted(self.columns, key=lambda column: column.name):
            if column.kind == "kept":
                kept.append(rows[column.name])
            else:
                features.append(column_matrix(rows[column.name]))
        return row_hashes(features, kept)

    def _parts(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        count, width = rows.num_rows, max(1, sum(math.prod(column.shape) for column in self.columns))
        size = count if count * width <= MAXIMUM_NUMBERS else max(1, PART_NUMBERS // width)
        for begin in range(0, max(1, count), max(1, size)):
            yield rows.slice(begin, size)


class Profiler:
    """Merges the descriptions of the pieces.

    Its memory does not grow with the number of rows.

    Args:
        vocabularies: The inputs, with the values of the training rows.
        label: The label.
        rows: Rows of each split in each piece, [pieces, splits], in the order of SPLITS. The first split with rows is
            described, usually that of the training rows.
        seed: Seed of the sample.
    """

    def __init__(self, vocabularies: VocabularyCounter, label: Label, rows: NDArray[np.int64], seed: int) -> None:
        columns = tuple(vocabularies.columns)
        self.describing = Describing(columns, label, int((rows.sum(axis=0) > 0).argmax()))
        self._ends = np.cumsum(rows[:, self.describing.described])
        # Another stream of random numbers than that of the split, which must not depend on the sample.
        generator = np.random.default_rng((seed, 1))
        self._sampler = Sampler(columns, label.name, int(self._ends[-1]), generator)
        self._merged, self._duplicates = self.describing.empty(), DuplicateCounter(SPLITS)
        self._vocabularies = vocabularies

    def sampled(self) -> Iterator[NDArray[np.int64]]:
        """Yield for each piece which rows of the described split are drawn."""
        for begin, end in pairwise([0, *self._ends.tolist()]):
            yield self._sampler.numbers(begin, end)

    @property
    def limit(self) -> int:
        """Limit of the hashes of rows that may be duplicates, for the pieces that follow."""
        return self._duplicates.limit

    def merge(self, later: PieceProfile) -> None:
        """Add the description of the piece that follows."""
        self._merged.merge(later)
        self._sampler.add(later.sample)

    def merge_duplicates(self, duplicates: DuplicateCounter) -> None:
        """Add the duplicates of a piece. Another thread may call this."""
        self._duplicates.merge(duplicates)

    @property
    def moments(self) -> Mapping[str, Moments]:
        """Statistics of each input of numbers in the described split."""
        return self._merged.moments

    @property
    def labels(self) -> Mapping[str, Moments]:
        """Statistics of the numbers to predict by split."""
        return self._merged.labels

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """Rows of each class, [splits, classes]; one class without classes."""
        return self._merged.class_counts

    @property
    def content(self) -> str:
        """Number of the rows that were added and the sum of the hashes of their inputs, whatever their order."""
        return f"{self._duplicates.rows}-{self._duplicates.sum:016x}"

    def profile(self, unknown: Sequence[Unseen] = ()) -> Profile:
        """Return the profile of the rows that were added, with the vocabularies of the training rows.

        Args:
            unknown: Values of categories that another dataset, whose vocabularies are applied, does not have.
        """
        sample = self._sampler.sample(partial(recoded, indices=self._vocabularies.indices))
        columns = self._vocabularies.training_columns()
        predictors = []
        if self.describing.label.task == "classification":
            predictors = rank_predictors(columns, sample.columns(columns), sample.labels)
        duplicates = self._duplicates.duplicates()
        unseen = [*unknown, *self._vocabularies.unseen()]
        return Profile(self.moments, sample, predictors, duplicates, unseen, self.labels)
