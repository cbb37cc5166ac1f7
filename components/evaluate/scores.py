"""The scores of a classifier, from its probabilities and the true classes (pure)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Nobody reads a wider table, and KFP stores every cell as metadata in its database.
_DRAWN_CLASSES = 100
# Largest deviation of a row's sum from 1: the rounding of float16 and bfloat16 models. Logits deviate more.
_SUM_TOLERANCE = 0.01


@dataclass(frozen=True)
class Scores:
    """The scores of one model on one dataset.

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
        """The classes to show in the confusion matrix: all, or none where there are too many."""
        return self.classes if len(self.classes) <= _DRAWN_CLASSES else ()

    def precision_and_recall(self) -> list[tuple[float, float]]:
        """Return precision and recall of each class: NaN without predictions or without examples of the class."""
        with np.errstate(invalid="ignore"):
            shares = [self.confusion.diagonal() / self.confusion.sum(axis=axis) for axis in (0, 1)]
        return list(zip(*np.array(shares).tolist(), strict=True))


def answer_matrix(output: NDArray[np.floating], rows: int, classes: int) -> NDArray[np.float64]:
    """Bring a model's answer for a batch into the form [rows, classes].

    Args:
        output: The model's answer, [rows, classes]; of two classes also [rows, 1] or [rows], which is the
            probability of the second.
        rows: Number of rows it was asked for.
        classes: Number of the dataset's classes.

    Raises:
        ValueError: It has another shape.
    """
    values = np.asarray(output, np.float64)
    if classes == 2 and values.shape in ((rows,), (rows, 1)):
        values = np.column_stack([1 - values, values])
    if values.shape != (rows, classes):
        raise ValueError(
            f"the model answered {rows} rows with an array of shape {values.shape}, where {(rows, classes)} is needed: "
            "evaluate it on the dataset it was trained with."
        )
    return values


def check_probabilities(values: NDArray[np.float64], row_numbers: NDArray[np.int_]) -> NDArray[np.float64]:
    """Check that finite answers are probabilities.

    Args:
        values: The model's answers, [rows, classes].
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
            f"the model's answer for row {row_numbers[row]} is {values[row]}, not probabilities: end it with a softmax "
            "(two classes: or a sigmoid)."
        )
    return values.clip(0, 1)
