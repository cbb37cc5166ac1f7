"""The scores of a model that predicts a number, from its predictions and the true numbers (pure)."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.summaries.moments import Moments

_SAMPLE_ROWS = 100_000
"""Rows whose true and predicted numbers are kept for the charts: 2.4 MB."""


class RegressionScores(NamedTuple):
    """The scores of predictions.

    Attributes:
        mae: Mean absolute error, in the unit of the label.
        rmse: Root of the mean squared error, in the unit of the label.
        r2: Coefficient of determination: 1 - sum of squared errors / sum of squared deviations from the mean of the
            true numbers. NaN if these deviations are 0: all true numbers are equal, or differ by less than 1e-162.
    """

    mae: float
    rmse: float
    r2: float


@dataclass
class ErrorSums:
    """Sums over the errors of all rows.

    Attributes:
        rows: Number of rows.
        absolute: Sum of the absolute errors.
        squares: Sum of the squared errors.
    """

    rows: int = 0
    absolute: float = 0.0
    squares: float = 0.0

    def add(self, errors: NDArray[np.float64]) -> None:
        """Add a batch of errors."""
        self.rows += len(errors)
        self.absolute += float(np.abs(errors).sum())
        self.squares += float(np.square(errors).sum())

    def scores(self, moments: Moments) -> RegressionScores:
        """Return the scores; `moments` are those of the true numbers of the same rows."""
        deviations = float(moments.squares[0])
        r2 = 1 - self.squares / deviations if deviations else math.nan
        return RegressionScores(self.absolute / self.rows, math.sqrt(self.squares / self.rows), r2)


@dataclass
class PairSample:
    """A uniform random sample of the rows' true and predicted numbers, of bounded size. The seed is fixed.

    Attributes:
        limit: The most rows to keep. With fewer rows, the sample has all of them in their order.
        rows: Number of rows that were added.
    """

    limit: int = _SAMPLE_ROWS
    rows: int = 0
    # Each row: a random key, the true and the predicted number. The sample is the rows with the smallest keys.
    _kept: list[NDArray[np.float64]] = field(default_factory=lambda: [np.empty((0, 3))])
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    _largest_key: float = 1.0

    def add(self, targets: NDArray[np.float64], predictions: NDArray[np.float64]) -> None:
        """Add a batch."""
        self.rows += len(targets)
        keys = self._random.random(len(targets))
        self._kept.append(np.column_stack([keys, targets, predictions])[keys < self._largest_key])
        if sum(map(len, self._kept)) > 2 * self.limit:
            self._drop()

    @property
    def pairs(self) -> NDArray[np.float64]:
        """True and predicted number of each row of the sample, [n, 2]."""
        self._drop()
        return self._kept[0][:, 1:]

    def _drop(self) -> None:
        rows = np.concatenate(self._kept)
        if len(rows) > self.limit:
            self._largest_key = float(np.partition(rows[:, 0], self.limit)[self.limit])
            rows = rows[rows[:, 0] < self._largest_key]
        self._kept = [rows]


@dataclass(frozen=True)
class RowError:
    """A row and its error.

    Attributes:
        row: Number of the row in the dataset, from 0.
        target: True number.
        prediction: Predicted number.
        features: Values of the row, flat. They are not compared.
    """

    row: int
    target: float
    prediction: float
    features: NDArray[np.float32] = field(compare=False)

    @property
    def residual(self) -> float:
        """True number - predicted number."""
        return self.target - self.prediction


@dataclass
class LargestErrors:
    """The rows with the largest absolute errors. Earlier rows come first among equal ones.

    Attributes:
        limit: The most rows to keep.
        errors: The rows so far, the largest error first. Rows without an error are left out.
    """

    limit: int
    errors: list[RowError] = field(default_factory=list)

    def add(
        self,
        features: NDArray[np.float32],
        targets: NDArray[np.float64],
        predictions: NDArray[np.float64],
        first_row: int,
    ) -> None:
        """Add a batch.

        Args:
            features: The rows, [rows, width].
            targets: True number of each row.
            predictions: Predicted number of each row.
            first_row: The batch's first row within the dataset.
        """
        sizes = np.abs(targets - predictions)
        worst = np.argsort(-sizes, kind="stable")[: self.limit]
        added = [
            RowError(first_row + int(row), float(targets[row]), float(predictions[row]), features[row].copy())
            for row in worst
            if sizes[row] > 0
        ]
        self.errors = sorted([*self.errors, *added], key=lambda error: (-abs(error.residual), error.row))[: self.limit]


@dataclass(frozen=True)
class RegressionEvaluation:
    """The evaluation of one model on one dataset.

    Attributes:
        moments: Mean and squared deviations of the true numbers.
        model: Errors of the model.
        baseline: Errors of a prediction of the training mean for every row.
        training_mean: Mean of the label in the training split.
        sample: True and predicted numbers of a sample of the rows.
        largest: The rows with the largest errors.
    """

    moments: Moments
    model: ErrorSums
    baseline: ErrorSums
    training_mean: float
    sample: PairSample
    largest: LargestErrors

    @property
    def scores(self) -> RegressionScores:
        """Scores of the model."""
        return self.model.scores(self.moments)

    @property
    def baseline_scores(self) -> RegressionScores:
        """Scores of a prediction of the training mean for every row."""
        return self.baseline.scores(self.moments)

    def metric_values(self) -> dict[str, float]:
        """Return the metrics by the names that KFP shows. Undefined values are left out."""
        values = {**self.scores._asdict(), "examples": self.model.rows}
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def log_line(self) -> str:
        """Return the line of the step's log that has the scores."""
        mae, rmse, r2 = self.scores
        fit = "undefined, because the true numbers have no deviation" if math.isnan(r2) else f"{r2:.4f}"
        return f"mae={mae:.6g} rmse={rmse:.6g} r2={fit} on {self.model.rows} rows"
