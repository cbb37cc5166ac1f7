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
        The columns; [] if fewer than 20 rows are outside of the most frequent class.
    """
    halves = [np.arange(len(labels)) % 2 == half for half in (0, 1)]
    majority = sum(_majority_hits(labels, fit, ~fit) for fit in halves)
    if len(labels) - majority < _MINIMUM_ERRORS:
        return []
    predictors = [
        Predictor(
            column.name,
            sum(_hits(values[column.name][:, 0], labels, fit, ~fit, nearest=column.kind == "number") for fit in halves)
            / len(labels),
            majority / len(labels),
        )
        for column in columns
        if column.kind != "tensor"
    ]
    return sorted(predictors, key=lambda predictor: -predictor.accuracy)


def _majority_hits(labels: NDArray[np.int32], fit: NDArray[np.bool_], test: NDArray[np.bool_]) -> int:
    """Return how many rows of the test half have the most frequent class of the other half."""
    return int((labels[test] == np.bincount(labels[fit]).argmax()).sum())


def _hits(
    values: NDArray[np.float32],
    labels: NDArray[np.int32],
    fit: NDArray[np.bool_],
    test: NDArray[np.bool_],
    *,
    nearest: bool,
) -> int:
    """Return how many rows of the test half the rule of the other half predicts.

    Args:
        values: Value of each row.
        labels: Class index of each row.
        fit: Rows to learn the rule from.
        test: Rows to test it on.
        nearest: Whether a new value is predicted as the nearest known one, rather than as the most frequent class.
    """
    known, indices = np.unique(values[fit], return_inverse=True)  # NaN is one value, and the last.
    rule = _majority_by_value(indices, labels[fit])
    rule = np.append(rule, np.bincount(labels[fit]).argmax())  # For values that are not known.
    right = np.searchsorted(known, values[test]).clip(max=len(known) - 1)
    is_known = (known[right] == values[test]) | (np.isnan(known[right]) & np.isnan(values[test]))
    if nearest:
        left = (right - 1).clip(min=0)
        with np.errstate(invalid="ignore"):
            is_left = ~is_known & ~(np.abs(known[right] - values[test]) < np.abs(known[left] - values[test]))
        right = np.where(is_left, left, right)
        is_known = np.isnan(known[right]) == np.isnan(values[test])
    return int((rule[np.where(is_known, right, len(known))] == labels[test]).sum())


def _majority_by_value(indices: NDArray[np.intp], labels: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the most frequent class of each value; of equally frequent ones the first.

    Args:
        indices: Index of the value of each row; each index from 0 occurs.
        labels: Class index of each row.
    """
    width = int(labels.max()) + 1
    pairs, counts = np.unique(indices * width + labels, return_counts=True)
    order = np.lexsort((-counts, pairs // width))
    _, first = np.unique(pairs[order] // width, return_index=True)
    majority: NDArray[np.int64] = pairs[order][first] % width
    return majority
