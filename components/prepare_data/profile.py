"""Describes the written rows: statistics of all rows, and a random sample."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.duplicates import DuplicateCounter, Duplicates
from kfp_distributed.components.prepare_data.leakage import Predictor, rank_predictors
from kfp_distributed.components.prepare_data.sample import Sample, Sampler
from kfp_distributed.storage.dataset import Column, Label, column_matrix

SPLITS = ("train", "validation", "test")


@dataclass
class Moments:
    """Statistics of the numbers added so far, in float64; NaN counts as missing."""

    count: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, numbers: NDArray[np.float32]) -> None:
        """Add numbers, by Chan's rule for joining the mean and the squared deviations of two parts."""
        values = numbers[~np.isnan(numbers)].astype(float)
        self.missing += numbers.size - values.size
        if values.size:
            self.count += values.size
            share, difference = values.size / self.count, values.mean() - self.mean
            self.squares += values.var() * values.size + difference**2 * values.size * (1 - share)
            self.mean += difference * share
            self.low, self.high = min(self.low, values.min()), max(self.high, values.max())

    @property
    def std(self) -> float:
        """Standard deviation of the numbers; 1 if they are all equal, because trainers divide by it."""
        return math.sqrt(self.squares / self.count) if self.low < self.high else 1.0


@dataclass(frozen=True)
class Profile:
    """Description of a prepared dataset.

    Attributes:
        moments: Statistics of each input of numbers in the training split.
        sample: Random training rows.
        predictors: The columns of the sample as only predictors of the label, the best first.
        duplicates: Rows that occur in several splits.
    """

    moments: Mapping[str, Moments]
    sample: Sample
    predictors: Sequence[Predictor]
    duplicates: Sequence[Duplicates]


class Profiler:
    """Collects the profile of a dataset while its rows are written.

    Its memory does not grow with the number of rows.

    Args:
        columns: The inputs.
        label: The label.
        training_rows: Number of training rows that will be added.
        seed: Seed of the sample.
    """

    def __init__(self, columns: Sequence[Column], label: Label, training_rows: int, seed: int) -> None:
        self.moments = {column.name: Moments() for column in columns if column.kind != "category"}
        self._columns = columns
        # Another stream of random numbers than that of the split, which must not depend on the sample.
        generator = np.random.default_rng((seed, 1))
        self._sampler = Sampler(columns, label.name, training_rows, generator)
        self._duplicates = DuplicateCounter(SPLITS)

    def add(self, rows: pa.RecordBatch, splits: NDArray[np.intp]) -> None:
        """Add rows in the form of the shards.

        Args:
            rows: Rows of all splits.
            splits: Index in SPLITS of each row's split.
        """
        training_rows = np.flatnonzero(splits == 0)
        features = [column_matrix(rows[column.name]) for column in self._columns]
        for column, values in zip(self._columns, features, strict=True):
            if column.name in self.moments:
                self.moments[column.name].add(values[training_rows])
        self._duplicates.add(np.hstack(features), splits)
        self._sampler.add(rows, training_rows)

    def profile(self) -> Profile:
        """Return the profile of the rows that were added."""
        sample = self._sampler.sample()
        predictors = rank_predictors(self._columns, sample.columns(self._columns), sample.labels)
        return Profile(self.moments, sample, predictors, self._duplicates.duplicates())
