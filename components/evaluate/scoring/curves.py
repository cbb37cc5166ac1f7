"""ROC and precision-recall curve of one class against all others."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

# Points of a curve that are kept, so that the curves of 1000 classes take 64 MB at most. KFP gets 100 of them, the page
# 150.
_POINTS = 2000


@dataclass(frozen=True)
class Curve:
    """ROC and precision-recall curve of one class against all others.

    Point 0 stands for no prediction of the class. At each further point, all rows with at least its threshold are
    predicted to be of the class. Each point is exact. There may be fewer points than different probabilities.

    Attributes:
        thresholds: Probability at each point, falling; 1 at point 0.
        recall: Share of the class' rows that are predicted to be of it: the true positive rate.
        false_positive_rate: Share of the other rows that are predicted to be of it.
        precision: Share of the predictions that are right; 1 at point 0.
        roc_auc: Area under recall over false positive rate; NaN without rows of the class or without others.
        average_precision: Mean of the precision, weighted by the increase of recall; NaN without rows of the class.
        roc_auc_error: Largest possible deviation of `roc_auc` from the exact value; 0 if it is exact.
        average_precision_error: Largest possible deviation of `average_precision` from the exact value.
    """

    thresholds: NDArray[np.float64]
    recall: NDArray[np.float64]
    false_positive_rate: NDArray[np.float64]
    precision: NDArray[np.float64]
    roc_auc: float
    average_precision: float
    roc_auc_error: float = 0.0
    average_precision_error: float = 0.0

    def thinned(self, points: int) -> "Curve":
        """Return the curve with at most this number of points, which are spread evenly over its length."""
        if len(self.thresholds) <= points:
            return self
        # Rates that are NaN do not change along the curve.
        steps = np.nan_to_num(np.diff(self.recall)) + np.nan_to_num(np.diff(self.false_positive_rate))
        length = np.concatenate([[0.0], np.cumsum(steps)])
        chosen = np.unique(np.searchsorted(length, np.linspace(0, length[-1], points)).clip(max=len(length) - 1))
        return replace(
            self,
            thresholds=self.thresholds[chosen],
            recall=self.recall[chosen],
            false_positive_rate=self.false_positive_rate[chosen],
            precision=self.precision[chosen],
        )


def exact_curve(probabilities: NDArray[np.floating], is_positive: NDArray[np.bool_]) -> Curve:
    """Return the curve of one class, with the areas that scikit-learn computes.

    Args:
        probabilities: Probability of the class for each row; at least one. float32 needs less memory than float64.
        is_positive: Whether each row is of the class.
    """
    # scikit-learn takes a second to load.
    from sklearn.metrics import auc, average_precision_score, roc_curve

    positives = int(is_positive.sum())
    negatives = len(is_positive) - positives
    if not (positives and negatives):
        return _curve_of_one_kind(probabilities, positives, negatives)
    average_precision = float(average_precision_score(is_positive, probabilities))
    false_positive_rate, recall, thresholds = roc_curve(is_positive, probabilities, drop_intermediate=False)
    curve = Curve(
        thresholds=thresholds,
        recall=recall,
        false_positive_rate=false_positive_rate,
        precision=_precision(recall * positives, false_positive_rate * negatives),
        roc_auc=float(auc(false_positive_rate, recall)),
        average_precision=average_precision,
    ).thinned(_POINTS)
    # scikit-learn's first threshold is infinite, which KFP cannot store.
    return replace(curve, thresholds=np.concatenate([[1.0], curve.thresholds[1:]]))


def curve_of_counts(
    thresholds: NDArray[np.float64], positives: NDArray[np.int64], negatives: NDArray[np.int64]
) -> Curve:
    """Return a curve without its areas, which are NaN.

    Args:
        thresholds: Thresholds, falling.
        positives: Rows of the class between each threshold, included, and the one before.
        negatives: Rows of other classes, in the same way.
    """
    true, false = (np.concatenate([[0], np.cumsum(counts)]) for counts in (positives, negatives))
    with np.errstate(invalid="ignore"):
        recall, false_positive_rate = true / true[-1], false / false[-1]
    thresholds = np.concatenate([[1.0], thresholds])
    precision = _precision(true, false)
    return Curve(thresholds, recall, false_positive_rate, precision, np.nan, np.nan).thinned(_POINTS)


def _curve_of_one_kind(probabilities: NDArray[np.floating], positives: int, negatives: int) -> Curve:
    """Return the curve of rows that are all of the class, or all of others. scikit-learn warns of them."""
    thresholds, counts = np.unique(probabilities, return_counts=True)
    none = np.zeros_like(counts)
    columns = (counts, none) if positives else (none, counts)
    curve = curve_of_counts(thresholds[::-1].astype(np.float64), *(column[::-1] for column in columns))
    return replace(curve, average_precision=1.0 if positives and not negatives else np.nan)


def _precision(true: NDArray[np.number], false: NDArray[np.number]) -> NDArray[np.float64]:
    """Return the precision at each point, from the predictions that are right and wrong. Point 0 has none."""
    return np.concatenate([[1.0], true[1:] / (true[1:] + false[1:])])
