"""The HTML report of an evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.evaluate.scores import Scores

_PICTURE_PIXELS = 96


@dataclass(frozen=True)
class Mistake:
    """A row whose predicted class is wrong.

    Attributes:
        caption: Number of the row, its class and the predicted one.
        png: The row as a PNG file; b"" if it is not an image.
    """

    caption: str
    png: bytes = b""


@dataclass(frozen=True)
class ConfusionCell:
    """Rows of one class that were predicted as another class, or as the same.

    Attributes:
        count: Number of rows.
        heat: Strength of the color, from 0 to 1.
    """

    count: int
    heat: float


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class, as texts.

    Attributes:
        name: Name of the class.
        rows: Number of its rows.
        precision: Its precision; "—" where it was never predicted.
        recall: Its recall; "—" where it has no rows.
        cells: Its row of the confusion matrix; empty where there are too many classes.
    """

    name: str
    rows: str
    precision: str
    recall: str
    cells: tuple[ConfusionCell, ...]


@dataclass(frozen=True)
class EvaluationPage:
    """Content of the report.

    Attributes:
        title: Name of the label and of the split.
        accuracy: Accuracy over all rows.
        loss: Mean cross-entropy.
        rows: Number of rows.
        predicted: Classes that are columns of the confusion matrix; empty where there are too many.
        classes: One entry for each class.
        mistakes: The first mistakes.
    """

    title: str
    accuracy: str
    loss: str
    rows: str
    predicted: tuple[str, ...]
    classes: tuple[ClassScores, ...]
    mistakes: tuple[Mistake, ...]


def evaluation_page(title: str, scores: Scores, mistakes: Sequence[Mistake]) -> EvaluationPage:
    """Return the content of the report, for the template evaluate.html.

    Args:
        title: Name of what was evaluated.
        scores: Scores of the model.
        mistakes: Mistakes to show.
    """
    matrix_rows = zip(scores.classes, scores.confusion.tolist(), scores.precision_and_recall(), strict=True)
    return EvaluationPage(
        title=title,
        accuracy=f"{scores.accuracy:.4f}",
        loss=f"{scores.loss:.4f}",
        rows=f"{scores.rows:,}",
        predicted=scores.drawn,
        classes=tuple(
            ClassScores(name, f"{sum(counts):,}", _share(precision), _share(recall), _cells(counts, scores.drawn))
            for name, counts, (precision, recall) in matrix_rows
        ),
        mistakes=tuple(mistakes),
    )


def _share(value: float) -> str:
    return "—" if math.isnan(value) else f"{value:.3f}"


def _cells(counts: Sequence[int], drawn: Sequence[str]) -> tuple[ConfusionCell, ...]:
    rows = max(sum(counts), 1)
    # The square root keeps the few mistakes of a good model visible.
    return tuple(ConfusionCell(count, round(math.sqrt(count / rows), 2)) for count in counts[: len(drawn)])


def row_png(features: NDArray[np.float32], shape: Sequence[int]) -> bytes:
    """Return a row as a PNG file; b"" if it is not an image.

    Args:
        features: Values of the row, flat. The smallest becomes black, the largest white. NaN and infinite values
            count as 0.
        shape: Shape of the row. [height, width], [height, width, 1] and [height, width, 3] are images. Of images
            larger than 96 pixels some lines are left out.
    """
    if (*shape, 1)[2:] not in ((1,), (1, 1), (3, 1)):
        return b""
    import tensorflow as tf

    step = math.ceil(max(shape[:2]) / _PICTURE_PIXELS)
    pixels = np.nan_to_num(features, posinf=0, neginf=0).reshape((*shape, 1)[:3])[::step, ::step]
    pixels = (pixels - pixels.min()) * (255 / (np.ptp(pixels) or 1))
    png: bytes = tf.io.encode_png(pixels.astype(np.uint8)).numpy()
    return png
