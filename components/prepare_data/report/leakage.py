"""Measures how well each column alone predicts the label.

A column that nearly always does may be leakage: its value may only be known after the label.

A category predicts the most frequent class of its value, and a number that of the nearest value. A missing value is a
value of its own. This rule is learned from one half of the rows and tested on the other half, and the reverse. So an ID
with a different value in each row predicts nothing.

The measure is the error reduction: the share of errors that the rule avoids, compared with always predicting the most
frequent class. This is Goodman and Kruskal's lambda, on rows that the rule was not learned from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import Column

SUSPICIOUS_REDUCTION = 0.9
"""Error reduction from which a column is reported as possible leakage."""

# With fewer errors of the most frequent class, a column without any information can avoid most of them by chance.
_MINIMUM_ERRORS = 20

_HALVES = ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2)))
"""Rows to learn a rule from, and rows to test it on."""


@dataclass(frozen=True)
class Predictor:
    """A column as the only predictor of the label.

    Attributes:
        column: Name of the column.
        accuracy: Share of rows whose class the column's rule predicts.
        majority_accuracy: Share of rows of the most frequent class.
    """

    column: str
    accuracy: float
    majority_accuracy: float

    @property
    def error_reduction(self) -> float:
        """Share of the most frequent class' errors that the rule avoids; negative if it makes more."""
        return (self.accuracy - self.majority_accuracy) / (1 - self.majority_accuracy)


def rank_predictors(
    columns: Sequence[Column], values: Mapping[str, NDArray[np.float32]], labels: NDArray[np.int32]
) -> list[Predictor]:
    """Test each column of numbers or categories, and sort them by their accuracy, the best first.

    Args:
        columns: The inputs. Tensors are left out.
        values: The values of each column, [rows, 1], in random order.
        labels: Class index of each row.

    Returns:
        The columns; [] if there are fewer than 40 rows, or fewer than 20 outside of the most frequent class.
    """
    if len(labels) < 2 * _MINIMUM_ERRORS:
        return []
    majority = sum(_majority_hits(labels[fit], labels[test]) for fit, test in _HALVES)
    if len(labels) - majority < _MINIMUM_ERRORS:
        return []
    predictors = [
        Predictor(
            column.name,
            _hits_of_halves(values[column.name][:, 0], labels, nearest=column.kind == "number") / len(labels),
            majority / len(labels),
        )
        for column in columns
        if column.kind in ("number", "category")
    ]
    return sorted(predictors, key=lambda predictor: -predictor.accuracy)


def _hits_of_halves(values: NDArray[np.float32], labels: NDArray[np.int32], *, nearest: bool) -> int:
    """Return how many rows are predicted by the rule of the half that they are not in."""
    # A column of a matrix is not contiguous, which makes each of the next steps slower.
    values = np.ascontiguousarray(values)
    return sum(_hits(values[fit], labels[fit], values[test], labels[test], nearest=nearest) for fit, test in _HALVES)


def _majority_hits(fit: NDArray[np.int32], test: NDArray[np.int32]) -> int:
    """Return how many labels of the test half are the most frequent one of the other half."""
    return int((test == np.bincount(fit).argmax()).sum())


def _hits(
    fit: NDArray[np.float32],
    fit_labels: NDArray[np.int32],
    test: NDArray[np.float32],
    test_labels: NDArray[np.int32],
    *,
    nearest: bool,
) -> int:
    """Return how many rows of the test half the rule of the other half predicts.

    Args:
        fit: Values of the rows to learn the rule from.
        fit_labels: Class indices of these rows.
        test: Values of the rows to test it on.
        test_labels: Class indices of these rows.
        nearest: Whether a new value is predicted as the nearest known one, rather than as the most frequent class.
    """
    known, indices = np.unique(fit, return_inverse=True)  # NaN is one value, and the last.
    rule = _majority_by_value(indices, fit_labels)
    rule = np.append(rule, np.bincount(fit_labels).argmax())  # For values that are not known.
    right = np.searchsorted(known, test).clip(max=len(known) - 1)
    is_known = (known[right] == test) | (np.isnan(known[right]) & np.isnan(test))
    if nearest:
        left = (right - 1).clip(min=0)
        with np.errstate(invalid="ignore", over="ignore"):
            is_left = ~is_known & ~(np.abs(known[right] - test) < np.abs(known[left] - test))
        right = np.where(is_left, left, right)
        is_known = np.isnan(known[right]) == np.isnan(test)
    return int((rule[np.where(is_known, right, len(known))] == test_labels).sum())


def _majority_by_value(indices: NDArray[np.intp], labels: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the most frequent class of each value; of equally frequent ones the first.

    Args:
        indices: Index of the value of each row; each index from 0 occurs.
        labels: Class index of each row.
    """
    width = int(labels.max()) + 1
    pairs, counts = np.unique(indices * width + labels, return_counts=True)
    # The first of equally frequent classes has the highest rank.
    ranks = counts * width + width - 1 - pairs % width
    starts = np.flatnonzero(np.diff(pairs // width, prepend=-1))
    majority: NDArray[np.int64] = width - 1 - np.maximum.reduceat(ranks, starts) % width
    return majority
