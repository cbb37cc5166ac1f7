"""Columns of images in the Arrow and Parquet files of the library `datasets` of Hugging Face.

The feature is written in the form that the library documents: a struct of the content and the path of a file, and
`{"_type": "Image"}` in the metadata of the schema. See test_huggingface.py for the other metadata.
"""

import io
import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from prepare_data.test_huggingface import save_to_disk
from prepare_data.test_sources import category, number, opened, rows_of

from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.tables.open_source import open_source
from kfp_distributed.storage.dataset import Column

pytestmark = pytest.mark.takes(5)

IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
FEATURES = {
    "image": {"_type": "Image"},
    "kind": {"names": ["cat", "dog"], "_type": "ClassLabel"},
}


def encoded(mode="L", size=(4, 2), colour=0, kind="PNG", **options):
    """Return the content of an image file of one colour."""
    data = io.BytesIO()
    Image.new(mode, size, colour).save(data, kind, **options)
    return data.getvalue()


def images(*contents):
    """Return a column of images, by their contents; None for a missing image, a text for one that has only a path."""
    values = [
        None if content is None else {"bytes": None, "path": content} if isinstance(content, str) else
        {"bytes": content, "path": "1.png"}
        for content in contents
    ]  # fmt: skip
    return pa.array(values, IMAGE)


@pytest.fixture(params=["parquet", "arrow"])
def saved(request, tmp_path):
    """Write the files of a dataset: saved([*images], [*class numbers], features=..., **columns) -> its folder."""

    def save(*parts, name="saved", features=FEATURES, **options):
        if request.param == "arrow":
            return save_to_disk(tmp_path / name, *parts, features=features)
        (tmp_path / name).mkdir()
        for index, columns in enumerate(parts):
            metadata = {"huggingface": json.dumps({"info": {"features": features}})}
            table = pa.table(columns).replace_schema_metadata(metadata)
            pq.write_table(table, tmp_path / name / f"part-{index}.parquet", **options)
        return tmp_path / name

    return save


def of_classes(*contents):
    return {"image": images(*contents), "kind": [index % 2 for index in range(len(contents))]}


def test_images_are_decoded_into_the_form_of_the_first_one(saved):
    folder = saved(
        of_classes(encoded("RGB", colour=(1, 2, 3)), encoded("L", (8, 8), 7)), of_classes(encoded("P", (3, 3)))
    )
    columns, rows = rows_of(folder)
    assert columns == (Column("image", "tensor", "uint8", (2, 4, 3)),)
    assert rows == {"kind": ["cat", "dog", "cat"], "image": [[1, 2, 3] * 8, [7] * 24, [0] * 24]}


def test_images_get_image_size(saved):
    folder = saved(of_classes(encoded(colour=9), encoded(size=(8, 8), colour=7)))
    assert rows_of(folder, Options("kind", image_size=(1, 2))) == (
        (Column("image", "tensor", "uint8", (2, 1, 1)),),
        {"kind": ["cat", "dog"], "image": [[9, 9], [7, 7]]},
    )


def contents_of(count):
    """Return images of noise: of several sizes, grey and in colour, PNG and JPEG."""
    generator = np.random.default_rng(0)
    contents = []
    for index in range(count):
        # No row with colour is among the first 100.
        channels = 3 if index > 100 and index % 3 == 0 else 1
        height, width = (28, 28) if index < 110 else (20 + index % 7, 28)
        pixels = generator.integers(0, 256, (height, width, channels), np.uint8).squeeze()
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, "JPEG" if index % 5 == 0 else "PNG")
        contents.append(data.getvalue())
    return contents


def content_of(folder):
    """Return the manifests and the rows of all shards of a prepared dataset, without the name of the source."""
    manifests = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/dataset.json")}
    keys = ("columns", "label", "rows", "class_counts")
    tables = {
        str(path.relative_to(folder)): pq.read_table(path).to_pydict() for path in sorted(folder.rglob("*.parquet"))
    }
    return {split: {key: manifest.get(key) for key in keys} for split, manifest in manifests.items()}, tables


