"""The HTML report of an evaluation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.evaluate.pages.signature_table import signature_table
from kfp_distributed.components.evaluate.scoring.calibration import BINS, Calibration
from kfp_distributed.components.evaluate.scoring.classification_scores import Evaluation, Scores, shown_error
from kfp_distributed.components.evaluate.scoring.curves import Curve
from kfp_distributed.components.evaluate.scoring.mistakes import Mistake
from kfp_distributed.components.evaluate.scoring.spool import MEMORY
from kfp_distributed.components.summaries.row_texts import row_texts
from kfp_distributed.reports.charts import Chart, heatmap, histogram, line_chart
from kfp_distributed.reports.parts import Table
from kfp_distributed.storage.dataset import DatasetManifest, input_shape, is_image
from kfp_distributed.storage.tensor_specs import Signature

# The most that one page shows, so that it stays below 2 MB and can be read.
_TABLE_CLASSES = 200
_MATRIX_CLASSES = 40
_CURVES = 7
_CURVE_POINTS = 150
_CONFUSIONS = 10
_PICTURE_PIXELS = 96
MAX_COLUMNS = 12
"""Columns that the table of the worst rows shows."""

_TITLES = {
    "macro_f1": "macro F1",
    "roc_auc": "ROC AUC",
    "average_precision": "average precision",
    "calibration_error": "calibration error",
}


@dataclass(frozen=True)
class RowPicture:
    """An image whose prediction is wrong.

    Attributes:
        caption: Number of the row, its label and the prediction.
        png: The image as a PNG file.
    """

    caption: str
    png: bytes


@dataclass(frozen=True)
class EvaluationPage:
    """Content of the report.

    Attributes:
        title: Name of the label and of the split.
        facts: Names and values of the main scores.
        confusion: Confusion matrix; None if there are too many classes.
        confusions: The most frequent confusions of two classes.
        classes: Scores of each class.
        roc: ROC curves; None if all rows are of one class.
        precision_recall: Precision-recall curves; None if all rows are of one class.
        curves: Which curves are shown.
        exactness: Whether ROC AUC and average precision are exact, and their largest possible error.
        calibration: Accuracy by probability of the predicted class.
        certainty: Rows by probability of the predicted class.
        pictures: The mistakes of which the model is most certain, if rows are images.
        mistakes: The mistakes of which the model is most certain; None if rows are images.
        mistake_count: Number of all mistakes.
        signature: Inputs and outputs of the model.
        warning: Why the scores may not be those of new rows; "" for no reason.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    confusion: Chart | None
    confusions: Table
    classes: Table
    roc: Chart | None
    precision_recall: Chart | None
    curves: str
    exactness: str
    calibration: Chart
    certainty: Chart
    pictures: tuple[RowPicture, ...]
    mistakes: Table | None
    mistake_count: int
    signature: Table
    warning: str = ""


def evaluation_page(
    manifest: DatasetManifest, evaluation: Evaluation, signature: Signature, warning: str = ""
) -> EvaluationPage:
    """Return the content of the report, for the template evaluate.html.

    Args:
        manifest: Manifest of the dataset.
        evaluation: Scores of the model.
        signature: Inputs and outputs of the model.
        warning: Why the scores may not be those of new rows. Default: "".
    """
    scores, curves = evaluation.scores, evaluation.spool.curves
    shown, explanation = _choose_curves(scores, curves)
    shape, worst = input_shape(manifest), evaluation.mistakes.mistakes
    has_images = is_image(shape)
    return EvaluationPage(
        title=f"Evaluation of {manifest.label.name}: {manifest.split} split",
        facts=_facts(evaluation),
        confusion=_confusion_chart(scores),
        confusions=_confusion_table(scores),
        classes=_class_table(scores, curves),
        roc=_roc_chart(shown) if shown else None,
        precision_recall=_precision_recall_chart(shown) if shown else None,
        curves=explanation,
        exactness=_exactness(evaluation.spool.is_exact, curves),
        calibration=_calibration_chart(evaluation.calibration),
        certainty=histogram(
            "Probability of the predicted class",
            [i / BINS for i in range(BINS + 1)],
            {
                "right": evaluation.calibration.correct.tolist(),
                "wrong": (evaluation.calibration.rows - evaluation.calibration.correct).tolist(),
            },
            x="probability",
        ),
        pictures=tuple(
            RowPicture(_caption(mistake, scores.classes), row_png(mistake.features, shape)) for mistake in worst
        )
        if has_images
        else (),
        mistakes=None if has_images else _mistake_table(manifest, worst),
        mistake_count=evaluation.mistakes.count,
        signature=signature_table(signature),
        warning=warning,
    )


def _facts(evaluation: Evaluation) -> tuple[tuple[str, str], ...]:
    errors = evaluation.errors()
    return tuple(
        (
            _TITLES.get(name, name),
            _format(value) + (f" ± {shown_error(errors[name]):.4f}" if name in errors else ""),
        )
        for name, value in evaluation.summary().items()
    )


def _exactness(is_exact: bool, curves: Sequence[Curve]) -> str:
    """Return the sentence that says how far ROC AUC and average precision of each class may be off."""
    if is_exact:
        return "ROC AUC and average precision are exact: scikit-learn computes them from all rows."
    errors = (
        max((error for error in errors if not math.isnan(error)), default=0.0)
        for errors in (
            [curve.roc_auc_error for curve in curves],
            [curve.average_precision_error for curve in curves],
        )
    )
    roc_auc, average_precision = map(shown_error, errors)
    return (
        f"The probabilities of all rows do not fit in {MEMORY // 2**20:,} MiB, so rows of similar probability are "
        f"counted together. The ROC AUC of each class is within {roc_auc:.4f} of the exact value, its average "
        f"precision within {average_precision:.4f}."
    )


