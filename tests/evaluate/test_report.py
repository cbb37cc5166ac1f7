import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from kfp_distributed.components.evaluate.report import draw_mistake, render_report
from kfp_distributed.components.evaluate.scores import Scores


class Table(HTMLParser):
    """The text of the cells, line by line."""

    def __init__(self, text):
        super().__init__()
        self.lines, self.in_cell = [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.lines.append([])
        self.in_cell = tag in ("th", "td")

    def handle_endtag(self, tag):
        self.in_cell = False

    def handle_data(self, data):
        if self.in_cell:
            self.lines[-1].append(data)


def test_table_and_escaping():
    scores = Scores(("a & b", "<b>bold</b>"), np.array([[2000, 0], [1000, 0]]), 0.5)
    text = render_report("<label>: test split", scores, ["<figure>first</figure>", "<figure>second</figure>"])
    assert Table(text).lines == [
        ["true ╲ predicted", "rows", "precision", "recall", "a & b", "<b>bold</b>"],
        ["a & b", "2,000", "0.667", "1.000", "2000", "0"],
        ["<b>bold</b>", "1,000", "—", "0.000", "1000", "0"],
    ]
    assert "accuracy 0.6667, loss 0.5000, 3,000 rows" in text
    assert "&lt;label&gt;: test split</h1>" in text
    assert text.endswith("</h2><figure>first</figure><figure>second</figure>\n")
    assert not re.search("<b>|<label>|http|<script", text)


def test_the_colour_says_the_share_of_the_true_class():
    text = render_report("", Scores(("a", "b"), np.array([[3, 1], [0, 0]]), 0.5), [])
    assert re.findall(r'120 220/(.*?)\)">(\d)', text) == [("0.52", "3"), ("0.30", "1"), ("0.00", "0"), ("0.00", "0")]


def test_many_classes_have_no_matrix():
    names = tuple(f"class{index}" for index in range(101))
    lines = Table(render_report("", Scores(names, np.eye(101, dtype=int), 0.5), [])).lines
    assert [len(line) for line in lines] == [4] * 102


def image_of(figure):
    data = re.search(r'src="data:image/png;base64,(.*?)">', figure)[1]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


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
    figure = draw_mistake(np.array(features, np.float32), shape, "row 7: <a>, taken for b")
    np.testing.assert_array_equal(image_of(figure), expected)
    assert figure.endswith("<figcaption>row 7: &lt;a&gt;, taken for b</figure>")


def test_large_pictures_lose_lines():
    assert image_of(draw_mistake(np.zeros(200 * 100 * 3, np.float32), (200, 100, 3), "")).shape == (67, 34, 3)


@pytest.mark.parametrize("shape", [(64,), (8, 4, 2), (1, 4, 4, 4)])
def test_rows_that_are_no_pictures(shape):
    assert draw_mistake(np.zeros(64, np.float32), shape, "row 7") == "<figure><figcaption>row 7</figure>"
