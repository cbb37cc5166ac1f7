"""The scores of a classifier, from its probabilities and the true classes (pure)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.evaluate.scoring.calibration import Calibration
from kfp_distributed.components.evaluate.scoring.curves import Curve
from kfp_distributed.components.evaluate.scoring.mistakes import WorstMistakes
from kfp_distributed.components.evaluate.scoring.spool import ScoreSpool

# KFP stores every cell as metadata in its database.
_DRAWN_CLASSES = 100
# Largest deviation of a row's sum from 1: the rounding of float16 and bfloat16 models. Logits deviate more.
_SUM_TOLERANCE = 0.01


class ClassScores(NamedTuple):
    """The scores of one class.

    Attributes:
        precision: Share of right ones among the predictions of the class; NaN without predictions.
        recall: Share of right predictions among the rows of the class; NaN without rows.
        f1: Harmonic mean of both; NaN without predictions and rows.
    """

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Scores:
    """The scores of the predicted classes.

    Attributes:
        classes: The classes' names.
        confusion: Rows counted by [true class, predicted class]; at least one.
        loss: Mean cross-entropy, in nats.
    """

    classes: tuple[str, ...]
    confusion: NDArray[np.int64]
    loss: float

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Share of rows whose most probable class is the true one."""
        return int(self.confusion.trace()) / self.rows

    @property
    def drawn(self) -> tuple[str, ...]:
        """The classes to show in KFP's confusion matrix: all, or none if there are more than 100."""
        return self.classes if len(self.classes) <= _DRAWN_CLASSES else ()

    def class_scores(self) -> list[ClassScores]:
        """Return precision, recall and F1 of each class."""
        hits, predictions, rows = self.confusion.diagonal(), self.confusion.sum(axis=0), self.confusion.sum(axis=1)
        with np.errstate(invalid="ignore"):
            columns = (hits / predictions, hits / rows, 2 * hits / (predictions + rows))
        return [ClassScores(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one model on one dataset.

    Attributes:
        scores: Accuracy, loss and confusion matrix.
        spool: Probabilities of all rows, and the curves of each class.
        calibration: Rows by probability of the predicted class.
        mistakes: The mistakes of which the model is most certain.
    """

    scores: Scores
    spool: ScoreSpool
    calibration: Calibration
    mistakes: WorstMistakes

    def summary(self) -> dict[str, float]:
        """Return the scores of the whole model by name. Undefined ones are left out.

        Of two classes, ROC AUC and average precision are those of the second one, else means over the classes.
        """
        curves = self._averaged_curves()
        values = {
            "accuracy": self.scores.accuracy,
            "loss": self.scores.loss,
            "examples": self.scores.rows,
            "macro_f1": _mean(score.f1 for score in self.scores.class_scores()),
            "roc_auc": _mean(curve.roc_auc for curve in curves),
            "average_precision": _mean(curve.average_precision for curve in curves),
            "calibration_error": self.calibration.error,
        }
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def errors(self) -> dict[str, float]:
        """Return the largest possible deviation of each score of the summary that is not exact, by the score's name."""
        if self.spool.is_exact:
            return {}
        curves = self._averaged_curves()
        # The error of a mean is at most the mean of the errors.
        values = {
            "roc_auc": _mean(curve.roc_auc_error for curve in curves),
            "average_precision": _mean(curve.average_precision_error for curve in curves),
        }
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def roc_curve(self) -> Curve:
        """Return the one curve that stands for the model: that of the second of two classes, else the micro-average."""
        return self.spool.curves[1] if self.spool.classes == 2 else self.spool.micro_average

    def _averaged_curves(self) -> tuple[Curve, ...]:
        return self.spool.curves[1:] if self.spool.classes == 2 else self.spool.curves


def shown_error(error: float) -> float:
    """Return the largest possible deviation of a score that is rounded to 4 digits, rounded up to 4 digits itself.

    Args:
        error: Largest possible deviation of the score before it is rounded.
    """
    return math.ceil((error + 0.5e-4) * 1e4) / 1e4


def _mean(values: Iterable[float]) -> float:
    """Return the mean of the numbers that are not NaN; NaN without any."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def check_probabilities(values: NDArray[np.float64], row_numbers: NDArray[np.int_]) -> NDArray[np.float64]:
    """Check that finite outputs are probabilities.

    Args:
        values: The model's outputs, [rows, classes].
        row_numbers: Number of each row within the dataset, for the error.

    Returns:
        Probabilities, [rows, classes], within 0 and 1.

    Raises:
        ValueError: A row does not hold probabilities.
    """
    valid = (values.min(axis=1) > -_SUM_TOLERANCE) & (abs(values.sum(axis=1) - 1) < _SUM_TOLERANCE)
    if not valid.all():
        row = int(valid.argmin())
        raise ValueError(
            f"the model's output for row {row_numbers[row]} is {values[row]}, not probabilities: end it with a softmax "
            "(two classes: or a sigmoid)."
        )
    return values.clip(0, 1)
