"""The page of a model that predicts a number."""

import base64

import numpy as np
import pytest
from pages import Page

from kfp_distributed.components.evaluate.pages.regression_report import number_text, regression_page
from kfp_distributed.components.evaluate.scoring.regression_scores import (
    ErrorSums,
    LargestErrors,
    PairSample,
    RegressionEvaluation,
)
from kfp_distributed.components.summaries.moments import Moments
from kfp_distributed.reports.charts import histogram
from kfp_distributed.reports.page import render_page
from kfp_distributed.reports.parts import Table
from kfp_distributed.reports.scatter import scatter_chart
from kfp_distributed.storage.dataset import Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.tensor_specs import Signature, TensorSpec

pytestmark = pytest.mark.figures

TEMPLATE = "evaluate_regression.html"
AGE_AND_TOWN = (Column("<i>age", "number", "float32"), Column("town", "category", "int32", vocabulary=("Ulm",)))
PICTURES = (Column("image", "tensor", "uint8", (2, 2)),)


SIGNATURE = Signature.of([TensorSpec("<i>age", "float32", (None, 1))], [TensorSpec("output", "float32", None)])
SIGNATURE_TABLE = Table(
    ("kind", "name", "type", "shape"),
    (("input", "<i>age", "float32", "[n, 1]"), ("output", "output", "float32", "any shape")),
    2,
)


def page_of(targets, predictions, columns=AGE_AND_TOWN, features=None, mean=2.0, std=1.0, limit=100_000, warning=""):
    """The page of an evaluation of these predictions."""
    targets, predictions = np.asarray(targets, float), np.asarray(predictions, float)
    features = np.ones((len(targets), 2)) if features is None else features
    evaluation = RegressionEvaluation(Moments(), ErrorSums(), ErrorSums(), mean, PairSample(limit), LargestErrors(12))
    evaluation.moments.add(targets)
    evaluation.model.add(targets - predictions)
    evaluation.baseline.add(targets - mean)
    evaluation.sample.add(targets, predictions)
    evaluation.largest.add(np.asarray(features, np.float32), targets, predictions, 0)
    shards, label = (Shard("part.parquet", len(targets), 1, "0"),), Label("<price>", (), "regression", mean, std)
    manifest = DatasetManifest("test", columns, label, shards, (), 0, "made up")
    return regression_page(manifest, evaluation, SIGNATURE, warning)


FOUR = ([1, 2, 3, 4], [1, 2.5, 3, 2], AGE_AND_TOWN, [[1, 1], [2.5, 0], [3, 1], [np.nan, 1]])


def test_content_of_a_report():
    page = page_of(*FOUR)
    assert page.title == "Evaluation of <price>: test split"
    assert page.facts == (("MAE", "0.625"), ("RMSE", "1.03078"), ("R²", "0.1500"), ("examples", "4"))
    assert page.comparison == Table(
        ("prediction", "MAE", "RMSE", "R²"),
        (
            ("model", "0.625", "1.03078", "0.1500"),
            ("training mean of <price> (2.000) for every row", "1", "1.22474", "-0.2000"),
        ),
    )
    pairs = np.array([[1, 1], [2, 2.5], [3, 3], [4, 2]], float)
    residuals = np.array([[1, 0], [2.5, -0.5], [3, 0], [2, 2]])
    assert page.predictions == scatter_chart(
        "Predicted against true", "true", "predicted", pairs, ("perfect prediction", ((1, 1), (4, 4)))
    )
    assert page.residuals_by_prediction == scatter_chart(
        "Residuals against predicted", "predicted", "residual", residuals, ("no error", ((1, 0), (3, 0)))
    )
    edges = np.linspace(-0.5, 2, 31)
    counts = np.histogram([0, -0.5, 0, 2], edges)[0].tolist()
    assert page.residuals == histogram("Residuals", edges.tolist(), {"rows": counts}, x="residual")
    assert page.errors == Table(
        ("row", "true", "predicted", "residual", "<i>age", "town"),
        (("3", "4.000", "2.000", "2", "", "Ulm"), ("1", "2.000", "2.500", "-0.5", "2.5", "")),
    )
    assert (page.error_count, page.pictures, page.undefined, page.outliers, page.warning) == (2, (), "", "", "")