def test_a_dataset_of_images_and_classes_is_prepared_as_the_same_folder_of_images(saved, file, run, tmp_path, capsys):
    contents = contents_of(240)
    for index, content in enumerate(contents):
        folder = file(f"photos/{'cat' if index < 120 else 'dog'}/{index:03}.image", content).parents[1]
    run(folder, "of-folder", shards=2, label_column="kind")
    lines = [line for line in capsys.readouterr().out.splitlines() if " images " in line]
    half = [{"image": images(*contents[i : i + 120]), "kind": [i // 120] * 120} for i in (0, 120)]
    run(saved(*half), "of-dataset", shards=2, label_column="kind")
    assert [line for line in capsys.readouterr().out.splitlines() if " images " in line] == lines
    assert len(lines) == 2
    manifests, tables = content_of(tmp_path / "of-dataset")
    assert (manifests, tables) == content_of(tmp_path / "of-folder")
    assert manifests["train"]["columns"][0]["shape"] == [28, 28, 3]
    assert sum(len(table["image"]) for table in tables.values()) == 240


def test_images_beside_other_images_and_numbers(saved):
    features = {**FEATURES, "mask": {"_type": "Image"}}
    rows = {
        "image": images(encoded("RGB", (2, 1), (1, 2, 3)), encoded("L", (2, 1), 4)),
        "age": [4.5, None],
        "mask": images(encoded("L", (1, 1), 9), encoded("1", (3, 3), 1)),
        "town": ["Ulm", None],
        "kind": [1, 0],
    }
    source, batches = opened(saved(rows, features=features))
    assert source.columns == (
        Column("image", "tensor", "uint8", (1, 2, 3)),
        number("age"),
        Column("mask", "tensor", "uint8", (1, 1, 1)),
        category("town"),
    )
    assert pa.Table.from_batches(batches).to_pydict() == {
        "kind": ["dog", "cat"],
        "image": [[1, 2, 3] * 2, [4] * 6],
        "age": [4.5, None],
        "mask": [[9], [255]],
        "town": ["Ulm", None],
    }
    assert [line.split(",")[0] for line in source.late_notes()] == [
        "column 'image': 1 of 2 images are grey and are stored in colour"
    ]


def test_images_that_cannot_be_used_are_wrong_rows(saved, run):
    good, cut = encoded(size=(64, 64)), encoded("RGB", (64, 64))[:-30]
    folder = saved(of_classes(None, "far/2.png", b"no image", cut, encoded("I;16"), *[good] * 50), of_classes(None))
    name = sorted(path.name for path in folder.iterdir() if path.suffix in (".parquet", ".arrow"))
    with pytest.raises(ValueError, match="these are 6 rows that cannot be used") as error:
        run(folder, label_column="kind")
    assert [line for line in str(error.value).splitlines() if line.startswith("row ")] == [
        f"row 1 of {name[0]}: 'image' is missing: add it, or leave the row out",
        f"row 2 of {name[0]}: 'image' has only the path 'far/2.png' of an image file, not its content: save the "
        "dataset with Dataset.save_to_disk, which adds the content, where the file is",
        f"row 3 of {name[0]}: 'image' cannot be read: it is not an image: remove it, or convert it to PNG or JPEG",
        f"row 4 of {name[0]}: 'image' cannot be read: image file is truncated",
        f"row 5 of {name[0]}: 'image' cannot be read: it has more than 8 bits per color: convert it to 8 bits",
        f"row 1 of {name[1]}: 'image' is missing: add it, or leave the row out",
    ]


def test_images_that_cannot_be_used_are_skipped_and_counted(saved, run, capsys):
    good = [encoded(colour=index) for index in range(100)]
    folder = saved(of_classes(None, b"no image", *good, "far.png"))
    manifests = run(folder, label_column="kind", on_bad_row="skip", shards=1)
    assert sum(manifest.rows for manifest in manifests.values()) == 100
    assert "left out 3 rows that cannot be used, such as row 1 of" in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["refuse", "skip"])
def test_a_column_without_an_image_that_can_be_used_is_refused(saved, run, policy):
    with pytest.raises(ValueError, match=r"row 1 of .*: 'image' is missing") as error:
        run(saved(of_classes(None, b"no image")), label_column="kind", on_bad_row=policy)
    assert "'image' has no image that can be used" in str(error.value) or policy == "refuse"


def test_a_dropped_column_of_images_is_not_read(saved):
    rows = of_classes(None, b"no image") | {"age": [1, 2]}
    assert rows_of(saved(rows), Options("kind", drop_columns=("image",)))[0] == (number("age"),)


def test_without_a_label_images_stay_as_they_are(saved, tmp_path):
    content = encoded()
    folder = saved({"image": images(content, None)})
    source = open_source(folder, Options(""), tmp_path, task="none")
    assert [column.kind for column in source.columns] == ["kept"]
    rows = [row for _, (batch, _) in source.batches() for row in batch["image"].to_pylist()]
    assert rows == [{"bytes": content, "path": "1.png"}, None]


def test_a_later_file_without_images_is_refused(saved):
    folder = saved(of_classes(encoded()), {"image": [7], "kind": [0]})
    with pytest.raises(ValueError, match="column 'image' has values of type int64, but images in other files"):
        rows_of(folder)


def test_an_image_column_of_a_split_has_the_form_of_the_first_source(saved, run, capsys):
    main = saved(of_classes(*[encoded(colour=index) for index in range(40)]), name="main")
    classes = {"kind": FEATURES["kind"]}
    test = saved(
        of_classes(*[encoded("RGB", (8, 8), (index, 0, 0)) for index in range(3)]), name="test", features=classes
    )
    manifests = run(main, label_column="kind", sources={"test": str(test)}, shards=1)
    assert manifests["test"].columns[0].shape == manifests["train"].columns[0].shape == (2, 4, 1)
    assert "3 of 3 images have colour and are stored in grey" in capsys.readouterr().out


def test_each_image_is_decoded_once(saved, monkeypatch):
    folder = saved(*[of_classes(*[encoded(colour=i) for i in range(100)])] * 4)
    opened_images = Counter()
    real = Image.open
    monkeypatch.setattr(Image, "open", lambda source: (opened_images.update(["image"]), real(source))[1])
    source, batches = opened(folder)
    assert sum(batch.num_rows for batch in batches) == 400
    # The headers of 100 of them are read before.
    assert opened_images["image"] == 400 + 100
    assert source.expected_bytes >= 400 * 8


def test_large_images_are_decoded_in_order(saved):
    folder = saved(of_classes(*[encoded("RGB", (200, 150), (index, 0, 0)) for index in range(60)]))
    rows = rows_of(folder, Options("kind", image_size=(1, 1)))[1]
    assert [pixel[0] for pixel in rows["image"]] == [*range(60)]


def test_batches_are_bounded_by_the_decoded_and_by_the_encoded_bytes(saved, tmp_path):
    generator = np.random.default_rng(0)
    contents = []
    for _ in range(60):
        data = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (400, 400, 3), np.uint8)).save(data, "PNG", compress_level=0)
        contents.append(data.getvalue())
    folder = saved(of_classes(*contents))
    source = open_source(folder, Options("kind"), tmp_path)
    assert max(batch.nbytes for _, (batch, _) in source.batches()) < 2**22
    kept = open_source(folder, Options(""), tmp_path, task="none")
    assert max(batch.nbytes for _, (batch, _) in kept.batches()) < 2**24
