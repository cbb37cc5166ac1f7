"""The HTML overview."""

import base64
import io

import numpy as np
import pytest
from pages import Page
from PIL import Image

from kfp_distributed.components.prepare_data.report.duplicates import Duplicates
from kfp_distributed.components.prepare_data.report.leakage import Predictor
from kfp_distributed.components.prepare_data.report.overview import (
    ClassImages,
    OverviewPage,
    overview_page,
    sample_images,
)
from kfp_distributed.components.prepare_data.report.profile import Profile
from kfp_distributed.components.prepare_data.report.sample import RowSample
from kfp_distributed.components.summaries.moments import Moments
from kfp_distributed.reports.charts import bar_chart, histogram
from kfp_distributed.reports.page import render_page
from kfp_distributed.reports.parts import Table
from kfp_distributed.storage.dataset import Column, DatasetManifest, Label, Shard

pytestmark = pytest.mark.figures

COLUMNS = (Column("<b>age", "number", "float32"), Column("town", "category", "int32", vocabulary=("Ulm",)))


def manifest_of(split, columns, classes, counts):
    shards = (Shard("part.parquet", sum(counts), 1, "0"),)
    return DatasetManifest(split, columns, Label("kind", classes), shards, counts, 0, "a&b.csv")


def splits_of(columns, classes):
    rows = {"train": 1600, "validation": 200, "test": 200}
    return {split: manifest_of(split, columns, classes, (n, *[0] * (len(classes) - 1))) for split, n in rows.items()}


def profile_of(features, labels, moments=None, predictors=(), duplicates=(), total=1600):
    sample = RowSample(np.asarray(features, np.float32), np.asarray(labels, np.int32), total)
    return Profile(moments or {}, sample, predictors, duplicates)


def moments_of(numbers, features=1):
    moments = Moments(features)
    moments.add(np.array(numbers, np.float32))
    return moments


PROFILE = profile_of(
    [[1, 1], [4, 0], [np.nan, 1]],
    [0, 1, 1],
    {"<b>age": moments_of([1, 4, np.nan])},
    [Predictor("town", 0.95, 0.5), Predictor("<b>age", 0.4, 0.5)],
    [Duplicates("test", "train", 1200, 0.123, is_exact=False)],
)


def test_content_of_an_overview():
    page = overview_page(splits_of(COLUMNS, ("yes", "no")), PROFILE, {"<b>age": 500, "town": 0}, ["a warning"])
    assert page == OverviewPage(
        title="a&b.csv",
        facts=(
            ("rows", "2,000"),
            ("train rows", "1,600"),
            ("validation rows", "200"),
            ("test rows", "200"),
            ("inputs", "2"),
            ("task", "classification"),
            ("classes", "2"),
            ("rows per class", "0 to 2,000"),
        ),
        warnings=("a warning",),
        classes=bar_chart(
            "Rows of each class of kind",
            ("yes", "no"),
            {"train": (1600, 0), "validation": (200, 0), "test": (200, 0)},
            x="class",
        ),
        class_count=2,
        images=(),
        rows=Table(("kind", "<b>age", "town"), (("yes", "1", "Ulm"), ("no", "4", ""), ("no", "", "Ulm"))),
        missing=bar_chart("Missing values", ["<b>age"], {"missing": [25.0]}, x="column", y="% of all rows"),
        predictors=bar_chart(
            "Columns that predict the label best",
            ["town", "<b>age"],
            {"error reduction": [0.9, 0.0]},
            x="column",
            y="error reduction",
            y_end=1.0,
        ),
        duplicates=Table(
            ("rows of", "with the inputs of a row of", "rows", "share"), (("test", "train", "1,200", "12.3%"),)
        ),
        histograms=(
            histogram("<b>age", [0.5, 1.5, 2.5, 3.5, 4.5], {"yes": [1, 0, 0, 0], "no": [0, 0, 0, 1]}, y="rows"),
        ),
        lengths=(),
        number_columns=1,
        columns=Table(
            ("input", "kind", "missing", "mean", "standard deviation", "minimum", "maximum"),
            (("<b>age", "number", "500", "2.5", "1.5", "1", "4"), ("town", "category, 1 values", "0")),
            2,
        ),
        sample_rows=3,
        training_rows=1600,
        duplicates_are_exact=False,
    )


def test_the_distribution_of_a_label_has_the_digits_of_64_bit_floats():
    """32-bit floats are 128 apart at 1.7e9."""
    labels = 1.7e9 + np.linspace(0, 3, 31)
    sample = RowSample(np.zeros((31, 1), np.float32), labels, 31)
    shards, label = (Shard("part.parquet", 31, 1, "0"),), Label("time", (), "regression", 1.7e9, 1.0)
    splits = {"train": DatasetManifest("train", COLUMNS[:1], label, shards, (), 0, "times.csv")}
    chart = overview_page(splits, Profile({}, sample, (), ()), {}).classes
    counts = [int(row[1]) for row in chart.table.rows]
    assert (len(counts), sum(counts), max(counts)) == (30, 31, 2)


def test_the_page_shows_the_content_literally():
    splits = splits_of(COLUMNS, ("<i>größe", "no"))
    content = overview_page(splits, PROFILE, {"<b>age": 500}, ["column '<b>age' & others"])
    page = Page(render_page("prepare_data.html", content))
    for table in (content.classes.table, content.rows, content.duplicates, content.histograms[0].table):
        assert [list(table.columns), *map(list, table.rows)] in page.tables
    assert page.texts.count("a&b.csv") == 2  # The title and the heading.
    assert "column '<b>age' & others" in page.texts
    text = " ".join(" ".join(page.texts).split())
    assert "A column with at least 0.9 is in the warnings." in text
    assert "leaves at most 131,072 different rows" in text
    assert "3 training rows, drawn at random from 1,600" in text


