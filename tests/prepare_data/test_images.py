"""Reading of folders of images."""

import io

import pytest
from PIL import Image
from prepare_data.test_sources import LABELLED, rows_of

from kfp_distributed.components.prepare_data.plan import Options
from kfp_distributed.components.prepare_data.sources import open_source
from kfp_distributed.components.prepare_data.split import scan
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


def test_images_are_shuffled_by_the_seed(file):
    for label in "abc":
        for number in range(30):
            folder = image(file, f"photos/{label}/{number}.png").parents[1]
    orders = ["".join(rows_of(folder, Options("kind", seed=seed))[1]["kind"]) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert "a" * 10 not in orders[0]


def test_images_get_the_form_of_the_first_one_or_image_size(file):
    image(file, "photos/cat/1.png", "RGB", colour=(1, 2, 3))
    folder = image(file, "photos/dog/1.png", size=(8, 8), colour=7).parents[1]
    assert rows_of(folder, Options("kind", image_size=(1, 1))) == (
        (Column("image", "tensor", "uint8", (1, 1, 3)),),
        {"kind": ["cat", "dog"], "image": [[1, 2, 3], [7, 7, 7]]},
    )
    assert rows_of(folder)[0][0].shape == (2, 4, 3)


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
        scan(open_source(folder, LABELLED, tmp_path))
    bad.write_bytes(good.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"image dog/2.png cannot be read"):
        scan(open_source(folder, LABELLED, tmp_path))
    image(file, "photos/dog/2.png", "I;16")
    with pytest.raises(ValueError, match=r"image dog/2.png cannot be read: it has more than 8 bits"):
        scan(open_source(folder, LABELLED, tmp_path))
    bad.unlink()
    text = file("photos/dog/notes.txt", "no image")
    with pytest.raises(
        ValueError, match=r"image dog/notes.txt cannot be read: it is not an image: remove it, or convert"
    ):
        scan(open_source(folder, LABELLED, tmp_path))
    text.unlink()
    image(file, "photos/dog/more/1.png")
    with pytest.raises(ValueError, match=r"image dog/more cannot be read: it is a folder: put images directly"):
        scan(open_source(folder, LABELLED, tmp_path))


def test_a_truncated_jpeg_is_named(file, tmp_path):
    data = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(data, "JPEG")
    folder = file("photos/dog/1.jpg", data.getvalue()[:-500]).parents[1]
    with pytest.raises(ValueError, match=r"image dog/1.jpg cannot be read: image file is truncated"):
        scan(open_source(folder, LABELLED, tmp_path))
