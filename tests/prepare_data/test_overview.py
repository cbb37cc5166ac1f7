"""The HTML page."""

import io
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from kfp_distributed.components.prepare_data.overview import render_overview, sample_images
from kfp_distributed.components.prepare_data.split import Moments
from kfp_distributed.storage.dataset import Column, DatasetManifest, Label, Shard


def manifest_of(split, columns, classes, counts):
    shards = (Shard("part.parquet", sum(counts), 1, "0"),)
    return DatasetManifest(split, columns, Label("kind", classes), shards, counts, 0, "a&b.csv")


def splits_of(columns, classes):
    rows = {"train": 1600, "validation": 200, "test": 200}
    return {split: manifest_of(split, columns, classes, (n, *[0] * (len(classes) - 1))) for split, n in rows.items()}


def text_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)).strip()


def test_a_page_of_columns_says_the_counts_and_the_statistics_and_escapes_names():
    columns = (Column("<b>age", "number", "float32"), Column("town", "category", "int32", vocabulary=("Ulm",)))
    page = render_overview(splits_of(columns, ("<i>yes", "no")), {"<b>age": Moments(9, 1, 2.5, 9, 1, 4)}, {})
    assert text_of(page) == (
        "a&amp;b.csv class train 1,600 validation 200 test 200 &lt;i&gt;yes 1600 200 200 no 0 0 0 "
        "input missing mean deviation lowest highest "
        "&lt;b&gt;age number 1 2.5 1 1 4 town category"
    )
    assert page.count("<meter max=2000 value=2000>") == 1
    assert not re.search(r"(src|href)=\"(?!data:)", page)


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
    page = render_overview({"train": train}, {"image": Moments()}, images)
    assert len(page.encode()) < 300_000
    assert page.count("data:image/png;base64,") == 60
    assert "class 49 " in text_of(page)
    assert "class 50 " not in text_of(page)
    assert "… 100 in all" in text_of(page)


def test_numbers_become_grey_images(tmp_path):
    values = np.array([[[0.5, -0.5], [np.nan, 0]], [[1.5, 0], [0, 0]]], np.float32)
    images_file(tmp_path, values, [0, 1])
    manifest = manifest_of("train", (Column("image", "tensor", "float32", (2, 2)),), ("a", "b"), (1, 1))
    pixels = {
        name: [np.asarray(Image.open(io.BytesIO(file))).tolist() for file in files]
        for name, files in sample_images(tmp_path, manifest).items()
    }
    assert pixels == {"a": [[[127, 0], [0, 63]]], "b": [[[255, 63], [63, 63]]]}


def test_rows_that_are_no_images_have_none_nor_have_classes_that_were_not_seen(tmp_path):
    images_file(tmp_path, np.zeros((2, 4, 4), np.uint8), [15, 15])
    columns, classes = (Column("image", "tensor", "uint8", (4, 4)),), tuple(map(str, range(16)))
    assert sample_images(tmp_path, manifest_of("train", columns, classes, (0,) * 15 + (2,))) == {}
    manifest = manifest_of("train", (Column("age", "number", "float32"),), ("a", "b"), (1, 1))
    assert sample_images(tmp_path, manifest) == {}