def _format(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _share(value: float) -> str:
    return "—" if math.isnan(value) else f"{value:.3f}"


def _choose_curves(scores: Scores, curves: Sequence[Curve]) -> tuple[dict[str, Curve], str]:
    """Return the curves to show, thinned, by class, and a sentence that says which they are."""
    known = {name: curve for name, curve in zip(scores.classes, curves, strict=True) if not math.isnan(curve.roc_auc)}
    explanation = "Each curve is that of one class against all others."
    if len(scores.classes) == 2:
        known = {name: curve for name, curve in known.items() if name == scores.classes[1]}
        explanation = f"The positive class is {scores.classes[1]}."
    elif len(known) > _CURVES:
        hardest = sorted(known, key=lambda name: known[name].average_precision)[:_CURVES]
        known = {name: known[name] for name in known if name in hardest}
        explanation += f" The {_CURVES} classes with the lowest average precision are shown."
    return {name: curve.thinned(_CURVE_POINTS) for name, curve in known.items()}, explanation


def _roc_chart(curves: Mapping[str, Curve]) -> Chart:
    lines = {name: _points(curve.false_positive_rate, curve.recall) for name, curve in curves.items()}
    chance = {"chance": [(0.0, 0.0), (1.0, 1.0)]}
    return line_chart("ROC curves", "false positive rate", "recall", lines | chance, dashed=["chance"])


def _precision_recall_chart(curves: Mapping[str, Curve]) -> Chart:
    lines = {name: _points(curve.recall, curve.precision) for name, curve in curves.items()}
    return line_chart("Precision-recall curves", "recall", "precision", lines)


def _points(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[tuple[float, float]]:
    return list(zip(x.tolist(), y.tolist(), strict=True))


def _confusion_chart(scores: Scores) -> Chart | None:
    if len(scores.classes) > _MATRIX_CLASSES:
        return None
    return heatmap("Confusion matrix", scores.classes, scores.classes, scores.confusion.tolist())


def _confusion_table(scores: Scores) -> Table:
    wrong = scores.confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSIONS]
    pairs = [divmod(int(cell), len(scores.classes)) for cell in order]
    rows_of_class = scores.confusion.sum(axis=1)
    return Table(
        ("true class", "predicted class", "rows", "share of the true class"),
        tuple(
            (
                scores.classes[label],
                scores.classes[predicted],
                f"{wrong[label, predicted]:,}",
                f"{wrong[label, predicted] / rows_of_class[label]:.1%}",
            )
            for label, predicted in pairs
            if wrong[label, predicted]
        ),
    )


def _class_table(scores: Scores, curves: Sequence[Curve]) -> Table:
    rows = zip(scores.classes, scores.confusion.sum(axis=1).tolist(), scores.class_scores(), curves, strict=True)
    return Table(
        ("class", "rows", "precision", "recall", "F1", "ROC AUC", "average precision"),
        tuple(
            (name, f"{count:,}", *map(_share, (*class_scores, curve.roc_auc, curve.average_precision)))
            for name, count, class_scores, curve in rows
        )[:_TABLE_CLASSES],
        len(scores.classes),
    )


def _calibration_chart(calibration: Calibration) -> Chart:
    points = _points(calibration.probability, calibration.accuracy)
    return line_chart(
        "Calibration",
        "mean probability of the predicted class",
        "accuracy",
        {
            "model": [point for point in points if not math.isnan(point[0])],
            "perfect calibration": [(0.0, 0.0), (1.0, 1.0)],
        },
        dashed=["perfect calibration"],
    )


def _caption(mistake: Mistake, classes: Sequence[str]) -> str:
    return (
        f"row {mistake.row:,}: {classes[mistake.label]} ({mistake.label_probability:.1%}), predicted "
        f"{classes[mistake.predicted]} ({mistake.probability:.1%})"
    )


def _mistake_table(manifest: DatasetManifest, mistakes: Sequence[Mistake]) -> Table:
    classes, columns = manifest.label.classes, manifest.columns[:MAX_COLUMNS]
    return Table(
        ("row", "true class", "P(true class)", "predicted class", "P(predicted class)", *(c.name for c in columns)),
        tuple(
            (
                f"{mistake.row:,}",
                classes[mistake.label],
                f"{mistake.label_probability:.1%}",
                classes[mistake.predicted],
                f"{mistake.probability:.1%}",
                *row_texts(columns, mistake.features),
            )
            for mistake in mistakes
        ),
    )


def row_png(features: NDArray[np.float32], shape: Sequence[int]) -> bytes:
    """Return an image as a PNG file.

    Args:
        features: Values of the row, flat. The smallest becomes black, the largest white. NaN and infinite values
            count as 0.
        shape: Shape of the row. Of images larger than 96 pixels some lines are left out.
    """
    import tensorflow as tf

    step = math.ceil(max(shape[:2]) / _PICTURE_PIXELS)
    pixels = np.nan_to_num(features, posinf=0, neginf=0).reshape((*shape, 1)[:3])[::step, ::step]
    pixels = (pixels - pixels.min()) * (255 / (np.ptp(pixels) or 1))
    png: bytes = tf.io.encode_png(pixels.astype(np.uint8)).numpy()
    return png
