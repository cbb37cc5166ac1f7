"""Calibration: whether the probability of the predicted class is the share of predictions that are right."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BINS = 10
"""Equally wide bins of the predicted class' probability."""


@dataclass
class Calibration:
    """Rows counted by the probability of the predicted class.

    Attributes:
        rows: Rows of each bin. Bin i has the probabilities from i / BINS, included, to (i + 1) / BINS.
        correct: Rows of each bin whose prediction is right.
        probability_sums: Sum of the probabilities of each bin.
    """

    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    correct: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    probability_sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(BINS))

    def add(self, probabilities: NDArray[np.float64], is_correct: NDArray[np.bool_]) -> None:
        """Count a batch: the predicted class' probability of each row, and whether the prediction is right."""
        bins = (probabilities * BINS).astype(int).clip(0, BINS - 1)
        self.rows += np.bincount(bins, minlength=BINS)
        self.correct += np.bincount(bins[is_correct], minlength=BINS)
        self.probability_sums += np.bincount(bins, probabilities, minlength=BINS)

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Share of right predictions in each bin; NaN in an empty bin."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.correct / self.rows)

    @property
    def probability(self) -> NDArray[np.float64]:
        """Mean probability of each bin; NaN in an empty bin."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.probability_sums / self.rows)

    @property
    def error(self) -> float:
        """Expected calibration error: mean difference between probability and accuracy, weighted by rows."""
        return float(np.abs(self.correct - self.probability_sums).sum() / self.rows.sum())
