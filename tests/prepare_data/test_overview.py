"""The HTML page."""

import base64
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pages import Page
from PIL import Image

from kfp_distributed.components.prepare_data.overview import (
    ClassRow,
    OverviewPage,
    overview_page,
    sample_images,
)
from kfp_distributed.components.prepare_data.split import Moments
from kfp_distributed.reports.parts import Table
from kfp_distributed.reports.render import render_page
from kfp_distributed.storage.dataset import Column, DatasetManifest, Label, Shard


def manifest_of(split, columns, classes, counts):
    shards = (Shard("part.parquet", sum(counts), 1, "0"),)
    return DatasetManifest(split, columns, Label("kind", classes), shards, counts, 0, "a&b.csv")


def splits_of(columns, classes):
    rows = {"train": 1600, "validation": 200, "test": 200}
    return {split: manifest_of(split, columns, classes, (n, *[0] * (len(classes) - 1))) for split, n in rows.items()}


COLUMNS = (Column("<b>age", "number", "float32"), Column("town", "category", "int32", vocabulary=("Ulm",)))
MOMENTS = {"<b>age": Moments(9, 1, 2.5, 9, 1, 4)}


def test_content_of_an_overview():
    page = overview_page(splits_of(COLUMNS, ("yes", "no")), MOMENTS, {"no": [b"a PNG file"]}, ["a remark"])
    assert page == OverviewPage(
        title="a&b.csv",
        remarks=("a remark",),
        splits=("train 1,600", "validation 200", "test 200"),
        classes=(ClassRow("yes", (1600, 200, 200), 2000, ()), ClassRow("no", (0, 0, 0), 0, (b"a PNG file",))),
        class_count=2,
        most_rows=2000,
        inputs=Table(
            ("input", "", "missing", "mean", "deviation", "lowest", "highest"),
            (("<b>age", "number", "1", "2.5", "1", "1", "4"), ("town", "category")),
            2,
        ),
    )


def test_the_page_shows_the_content_literally():
    splits = splits_of(COLUMNS, ("<i>größe", "no"))
    content = overview_page(splits, MOMENTS, {"no": [b"a PNG file"]}, ["column '<b>age' & others"])
    page = Page(render_page("prepare_data.html", content))
    assert page.tables == [
        [
            ["class", "train 1,600", "validation 200", "test 200"],
            ["<i>größe", "1600", "200", "200", ""],
            ["no", "0", "0", "0", "", ""],
        ],
        [
            ["input", "", "missing", "mean", "deviation", "lowest", "highest"],
            ["<b>age", "number", "1", "2.5", "1", "1", "4"],
            ["town", "category"],
        ],
    ]
    assert page.texts.count("a&b.csv") == 2  # The title and the heading.
    assert "column '<b>age' & others" in page.texts
    assert page.all("meter") == [{"max": "2000", "value": "2000"}, {"max": "2000", "value": "0"}]
    sources = [image["src"] for image in page.all("img")]
    assert sources == [f"data:image/png;base64,{base64.b64encode(b'a PNG file').decode()}"]


def images_file(folder, values, labels):
    rows = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values[0].size)
    pq.write_table(pa.table({"image": rows, "kind": pa.array(labels, pa.int32())}), folder / "part.parquet")


def test_a_page_stays_small_whatever_it_shows(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (1000, 40, 40, 3), np.uint8)
    images_file(tmp_path, noise, np.arange(1000) % 100)
    columns = (Column("image", "tensor", "uint8", (40, 40, 3)),)
    classes = tuple(f"class {i}" for i in range(100))
    train = manifest_of("train", columns, classes, (10,) * 100)
    images = sample_images(tmp_path, train)
    assert {name: len(files) for name, files in images.items()} == {f"class {i}": 6 for i in range(10)}
    page = render_page("prepare_data.html", overview_page({"train": train}, {"image": Moments()}, images))
    assert len(page.encode()) < 300_000
    assert page.count("data:image/png;base64,") == 60
    classes = [row[0] for row in Page(page).tables[0]]
    assert classes == ["class", *(f"class {i}" for i in range(50)), "…"]
    assert Page(page).tables[0][-1] == ["…", "100 in all"]


def test_numbers_become_grey_images(tmp_path):
    values = np.array([[[0.5, -0.5], [np.nan, 0]], [[1.5, 0], [0, 0]]], np.float32)
    images_file(tmp_path, values, [0, 1])
    manifest = manifest_of("train", (Column("image", "tensor", "float32", (2, 2)),), ("a", "b"), (1, 1))
    pixels = {
        name: [np.asarray(Image.open(io.BytesIO(file))).tolist() for file in files]
        for name, files in sample_images(tmp_path, manifest).items()
    }
    assert pixels == {"a": [[[127, 0], [0, 63]]], "b": [[[255, 63], [63, 63]]]}


def test_images_without_any_number_are_left_out(tmp_path, recwarn):
    images_file(tmp_path, np.full((2, 2, 2), np.nan, np.float32), [0, 1])
    manifest = manifest_of("train", (Column("image", "tensor", "float32", (2, 2)),), ("a", "b"), (1, 1))
    assert sample_images(tmp_path, manifest) == {}
    assert list(recwarn) == []


def test_rows_that_are_no_images_have_none_nor_have_classes_that_were_not_seen(tmp_path):
    images_file(tmp_path, np.zeros((2, 4, 4), np.uint8), [15, 15])
    columns, classes = (Column("image", "tensor", "uint8", (4, 4)),), tuple(map(str, range(16)))
    assert sample_images(tmp_path, manifest_of("train", columns, classes, (0,) * 15 + (2,))) == {}
    manifest = manifest_of("train", (Column("age", "number", "float32"),), ("a", "b"), (1, 1))
    assert sample_images(tmp_path, manifest) == {}
