import base64
import io

import numpy as np
import pytest
from pages import Page
from PIL import Image

from kfp_distributed.components.evaluate.pages.classification_report import EvaluationPage, evaluation_page, row_png
from kfp_distributed.components.evaluate.scoring.calibration import Calibration
from kfp_distributed.components.evaluate.scoring.classification_scores import Evaluation, Scores
from kfp_distributed.components.evaluate.scoring.mistakes import WorstMistakes
from kfp_distributed.components.evaluate.scoring.spool import ScoreSpool
from kfp_distributed.reports.charts import heatmap, histogram, line_chart
from kfp_distributed.reports.page import render_page
from kfp_distributed.reports.parts import Table
from kfp_distributed.storage.dataset import Column, DatasetManifest, Label, Shard, is_image
from kfp_distributed.storage.tensor_specs import Signature, TensorSpec

pytestmark = pytest.mark.figures

AGE_AND_TOWN = (Column("<i>age", "number", "float32"), Column("town", "category", "int32", vocabulary=("Ulm",)))
PICTURES = (Column("image", "tensor", "uint8", (2, 2)),)


SIGNATURE = Signature.of([TensorSpec("<i>age", "float32", (None, 1))], [TensorSpec("output", "float32", None)])
SIGNATURE_TABLE = Table(
    ("kind", "name", "type", "shape"),
    (("input", "<i>age", "float32", "[n, 1]"), ("output", "output", "float32", "any shape")),
    2,
)


def manifest_of(classes, labels, columns):
    counts = tuple(np.bincount(labels, minlength=len(classes)).tolist())
    shards = (Shard("part.parquet", len(labels), 1, "0"),)
    return DatasetManifest("test", columns, Label("<label>", classes), shards, counts, 0, "made up")


def page_of(classes, probabilities, labels, columns=AGE_AND_TOWN, features=None, **limits):
    """The page of an evaluation of these probabilities."""
    probabilities, labels = np.asarray(probabilities, float), np.asarray(labels)
    confusion = np.zeros((len(classes), len(classes)), int)
    predicted = probabilities.argmax(axis=1)
    np.add.at(confusion, (labels, predicted), 1)
    spool, calibration, mistakes = ScoreSpool(len(classes), **limits), Calibration(), WorstMistakes(12)
    spool.add(probabilities, labels)
    calibration.add(probabilities.max(axis=1), predicted == labels)
    features = np.ones((len(labels), 2)) if features is None else features
    mistakes.add(np.asarray(features, np.float32), labels, probabilities, 0)
    evaluation = Evaluation(Scores(classes, confusion, 0.5), spool, calibration, mistakes)
    return evaluation_page(manifest_of(classes, labels, columns), evaluation, SIGNATURE)


TWO = (
    ("a & b", "<b>größe</b>"),
    [[0.75, 0.25], [0.125, 0.875], [0.25, 0.75], [0.625, 0.375]],
    [0, 0, 1, 1],
    AGE_AND_TOWN,
    [[1, 1], [2.5, 0], [3, 1], [np.nan, 1]],
)


def test_content_of_a_report():
    page = page_of(*TWO)
    names = TWO[0]
    assert page == EvaluationPage(
        title="Evaluation of <label>: test split",
        facts=(
            ("accuracy", "0.5000"),
            ("loss", "0.5000"),
            ("examples", "4"),
            ("macro F1", "0.5000"),
            ("ROC AUC", "0.5000"),
            ("average precision", "0.5833"),
            ("calibration error", "0.5000"),
        ),
        confusion=heatmap("Confusion matrix", names, names, [[1, 1], [1, 1]]),
        confusions=Table(
            ("true class", "predicted class", "rows", "share of the true class"),
            ((names[0], names[1], "1", "50.0%"), (names[1], names[0], "1", "50.0%")),
        ),
        classes=Table(
            ("class", "rows", "precision", "recall", "F1", "ROC AUC", "average precision"),
            (
                (names[0], "2", "0.500", "0.500", "0.500", "0.500", "0.750"),
                (names[1], "2", "0.500", "0.500", "0.500", "0.500", "0.583"),
            ),
            2,
        ),
        roc=line_chart(
            "ROC curves",
            "false positive rate",
            "recall",
            {names[1]: [(0, 0), (0.5, 0), (0.5, 0.5), (0.5, 1), (1, 1)], "chance": [(0, 0), (1, 1)]},
            dashed=["chance"],
        ),
        precision_recall=line_chart(
            "Precision-recall curves",
            "recall",
            "precision",
            {names[1]: [(0, 1), (0, 0), (0.5, 0.5), (1, 2 / 3), (1, 0.5)]},
        ),
        curves="The positive class is <b>größe</b>.",
        exactness="ROC AUC and average precision are exact: scikit-learn computes them from all rows.",
        calibration=line_chart(
            "Calibration",
            "mean probability of the predicted class",
            "accuracy",
            {
                "model": [(0.625, 0.0), (0.75, 1.0), (0.875, 0.0)],
                "perfect calibration": [(0.0, 0.0), (1.0, 1.0)],
            },
            dashed=["perfect calibration"],
        ),
        certainty=histogram(
            "Probability of the predicted class",
            [i / 10 for i in range(11)],
            {"right": [0, 0, 0, 0, 0, 0, 0, 2, 0, 0], "wrong": [0, 0, 0, 0, 0, 0, 1, 0, 1, 0]},
            x="probability",
        ),
        pictures=(),
        mistakes=Table(
            ("row", "true class", "P(true class)", "predicted class", "P(predicted class)", "<i>age", "town"),
            (
                ("1", names[0], "12.5%", names[1], "87.5%", "2.5", ""),
                ("3", names[1], "37.5%", names[0], "62.5%", "", "Ulm"),
            ),
        ),
        mistake_count=2,
        signature=SIGNATURE_TABLE,
    )