def test_the_page_shows_the_content_literally():
    content = page_of(*FOUR, warning="<b>rows")
    page = Page(render_page(TEMPLATE, content))
    charts = (content.predictions, content.residuals, content.residuals_by_prediction)
    tables = [*(chart.table for chart in charts), content.comparison, content.errors, SIGNATURE_TABLE]
    assert sorted(page.tables) == sorted([list(table.columns), *map(list, table.rows)] for table in tables)
    assert page.texts.count("Evaluation of <price>: test split") == 2  # The title and the heading.
    assert "<b>rows." in page.texts
    assert sorted(element["data-figure"] for element in page.all("div") if "data-figure" in element) == sorted(
        chart.summary for chart in charts
    )


def test_equal_targets_have_no_r2():
    page = page_of([3, 3], [3, 4])
    assert dict(page.facts)["R²"] == "—"
    assert [row[-1] for row in page.comparison.rows] == ["—", "—"]
    assert page.undefined in " ".join(Page(render_page(TEMPLATE, page)).texts)


def test_exact_predictions_have_no_errors():
    page = page_of([1, 2, 5], [1, 2, 5])
    assert (page.error_count, page.facts[2]) == (0, ("R²", "1.0000"))
    assert "Every prediction is exact." in render_page(TEMPLATE, page)


def test_large_numbers_that_are_close_to_each_other_can_be_told_apart():
    page = page_of([1e9, 1e9 + 1, 1e9 + 2], [1e9 + 0.25, 1e9 + 1, 1e9 + 2], mean=1e9 + 1)
    assert page.errors.rows[0][:4] == ("0", "1,000,000,000.000", "1,000,000,000.250", "-0.25")
    assert page.predictions.table.rows[0] == ("1,000,000,000", "1,000,000,000.25")


def test_an_outlier_does_not_squeeze_the_distribution():
    targets = np.random.default_rng(0).normal(size=10_000)
    predictions = targets + np.random.default_rng(1).normal(size=10_000)
    predictions[7] = 1e6
    page = page_of(targets, predictions)
    assert page.outliers.endswith("of 10,000 residuals are so far from the others that no bar shows them.")
    assert int(page.outliers.split()[0]) < 110
    assert page.errors.rows[0][0] == "7"


def test_images_are_shown_with_captions():
    content = page_of([1, 2], [3, 2], PICTURES, [[0, 255, 0, 0], [0, 0, 255, 0]])
    assert content.errors is None
    (picture,) = content.pictures
    assert picture.caption == "row 0: 1.000, predicted 3.000 (residual -2)"
    page = Page(render_page(TEMPLATE, content))
    assert picture.caption in page.texts
    assert [image["src"] for image in page.all("img")] == [
        f"data:image/png;base64,{base64.b64encode(picture.png).decode()}"
    ]


def test_a_page_stays_small_whatever_it_shows():
    random = np.random.default_rng(0)
    targets = random.normal(size=200_000)
    columns = tuple(Column(f"column {i}", "number", "float32") for i in range(200))
    features = np.ones((200_000, 200), np.float32)
    content = page_of(targets, targets + random.normal(size=200_000), columns, features)
    assert content.predictions.remarks == ("A sample of 2,000 of 200,000 rows.",)
    assert content.residuals.table.columns[1] == "a random sample of 100,000 of 200,000 rows"
    assert len(content.errors.columns) == 16
    assert len(render_page(TEMPLATE, content).encode()) < 1_000_000


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0.0, "0"), (1.0, "1"), (-1234567.8, "-1,234,568"), (12345.678, "12,345.7"), (0.00123456789, "0.00123457"),
        (1e-9, "1e-09"), (2.5e20, "2.5e+20"), (float("nan"), "—"), (100.0, "100"),
    ],
)  # fmt: skip
def test_numbers_have_six_digits(number, expected):
    assert number_text(number) == expected


def test_small_numbers_keep_their_digits():
    table = page_of([1e-49, 2e-49], [1e-49, 1.5e-49], mean=1.5e-49, std=5e-50).errors
    assert table.rows[0][:4] == ("1", "2e-49", "1.5e-49", "5e-50")