def test_a_page_without_problems_says_so():
    profile = profile_of([[1, 1], [2, 1]], [0, 1], duplicates=[Duplicates("test", "train", 0, 0.0)], total=2)
    page = Page(render_page("prepare_data.html", overview_page(splits_of(COLUMNS, ("a", "b")), profile, {"town": 0})))
    text = " ".join(" ".join(page.texts).split())
    for sentence in ("None.", "No value is missing.", "Not measured: no column of numbers", "all 2 training rows"):
        assert sentence in text
    assert "Estimated" not in text


def test_a_constant_column_has_no_deviation():
    columns = (Column("x", "number", "float32"),)
    profile = profile_of([[7], [7]], [0, 1], {"x": moments_of([7, 7])})
    page = overview_page(splits_of(columns, ("a", "b")), profile, {"x": 0})
    assert page.columns.rows == (("x", "number", "0", "7", "0", "7", "7"),)


def test_the_statistics_of_a_matrix_are_ranges_over_its_elements():
    columns = (Column("x", "tensor", "float32", (3,)),)
    moments = moments_of([[1, 100, np.nan], [3, 500, np.nan]], 3)
    profile = profile_of([[1, 100, np.nan], [3, 500, np.nan]], [0, 1], {"x": moments})
    page = overview_page(splits_of(columns, ("a", "b")), profile, {"x": 2})
    assert page.columns.rows == (("x", "tensor 3", "2", "2 to 300", "1 to 200", "1", "500"),)


def test_a_page_with_images():
    columns = (Column("image", "tensor", "uint8", (2, 2)),)
    profile = profile_of([[0, 0, 0, 0], [255] * 4], [0, 0])
    content = overview_page(splits_of(columns, ("a", "b")), profile, {"image": 0})
    assert content.rows is None
    assert [row.name for row in content.images] == ["a"]
    page = Page(render_page("prepare_data.html", content))
    sources = [image["src"] for image in page.all("img")]
    assert sources == [f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in content.images[0].images]
    assert {image["alt"] for image in page.all("img")} == {"image of class a"}


@pytest.mark.takes(2)
def test_a_page_stays_small_whatever_it_shows():
    generator = np.random.default_rng(0)
    classes = tuple(f"class {i}" for i in range(1000))
    noise = generator.integers(0, 256, (2000, 40 * 40 * 3))
    images = (Column("image", "tensor", "uint8", (40, 40, 3)),)
    numbers = tuple(Column(f"a rather long name of column {i}", "number", "float32") for i in range(2000))
    few_classes = ("a", "b", "c", "d", "e")
    for columns, names, labels, features in [
        (images, classes, np.arange(2000) % 1000, noise),
        (numbers, few_classes, np.arange(200) % 5, generator.normal(size=(200, 2000))),
    ]:
        ranking = [Predictor(column.name, 0.5, 0.2) for column in columns]
        moments = {column.name: moments_of([-1 / 3, 1 / 3]) for column in columns}
        missing = {column.name: 7 for column in columns}
        content = overview_page(splits_of(columns, names), profile_of(features, labels, moments, ranking), missing)
        page = render_page("prepare_data.html", content)
        assert len(page.encode()) < 2_000_000
    assert "24 of 2,000 columns of numbers" in page
    assert Page(page).tables[-1][-1] == ["…", "2,000 in all"]


def image_profile(values, labels):
    return profile_of(np.reshape(values, (len(values), -1)), labels).sample


def test_numbers_become_grey_images():
    values = np.array([[[0.5, -0.5], [np.nan, 0]], [[1.5, 0], [0, 0]]])
    manifest = manifest_of("train", (Column("image", "tensor", "float32", (2, 2)),), ("a", "b"), (1, 1))
    images = sample_images(image_profile(values, [0, 1]), manifest)
    assert [row.name for row in images] == ["a", "b"]
    pixels = [np.asarray(Image.open(io.BytesIO(file))).tolist() for row in images for file in row.images]
    assert pixels == [[[127, 0], [0, 63]], [[255, 63], [63, 63]]]


def test_few_images_of_few_classes_are_shown():
    manifest = manifest_of("train", (Column("image", "tensor", "uint8", (2, 2)),), tuple("abcdefghijkl"), (8,) * 12)
    images = sample_images(image_profile(np.zeros((96, 4)), np.arange(96) % 12), manifest)
    assert [(row.name, len(row.images)) for row in images] == [(name, 6) for name in "abcdefghij"]


def test_images_without_any_number_are_left_out(recwarn):
    manifest = manifest_of("train", (Column("image", "tensor", "float32", (2, 2)),), ("a", "b"), (1, 1))
    assert sample_images(image_profile(np.full((2, 4), np.nan), [0, 1]), manifest) == ()
    assert list(recwarn) == []


def test_rows_that_are_not_images_have_no_thumbnails():
    manifest = manifest_of("train", (Column("age", "number", "float32"),), ("a", "b"), (1, 1))
    assert sample_images(image_profile([[1], [2]], [0, 1]), manifest) == ()


def test_classes_without_sampled_rows_have_no_images():
    manifest = manifest_of("train", (Column("image", "tensor", "uint8", (1, 2)),), ("a", "b"), (1, 1))
    images = sample_images(image_profile([[0, 1]], [1]), manifest)
    assert [row.name for row in images] == ["b"]
    assert images == (ClassImages("b", images[0].images),)