def test_the_page_shows_the_content_literally():
    content = page_of(*TWO)
    page = Page(render_page("evaluate.html", content))
    charts = (content.confusion, content.roc, content.precision_recall, content.calibration, content.certainty)
    tables = [
        *(chart.table for chart in charts),
        content.confusions,
        content.classes,
        content.mistakes,
        SIGNATURE_TABLE,
    ]
    assert sorted(page.tables) == sorted([list(table.columns), *map(list, table.rows)] for table in tables)
    assert page.texts.count("Evaluation of <label>: test split") == 2  # The title and the heading.
    assert [element["data-figure"] for element in page.all("div") if "data-figure" in element] == [
        chart.summary for chart in charts
    ]


def test_a_class_without_rows_or_predictions_has_dashes():
    page = page_of(("a", "b"), [[1, 0], [0.9, 0.1]], [0, 0])
    assert page.classes.rows == (
        ("a", "2", "1.000", "1.000", "1.000", "—", "1.000"),
        ("b", "0", "—", "—", "—", "—", "—"),
    )
    assert [name for name, _ in page.facts] == ["accuracy", "loss", "examples", "macro F1", "calibration error"]
    assert (page.roc, page.precision_recall) == (None, None)
    text = render_page("evaluate.html", page)
    assert "There is no curve: the split has rows of one class alone." in text
    assert "No row was classified wrongly." in text
    assert "Most frequent confusions" not in text


def test_the_page_has_the_error_of_scores_that_are_not_exact():
    content = page_of(*TWO, memory=1, most_cells=1)
    facts = dict(content.facts)
    # All four rows are in one cell. Its ROC AUC is 0 to 1, its average precision 1 - log(2) to 1.
    assert (facts["ROC AUC"], facts["average precision"]) == ("0.5000 ± 0.5001", "0.6534 ± 0.3467")
    assert "within 0.5001" in content.exactness
    assert content.exactness in Page(render_page("evaluate.html", content)).texts


def test_images_are_shown_with_captions():
    images = [[0, 255, 0, 0], [0, 0, 255, 0]]
    content = page_of(("cat", "<dog>"), [[0.25, 0.75], [1, 0]], [0, 0], PICTURES, images)
    assert content.mistakes is None
    (picture,) = content.pictures
    assert picture.caption == "row 0: cat (25.0%), predicted <dog> (75.0%)"
    page = Page(render_page("evaluate.html", content))
    assert picture.caption in page.texts
    assert [image["src"] for image in page.all("img")] == [
        f"data:image/png;base64,{base64.b64encode(picture.png).decode()}"
    ]


def test_the_hardest_of_many_classes_have_curves():
    generator = np.random.default_rng(0)
    labels = np.arange(200) % 10
    probabilities = generator.uniform(size=(200, 10))
    # The classes 7, 8 and 9 are the easiest.
    probabilities[np.arange(200), labels] += np.where(labels > 6, 9, 0)
    page = page_of(tuple("abcdefghij"), probabilities / probabilities.sum(axis=1, keepdims=True), labels)
    assert [entry.label for entry in page.roc.legend] == [*"abcdefg", "chance"]
    assert page.curves.endswith("The 7 classes with the lowest average precision are shown.")


@pytest.mark.takes(12)
@pytest.mark.parametrize("classes", [40, 1000])
def test_a_page_stays_small_whatever_it_shows(classes):
    names = tuple(f"a rather long name of class {index}" for index in range(classes))
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.full(classes, 0.1), 3000)
    columns = tuple(Column(f"column {i}", "number", "float32") for i in range(2000))
    labels, features = generator.integers(0, classes, 3000), np.ones((3000, 2000))
    content = page_of(names, probabilities, labels, columns, features)
    assert (content.confusion is None) == (classes > 40)
    assert len(content.confusions.rows) == 10
    assert len(content.mistakes.columns) == 17
    page = render_page("evaluate.html", content)
    assert len(page.encode()) < 2_000_000


def pixels_of(png):
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize(
    ("features", "shape", "expected"),
    [
        ([0, 8, 16, np.nan], (2, 2), [[0, 127], [255, 0]]),
        ([-1, 1, 1, 1], (2, 2, 1), [[0, 255], [255, 255]]),
        ([5, 5, 5, 5], (1, 4), [[0, 0, 0, 0]]),
        ([0, 51, 102, 153, 204, 255], (1, 2, 3), [[[0, 51, 102], [153, 204, 255]]]),
    ],
)
def test_pictures(features, shape, expected):
    assert is_image(shape)
    np.testing.assert_array_equal(pixels_of(row_png(np.array(features, np.float32), shape)), expected)


def test_large_pictures_lose_lines():
    assert pixels_of(row_png(np.zeros(200 * 100 * 3, np.float32), (200, 100, 3))).shape == (67, 34, 3)


@pytest.mark.parametrize("shape", [(64,), (8, 4, 2), (1, 4, 4, 4)])
def test_rows_that_are_no_pictures(shape):
    assert not is_image(shape)
