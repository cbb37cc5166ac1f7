"""Images that cannot be decoded are wrong rows."""

import io

import pytest
from PIL import Image
from prepare_data.test_images import image

from kfp_distributed.components.prepare_data.tables import open_source as module
from kfp_distributed.storage.dataset import read_batches


@pytest.fixture
def folder(file):
    """A folder of 40 images whose pixels have the number of the image."""
    for index in range(40):
        path = image(file, f"photos/{'cat' if index % 2 else 'dog'}/{index:02}.png", colour=index + 1)
    return path.parents[1]


def truncated(size=(64, 64)):
    data = io.BytesIO()
    Image.effect_noise(size, 50).save(data, "JPEG")
    return data.getvalue()[:-300]


@pytest.mark.takes(4)
@pytest.mark.parametrize("size", [(4, 2), (300, 200)], ids=["small", "large"])
@pytest.mark.parametrize("name", ["dog/00.png", "cat/01.png", "cat/99.png"])
def test_broken_images_are_skipped_and_named(folder, file, run, tmp_path, capsys, name, size):
    for index in range(40):
        image(file, f"photos/{'cat' if index % 2 else 'dog'}/{index:02}.png", colour=index + 1, size=size)
    file(f"photos/{name}", "no image")
    file("photos/dog/50.jpg", truncated())
    manifests = run(folder, on_bad_row="skip", shards=1, image_size=(1, 1))
    expected = {index: index % 2 == 0 for index in range(40) if f"{index:02}.png" not in name}
    found = {}
    for split, manifest in manifests.items():
        for inputs, labels in read_batches(tmp_path / "out" / split, manifest):
            found |= {int(pixel): bool(label) for pixel, label in zip(inputs[:, 0] - 1, labels, strict=True)}
    assert found == expected
    log = capsys.readouterr().out
    assert "left out 2 rows that cannot be used, such as row" in log
    assert f"image {name} cannot be read: it is not an image" in log
    assert f"image {name} cannot be read" in (tmp_path / "out" / "overview.html").read_text()


def test_all_broken_images_are_named_together(folder, file, run):
    file("photos/cat/01.png", "no image")
    file("photos/dog/50.jpg", truncated())
    with pytest.raises(ValueError, match="these are 2 rows that cannot be used") as error:
        run(folder, shards=1)
    assert "row 1 of photos cannot be used: image cat/01.png cannot be read: it is not an image" in str(error.value)
    assert "row 41 of photos cannot be used: image dog/50.jpg cannot be read: image file" in str(error.value)


def test_the_size_is_that_of_the_first_image_that_can_be_read(folder, file, run):
    file("photos/cat/00.png", "no image")
    assert run(folder, on_bad_row="skip", shards=1)["train"].columns[0].shape == (2, 4, 1)


def test_a_folder_of_broken_images_is_refused(file, run):
    file("photos/cat/1.png", "no image")
    folder = file("photos/dog/1.png", "no image").parents[1]
    with pytest.raises(ValueError, match=r"none of 2 images can be read: image cat/1\.png cannot be read"):
        run(folder, on_bad_row="skip")


def test_a_folder_among_the_images_of_a_class_is_refused(folder, file, run):
    image(file, "photos/dog/more/1.png")
    with pytest.raises(ValueError, match=r"image dog/more cannot be read: it is a folder: put images directly"):
        run(folder, on_bad_row="skip")


def test_an_image_that_the_machine_cannot_read_is_no_wrong_row(folder, run):
    """A disk that fails must not give a dataset without some of its images."""
    (folder / "dog" / "60.png").symlink_to(folder / "nowhere.png")
    with pytest.raises(ValueError, match=r"image dog/60\.png cannot be read: .*No such file"):
        run(folder, on_bad_row="skip")


@pytest.mark.parametrize("broken", ["cat", "dog"])
def test_a_batch_of_broken_images_alone_is_skipped(folder, file, run, monkeypatch, broken):
    monkeypatch.setattr(module, "BATCH_BYTES", 8 * 8 * 4)
    for index in range(broken == "cat", 40, 2):
        file(f"photos/{broken}/{index:02}.png", "no image")
    for index in range(broken != "cat", 40, 4):
        path = folder / ("dog" if broken == "cat" else "cat") / f"{index:02}.png"
        image(file, f"photos/bird/{index:02}.png").write_bytes(path.read_bytes())
    train = run(folder, on_bad_row="skip", shards=1)["train"]
    assert (train.label.classes, train.rows) == (("bird", "dog" if broken == "cat" else "cat"), 24)
