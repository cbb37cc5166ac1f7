"""ROC and precision-recall curves of each class against all others, from counts of a bounded size."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

# Bins are equally wide in log-odds, because most probabilities of a good model are close to 0 or 1, where equally wide
# bins of probability could not tell them apart. float32 probabilities closer to 1 than sigmoid(16) are 1.
_BINS = 2048
_LARGEST_LOG_ODDS = 16.0


@dataclass(frozen=True)
class Curve:
    """ROC and precision-recall curve of one class against all others.

    Point 0 stands for no prediction of the class. At each further point, all rows with at least its threshold are
    predicted to be of the class.

    Attributes:
        thresholds: Probability at each point, from 1 down to 0.
        recall: Share of the class' rows that are predicted to be of it: the true positive rate.
        false_positive_rate: Share of the other rows that are predicted to be of it.
        precision: Share of the predictions that are right; 1 at point 0.
        roc_auc: Area under recall over false positive rate; NaN without rows of the class or without others.
        average_precision: Mean of the precision, weighted by the increase of recall; NaN without rows of the class.
    """

    thresholds: NDArray[np.float64]
    recall: NDArray[np.float64]
    false_positive_rate: NDArray[np.float64]
    precision: NDArray[np.float64]
    roc_auc: float
    average_precision: float

    def thinned(self, points: int) -> "Curve":
        """Return the curve with at most this number of points, which are spread evenly over its length."""
        if len(self.thresholds) <= points:
            return self
        steps = np.abs(np.diff(self.recall)) + np.abs(np.diff(self.false_positive_rate))
        length = np.concatenate([[0.0], np.cumsum(steps)])
        chosen = np.unique(np.searchsorted(length, np.linspace(0, length[-1], points)).clip(max=len(length) - 1))
        return replace(
            self,
            thresholds=self.thresholds[chosen],
            recall=self.recall[chosen],
            false_positive_rate=self.false_positive_rate[chosen],
            precision=self.precision[chosen],
        )


@dataclass
class ScoreCounts:
    """Rows of each class and of all others, counted by the probability that the model gives the class.

    Attributes:
        classes: Number of classes.
        positives: Rows of the class, [classes, bins].
        negatives: Rows of other classes, [classes, bins].
    """

    classes: int
    positives: NDArray[np.int64] = field(init=False)
    negatives: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.positives = np.zeros((self.classes, _BINS), np.int64)
        self.negatives = np.zeros((self.classes, _BINS), np.int64)

    def add(self, probabilities: NDArray[np.float64], labels: NDArray[np.integer]) -> None:
        """Count a batch: probabilities [rows, classes] and the true class of each row."""
        cells = np.arange(self.classes) * _BINS + bins_of(probabilities)
        everything = np.bincount(cells.ravel(), minlength=self.classes * _BINS)
        positives = np.bincount(cells[np.arange(len(labels)), labels], minlength=self.classes * _BINS)
        self.positives += positives.reshape(self.positives.shape)
        self.negatives += (everything - positives).reshape(self.negatives.shape)

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        """The curve of each class. Add all rows before."""
        return tuple(map(make_curve, self.positives, self.negatives))

    def micro_average(self) -> Curve:
        """Return one curve for all classes: each pair of row and class counts as a row."""
        return make_curve(self.positives.sum(axis=0), self.negatives.sum(axis=0))


def bins_of(probabilities: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the bin of each probability."""
    with np.errstate(divide="ignore"):
        log_odds = np.log(probabilities) - np.log1p(-probabilities)
    share = (log_odds + _LARGEST_LOG_ODDS) / (2 * _LARGEST_LOG_ODDS)
    bins: NDArray[np.intp] = np.floor(share.clip(0, 1) * _BINS).astype(np.intp).clip(max=_BINS - 1)
    return bins


def make_curve(positives: NDArray[np.int64], negatives: NDArray[np.int64]) -> Curve:
    """Make the curve of one class from its rows and the others in each bin."""
    bins = np.flatnonzero(positives + negatives)[::-1]
    true, false = (np.concatenate([[0], np.cumsum(counts[bins])]) for counts in (positives, negatives))
    log_odds = (bins / _BINS * 2 - 1) * _LARGEST_LOG_ODDS
    # The first bin has every lower probability too, so that its threshold is 0.
    thresholds = np.concatenate([[1.0], np.where(bins == 0, 0.0, 1 / (1 + np.exp(-log_odds)))])
    with np.errstate(invalid="ignore"):
        recall, false_positive_rate = true / true[-1], false / false[-1]
        precision = np.concatenate([[1.0], true[1:] / (true + false)[1:]])
    area = np.diff(false_positive_rate) * (recall[1:] + recall[:-1]) / 2
    average_precision = np.diff(recall) * precision[1:]
    return Curve(thresholds, recall, false_positive_rate, precision, float(area.sum()), float(average_precision.sum()))
