import base64
import io

import numpy as np
import pytest
from pages import Page
from PIL import Image

from kfp_distributed.components.evaluate.report import (
    ClassScores,
    ConfusionCell,
    EvaluationPage,
    Mistake,
    evaluation_page,
    row_png,
)
from kfp_distributed.components.evaluate.scores import Scores
from kfp_distributed.reports.render import render_page

SCORES = Scores(("a & b", "<b>größe</b>"), np.array([[2000, 0], [750, 250]]), 0.5)
NEVER_PREDICTED = Scores(("a", "b"), np.array([[3, 0], [0, 0]]), 0.5)
MISTAKES = [Mistake("row 7: <a>, taken for b", b"a PNG file"), Mistake("row 9: 'b', taken for <a>")]


def page_of(title, scores, mistakes):
    return Page(render_page("evaluate.html", evaluation_page(title, scores, mistakes)))


def test_content_of_a_report():
    assert evaluation_page("label: test split", SCORES, MISTAKES) == EvaluationPage(
        title="label: test split",
        accuracy="0.7500",
        loss="0.5000",
        rows="3,000",
        predicted=("a & b", "<b>größe</b>"),
        classes=(
            ClassScores("a & b", "2,000", "0.727", "1.000", (ConfusionCell(2000, 1.0), ConfusionCell(0, 0.0))),
            ClassScores("<b>größe</b>", "1,000", "1.000", "0.250", (ConfusionCell(750, 0.87), ConfusionCell(250, 0.5))),
        ),
        mistakes=tuple(MISTAKES),
    )


def test_a_class_without_rows_or_predictions_has_dashes():
    assert evaluation_page("", NEVER_PREDICTED, []).classes[1] == ClassScores(
        "b", "0", "—", "—", (ConfusionCell(0, 0.0), ConfusionCell(0, 0.0))
    )


def test_the_page_shows_the_content_literally():
    page = page_of("<label>: test split", SCORES, MISTAKES)
    assert page.tables == [
        [
            ["true ╲ predicted", "rows", "precision", "recall", "a & b", "<b>größe</b>"],
            ["a & b", "2,000", "0.727", "1.000", "2000", "0"],
            ["<b>größe</b>", "1,000", "1.000", "0.250", "750", "250"],
        ]
    ]
    assert page.texts.count("<label>: test split") == 2  # The title and the heading.
    assert "accuracy 0.7500, loss 0.5000, 3,000 rows" in page.texts
    assert [mistake.caption for mistake in MISTAKES] == page.texts[-2:]
    assert [cell["style"] for cell in page.all("td") if "style" in cell] == [
        "--heat:1.0",
        "--heat:0.0",
        "--heat:0.87",
        "--heat:0.5",
    ]
    sources = [image["src"] for image in page.all("img")]
    assert sources == [f"data:image/png;base64,{base64.b64encode(b'a PNG file').decode()}"]


def test_a_model_without_mistakes_has_no_pictures():
    page = page_of("", NEVER_PREDICTED, [])
    assert "First mistakes" not in page.texts
    assert page.all("figure") == []


def test_many_classes_have_no_matrix():
    names = tuple(f"class{index}" for index in range(101))
    (table,) = page_of("", Scores(names, np.eye(101, dtype=int), 0.5), []).tables
    assert [len(row) for row in table] == [4] * 102


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
    np.testing.assert_array_equal(pixels_of(row_png(np.array(features, np.float32), shape)), expected)


def test_large_pictures_lose_lines():
    assert pixels_of(row_png(np.zeros(200 * 100 * 3, np.float32), (200, 100, 3))).shape == (67, 34, 3)


@pytest.mark.parametrize("shape", [(64,), (8, 4, 2), (1, 4, 4, 4)])
def test_rows_that_are_no_pictures(shape):
    assert row_png(np.zeros(64, np.float32), shape) == b""
