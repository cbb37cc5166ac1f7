"""Curves with a proven error in bounded memory, for more rows than fit in memory."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.evaluate.scoring.curves import Curve, curve_of_counts


class Interval(NamedTuple):
    """A value that lies between two bounds.

    Attributes:
        low: Lower bound.
        high: Upper bound.
    """

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The value with the least possible error."""
        return (self.low + self.high) / 2

    @property
    def error(self) -> float:
        """Largest possible deviation of `middle`."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Cells:
    """Rows of one class and of all others, counted in cells of neighboring probabilities.

    The cells do not overlap and are in rising order. A cell of one probability (low = high) has lost nothing. Of any
    other cell only the order of its rows is unknown, so that the areas lie between those of the best and of the worst
    order.

    Attributes:
        low: Lowest probability of the rows in each cell.
        high: Highest probability of the rows in each cell.
        positives: Rows of the class in each cell.
        negatives: Rows of other classes in each cell.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    positives: NDArray[np.int64]
    negatives: NDArray[np.int64]

    @classmethod
    def empty(cls) -> "Cells":
        """Return cells without rows."""
        return cls(np.empty(0), np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of_rows(cls, probabilities: NDArray[np.floating], is_positive: NDArray[np.bool_]) -> "Cells":
        """Return one cell for each different probability."""
        order = np.argsort(probabilities)
        values = probabilities[order]
        begins = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
        positives = np.add.reduceat(is_positive[order], begins, dtype=np.int64)
        rows = np.diff(np.append(begins, len(values)))
        points = values[begins].astype(np.float64)
        return cls(points, points, positives, rows - positives)

    def with_rows(self, probabilities: NDArray[np.floating], is_positive: NDArray[np.bool_], limit: int) -> "Cells":
        """Return the cells with more rows, joined into about `limit` cells if there are more.

        Args:
            probabilities: Probability of the class for each row; at least one.
            is_positive: Whether each row is of the class.
            limit: Number of cells among which the rows are divided evenly. There are at most three times as many.
        """
        points = Cells.of_rows(probabilities, is_positive)
        cell = np.searchsorted(self.high, points.low)
        is_inside = cell < len(self.low)
        is_inside[is_inside] = self.low[cell[is_inside]] <= points.low[is_inside]
        positives, negatives = self.positives.copy(), self.negatives.copy()
        np.add.at(positives, cell[is_inside], points.positives[is_inside])
        np.add.at(negatives, cell[is_inside], points.negatives[is_inside])
        low = np.concatenate([self.low, points.low[~is_inside]])
        order = np.argsort(low)
        return Cells(
            low[order],
            np.concatenate([self.high, points.high[~is_inside]])[order],
            np.concatenate([positives, points.positives[~is_inside]])[order],
            np.concatenate([negatives, points.negatives[~is_inside]])[order],
        )._joined(limit)

    def _joined(self, limit: int) -> "Cells":
        """Join neighbors so that each cell has about 1 / limit of the weight.

        A cell that is heavier stays alone. If it has one probability, it stays exact.
        """
        if len(self.low) <= limit:
            return self
        weights = self._weights() * limit
        group = np.floor(np.cumsum(weights) - weights)
        is_heavy = weights >= 1
        is_begin = np.concatenate([[True], (group[1:] != group[:-1]) | is_heavy[1:] | is_heavy[:-1]])
        begins = np.flatnonzero(is_begin)
        ends = np.append(begins[1:], len(self.low)) - 1
        return Cells(
            self.low[begins],
            self.high[ends],
            np.add.reduceat(self.positives, begins),
            np.add.reduceat(self.negatives, begins),
        )

    def _weights(self) -> NDArray[np.float64]:
        """Return the weight of each cell, from what an unknown order in it costs. The sum is 1.

        The error of the ROC AUC is the cell's share of the positives times that of the negatives. The precision changes
        by the cell's rows divided by those of higher cells: few rows at the top change it as much as many below.
        """
        rows = self.positives + self.negatives
        higher = rows.sum() - np.cumsum(rows)
        weights = sum(
            weight / max(float(weight.sum()), 1.0)
            for weight in (self.positives, self.negatives, np.log1p(rows / np.maximum(higher, 1)))
        )
        return np.asarray(weights / np.sum(weights))

    def curve(self) -> Curve:
        """Return the curve. Its areas are the middle between the bounds."""
        curve = curve_of_counts(self.low[::-1], self.positives[::-1], self.negatives[::-1])
        roc_auc, average_precision = self._roc_auc(), self._average_precision()
        return replace(
            curve,
            roc_auc=roc_auc.middle,
            roc_auc_error=roc_auc.error,
            average_precision=average_precision.middle,
            average_precision_error=average_precision.error,
        )

    def _roc_auc(self) -> Interval:
        """Return the bounds of the share of pairs, of a positive and a negative, in which the positive ranks higher."""
        positives, negatives = int(self.positives.sum()), int(self.negatives.sum())
        if not (positives and negatives):
            return Interval(np.nan, np.nan)
        share = self.positives / positives
        negatives_below = (np.cumsum(self.negatives) - self.negatives) / negatives
        within = share * (self.negatives / negatives)
        ranked, unknown = float((share * negatives_below).sum()), self.low < self.high
        # A pair of equal probabilities counts as one half.
        ties = float(within[~unknown].sum()) / 2
        return Interval(ranked + ties, ranked + ties + float(within[unknown].sum()))

    def _average_precision(self) -> Interval:
        """Return the bounds of the mean, over the positives, of the precision at their probability."""
        positives, negatives = self.positives[::-1].astype(np.float64), self.negatives[::-1].astype(np.float64)
        if not positives.sum():
            return Interval(np.nan, np.nan)
        true, false = np.cumsum(positives), np.cumsum(negatives)
        with np.errstate(invalid="ignore"):
            exact = np.where(positives > 0, positives * true / (true + false), 0)
            # The best order: all positives of the cell share one probability, above all of its negatives.
            best = np.where(positives > 0, positives * true / (true + false - negatives), 0)
        # The worst order: all negatives first. The i-th positive then has the precision (t + i) / (t + i + false), with
        # t positives in higher cells. That rises with i, so its integral from 0 to `positives` is a lower bound.
        logarithm = np.log1p(positives / np.maximum(true - positives + false, 1))
        worst = np.maximum(positives - false * logarithm, 0)
        is_exact = (self.low == self.high)[::-1]
        bounds = (np.where(is_exact, exact, bound).sum() / positives.sum() for bound in (worst, best))
        return Interval(*map(float, bounds))
