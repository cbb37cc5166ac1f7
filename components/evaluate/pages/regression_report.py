"""The HTML report of an evaluation of a model that predicts a number (pure)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.evaluate.pages.classification_report import MAX_COLUMNS, RowPicture, row_png
from kfp_distributed.components.evaluate.pages.signature_table import signature_table
from kfp_distributed.components.evaluate.scoring.regression_scores import (
    RegressionEvaluation,
    RegressionScores,
    RowError,
)
from kfp_distributed.components.summaries.histograms import bin_edges
from kfp_distributed.components.summaries.row_texts import row_texts
from kfp_distributed.reports.charts import Chart, histogram
from kfp_distributed.reports.parts import Table
from kfp_distributed.reports.scatter import scatter_chart
from kfp_distributed.storage.dataset import DatasetManifest, Label, input_shape, is_image
from kfp_distributed.storage.tensor_specs import Signature

_DECIMALS = 15

_POINTS = 2000
"""Points of a scatter chart: 25 KB of the page, and more would hide each other."""


@dataclass(frozen=True)
class RegressionPage:
    """Content of the report.

    Attributes:
        title: Name of the label and of the split.
        facts: Names and values of the scores, and the number of rows.
        comparison: Scores of the model beside those of a prediction of the training mean.
        undefined: Why R² is undefined; "" if it is defined.
        predictions: Predicted against true numbers.
        residuals: Distribution of the residuals.
        outliers: How many residuals the distribution leaves out; "" for none.
        residuals_by_prediction: Residuals against predicted numbers.
        pictures: The rows with the largest errors, if rows are images.
        errors: The rows with the largest errors; None if rows are images.
        error_count: Number of rows in `pictures` or `errors`.
        signature: Inputs and outputs of the model.
        warning: Why the scores may not be those of new rows; "" for no reason.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    comparison: Table
    undefined: str
    predictions: Chart
    residuals: Chart
    outliers: str
    residuals_by_prediction: Chart
    pictures: tuple[RowPicture, ...]
    errors: Table | None
    error_count: int
    signature: Table
    warning: str = ""


def regression_page(
    manifest: DatasetManifest, evaluation: RegressionEvaluation, signature: Signature, warning: str = ""
) -> RegressionPage:
    """Return the content of the report, for the template evaluate_regression.html.

    Args:
        manifest: Manifest of the dataset.
        evaluation: Scores of the model.
        signature: Inputs and outputs of the model.
        warning: Why the scores may not be those of new rows. Default: "".
    """
    label, shape, worst = manifest.label, input_shape(manifest), evaluation.largest.errors
    has_images, rows = is_image(shape), evaluation.model.rows
    pairs = evaluation.sample.pairs
    drawn = pairs[np.linspace(0, len(pairs) - 1, min(len(pairs), _POINTS)).astype(int)]
    histogram_of_residuals, outliers = _residual_histogram(pairs[:, 0] - pairs[:, 1], rows)
    return RegressionPage(
        title=f"Evaluation of {label.name}: {manifest.split} split",
        facts=(*zip(("MAE", "RMSE", "R²"), _texts(evaluation.scores), strict=True), ("examples", f"{rows:,}")),
        comparison=_comparison(evaluation, label),
        undefined="R² is undefined, because the true numbers have no deviation."
        if math.isnan(evaluation.scores.r2)
        else "",
        predictions=_prediction_chart(drawn, rows),
        residuals=histogram_of_residuals,
        outliers=outliers,
        residuals_by_prediction=_residual_chart(drawn, rows),
        pictures=tuple(RowPicture(_caption(error, label), row_png(error.features, shape)) for error in worst)
        if has_images
        else (),
        errors=None if has_images else _error_table(manifest, worst),
        error_count=len(worst),
        signature=signature_table(signature),
        warning=warning,
    )


def number_text(number: float) -> str:
    """Return a number with six significant digits, such as "12,345.7", and "—" for NaN."""
    if math.isnan(number):
        return "—"
    if number and not 1e-5 <= abs(number) < 1e15:
        return f"{number:.6g}"
    decimals = max(0, 5 - math.floor(math.log10(abs(number)))) if number else 0
    text = f"{number:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _texts(scores: RegressionScores) -> tuple[str, str, str]:
    fit = "—" if math.isnan(scores.r2) else f"{scores.r2:.4f}"
    return number_text(scores.mae), number_text(scores.rmse), fit


def _comparison(evaluation: RegressionEvaluation, label: Label) -> Table:
    mean = f"training mean of {label.name} ({_value(evaluation.training_mean, label)}) for every row"
    return Table(
        ("prediction", "MAE", "RMSE", "R²"),
        (("model", *_texts(evaluation.scores)), (mean, *_texts(evaluation.baseline_scores))),
    )


def _prediction_chart(pairs: NDArray[np.float64], rows: int) -> Chart:
    low, high = float(pairs.min()), float(pairs.max())
    line = ("perfect prediction", ((low, low), (high, high)))
    return scatter_chart("Predicted against true", "true", "predicted", pairs, line, total=rows)


def _residual_chart(pairs: NDArray[np.float64], rows: int) -> Chart:
    points = np.column_stack([pairs[:, 1], pairs[:, 0] - pairs[:, 1]])
    line = ("no error", ((float(points[:, 0].min()), 0.0), (float(points[:, 0].max()), 0.0)))
    return scatter_chart("Residuals against predicted", "predicted", "residual", points, line, total=rows)


def _residual_histogram(residuals: NDArray[np.float64], rows: int) -> tuple[Chart, str]:
    """Return the distribution, and a sentence on the residuals that it leaves out.

    Args:
        residuals: Residuals of the sample.
        rows: Number of rows of the dataset.
    """
    edges = bin_edges(residuals)
    counts: list[int] = np.histogram(residuals, edges)[0].tolist()
    name = "rows" if len(residuals) == rows else f"a random sample of {len(residuals):,} of {rows:,} rows"
    chart = histogram("Residuals", edges.tolist(), {name: counts}, x="residual")
    outside = len(residuals) - sum(counts)
    if not outside:
        return chart, ""
    return chart, f"{outside:,} of {len(residuals):,} residuals are so far from the others that no bar shows them."


def _value(number: float, label: Label) -> str:
    """Return a number of the label's unit with four digits of the label's standard deviation."""
    decimals = max(0, 3 - math.floor(math.log10(label.std))) if label.std > 0 else 4
    if abs(number) >= 1e15 or (decimals > _DECIMALS and abs(number) < 1):
        return f"{number:.6g}"
    return f"{number:,.{min(_DECIMALS, decimals)}f}"


def _caption(error: RowError, label: Label) -> str:
    return (
        f"row {error.row:,}: {_value(error.target, label)}, predicted {_value(error.prediction, label)} "
        f"(residual {number_text(error.residual)})"
    )


def _error_table(manifest: DatasetManifest, errors: Sequence[RowError]) -> Table:
    columns, label = manifest.columns[:MAX_COLUMNS], manifest.label
    return Table(
        ("row", "true", "predicted", "residual", *(column.name for column in columns)),
        tuple(
            (
                f"{error.row:,}",
                _value(error.target, label),
                _value(error.prediction, label),
                number_text(error.residual),
                *row_texts(columns, error.features),
            )
            for error in errors
        ),
    )
