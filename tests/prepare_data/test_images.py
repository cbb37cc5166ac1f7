"""Reading of folders of images."""

import io
import re
from collections import Counter
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from pages import Page
from PIL import Image
from prepare_data.test_sources import LABELLED, rows_of

from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.scan.scanner import scan
from kfp_distributed.components.prepare_data.tables.open_source import open_source
from kfp_distributed.storage.dataset import Column


def image(file, name, mode="L", size=(4, 2), colour=None, **options):
    data = io.BytesIO()
    Image.new(mode, size, colour or 0).save(data, "PNG", **options)
    return file(name, data.getvalue())


def test_grey_images_have_the_size_of_the_first(file):
    image(file, "photos/dog/1.png", size=(8, 8), colour=9)
    folder = image(file, "photos/cat/1.png", colour=7).parents[1]
    file("photos/cat/.DS_Store", "x")
    file("photos/readme.txt", "x")
    assert rows_of(folder) == (
        (Column("image", "tensor", "uint8", (2, 4, 1)),),
        {"kind": ["cat", "dog"], "image": [[7] * 8, [9] * 8]},
    )


def test_images_are_read_in_the_order_of_their_folders_and_shuffled_in_the_shards(file, run, tmp_path):
    for label in "cab":
        for number in range(20):
            folder = image(file, f"photos/{label}/{number}.png", colour=number).parents[1]
    assert "".join(rows_of(folder)[1]["kind"]) == "a" * 20 + "b" * 20 + "c" * 20
    run(folder, shards=1)
    labels = pq.read_table(tmp_path / "out/train/part-00000.parquet")["label"].to_pylist()
    # Sorted labels change twice, and 48 shuffled ones in about two of three places.
    assert sum(first != second for first, second in pairwise(labels)) > 16


def test_images_get_the_form_of_the_first_one_or_image_size(file):
    image(file, "photos/cat/1.png", "RGB", colour=(1, 2, 3))
    folder = image(file, "photos/dog/1.png", size=(8, 8), colour=7).parents[1]
    assert rows_of(folder, Options("kind", image_size=(1, 1))) == (
        (Column("image", "tensor", "uint8", (1, 1, 3)),),
        {"kind": ["cat", "dog"], "image": [[1, 2, 3], [7, 7, 7]]},
    )
    assert rows_of(folder)[0][0].shape == (2, 4, 3)


@pytest.fixture
def notes(tmp_path):
    """Return the first two numbers of each line about a folder of images: notes(folder, image_size=None)."""

    def numbers_of_notes(folder, image_size=None):
        source = open_source(folder, Options("kind", image_size=image_size), tmp_path)
        assert len([*source.batches()]) == 1
        lines = source.late_notes()
        return [tuple(re.findall(r"[\d,]+", line)[:2]) for line in lines]

    return numbers_of_notes


def test_grey_images_are_stored_in_colour_if_any_image_has_colour(file, notes):
    image(file, "photos/cat/1.png", colour=7)
    image(file, "photos/cat/2.png", "1", colour=1)
    folder = image(file, "photos/dog/1.png", "P").parents[1]
    columns, rows = rows_of(folder)
    assert columns[0].shape == (2, 4, 3)
    assert [image[:3] for image in sorted(rows["image"])] == [[0] * 3, [7] * 3, [255] * 3]
    assert notes(folder) == [("2", "3")]
    (folder / "dog/1.png").unlink()
    image(file, "photos/dog/1.png", "LA")
    assert rows_of(folder)[0][0].shape == (2, 4, 1)


def test_images_of_another_aspect_ratio_are_counted(file, notes):
    turned = Image.Exif()
    turned[0x0112] = 6
    image(file, "photos/cat/1.png", size=(40, 20))
    image(file, "photos/cat/2.png", size=(80, 40))
    image(file, "photos/cat/3.png", size=(20, 40), exif=turned)
    image(file, "photos/cat/4.png", size=(42, 20))
    folder = image(file, "photos/dog/1.png", size=(100, 20)).parents[1]
    assert notes(folder) == [("1", "5")]
    image(file, "photos/dog/2.png", size=(43, 20))
    assert notes(folder) == [("2", "6")]
    assert notes(folder, (8, 8)) == [("6", "6")]
    assert notes(folder, (20, 10)) == [("2", "6")]


@pytest.mark.parametrize(("mode", "options"), [("RGBA", {}), ("LA", {}), ("P", {"transparency": 0})])
def test_images_with_transparency_are_counted(file, notes, mode, options):
    image(file, "photos/cat/1.png", mode, **options)
    folder = image(file, "photos/dog/1.png", "L" if mode == "LA" else "RGB").parents[1]
    assert notes(folder) == [("1", "2")]


def test_lines_about_images_are_logged_and_shown_in_the_overview(run, file, tmp_path, capsys):
    for index in range(20):
        mode, size = ("RGB", (4, 2)) if index else ("L", (2, 2))
        folder = image(file, f"photos/{'cat' if index % 2 else 'dog'}/{index}.png", mode, size).parents[1]
    source = open_source(folder, Options(), tmp_path)
    assert len([*source.batches()]) == 1
    notes = source.late_notes()
    assert len(notes) == 2
    run(folder, shards=1)
    assert [line for line in capsys.readouterr().out.splitlines() if " images " in line] == [
        f"warning: {line}" for line in notes
    ]
    page = Page((tmp_path / "out" / "overview.html").read_text())
    assert [line in page.texts for line in notes] == [True, True]


def test_an_image_is_rotated_by_its_exif_orientation(file):
    turned = Image.Exif()
    turned[0x0112] = 6
    folder = image(file, "photos/cat/1.png", size=(4, 2), exif=turned).parents[1]
    assert rows_of(folder)[0] == (Column("image", "tensor", "uint8", (4, 2, 1)),)


def test_unusable_images_are_named(file, tmp_path):
    good = image(file, "photos/cat/1.png", size=(64, 64))
    folder = good.parents[1]
    with pytest.raises(ValueError, match=r"label_column 'image'.* no other column in .*; it has \['image'\]"):
        open_source(folder, Options("image"), tmp_path)
    bad = file("photos/dog/2.png", "no image")
    with pytest.raises(ValueError, match=r"image dog/2.png cannot be read"):
        scan(open_source(folder, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))
    bad.write_bytes(good.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"image dog/2.png cannot be read"):
        scan(open_source(folder, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))
    image(file, "photos/dog/2.png", "I;16")
    with pytest.raises(ValueError, match=r"image dog/2.png cannot be read: it has more than 8 bits"):
        scan(open_source(folder, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))
    bad.unlink()
    text = file("photos/dog/notes.txt", "no image")
    with pytest.raises(
        ValueError, match=r"image dog/notes.txt cannot be read: it is not an image: remove it, or convert"
    ):
        scan(open_source(folder, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))
    text.unlink()
    image(file, "photos/dog/more/1.png")
    with pytest.raises(ValueError, match=r"image dog/more cannot be read: it is a folder: put images directly"):
        scan(open_source(folder, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))


def test_a_truncated_jpeg_is_named(file, tmp_path):
    data = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(data, "JPEG")
    folder = file("photos/dog/1.jpg", data.getvalue()[:-500]).parents[1]
    with pytest.raises(ValueError, match=r"image dog/1.jpg cannot be read: image file is truncated"):
        scan(open_source(folder, LABELLED, tmp_path), Pieces(tmp_path / ".pieces", 0, 0))


@pytest.fixture
def many(file):
    """A folder of 400 grey images, one of which has colour, between those whose headers are read."""

    def write(name="photos", colour_at=201):
        for index in range(400):
            mode, colour = ("RGB", (index % 256, 0, 0)) if index == colour_at else ("L", index % 256)
            folder = image(file, f"{name}/{'cat' if index < 200 else 'dog'}/{index:03}.png", mode, colour=colour)
        return folder.parents[1]

    return write


def test_one_image_with_colour_among_many_grey_ones(many, run, tmp_path, capsys):
    train = run(many(), shards=1, validation_fraction=0, test_fraction=0)["train"]
    assert train.columns[0].shape == (2, 4, 3)
    rows = pq.read_table(tmp_path / "out/train/part-00000.parquet")["image"].to_pylist()
    expected = [[i % 256] * 3 for i in range(400) if i != 201] + [[201, 0, 0]]
    assert sorted(row[:3] for row in rows) == sorted(expected)
    assert "399 of 400 images are grey" in capsys.readouterr().out


def test_images_of_a_split_have_the_form_of_the_first_source(many, file, run, capsys):
    image(file, "test/cat/1.png", "RGB", (8, 8))
    test = image(file, "test/dog/1.png", "L", (8, 8)).parents[1]
    manifests = run(many(colour_at=-1), sources={"test": str(test)})
    assert manifests["test"].columns[0].shape == manifests["train"].columns[0].shape == (2, 4, 1)
    assert "1 of 2 images have colour and are stored in grey" in capsys.readouterr().out


def test_each_image_is_opened_once(many, monkeypatch):
    opened = Counter()
    real = Image.open
    monkeypatch.setattr(Image, "open", lambda source: (opened.update([source]), real(source))[1])
    rows_of(many(colour_at=-1))
    # The headers of 100 of them are read before.
    assert sum(opened.values()) == 400 + 100


def test_large_images_are_decoded_in_order(file):
    for index in range(60):
        folder = image(
            file, f"photos/{'cat' if index < 30 else 'dog'}/{index:02}.png", "RGB", (200, 150), (index, 0, 0)
        )
    rows = rows_of(folder.parents[1], Options("kind", image_size=(1, 1)))[1]
    assert [pixel[0] for pixel in rows["image"]] == [*range(60)]
    file("photos/dog/31.png", "no image")
    with pytest.raises(ValueError, match=r"image dog/31\.png cannot be read"):
        rows_of(folder.parents[1], Options("kind", image_size=(1, 1)))
