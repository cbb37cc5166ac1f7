"""Sources that are no tables of a file: arrays, images, folders, and those of a store."""

from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image
from prediction_models import linear_network, save_onnx

from kfp_distributed.storage.dataset import Column, Label

LABEL = asdict(Label("label", ("cat", "dog")))


@pytest.fixture
def picture_model(tmp_path):
    column = Column("image", "tensor", "uint8", (4, 4, 1))
    return save_onnx(
        tmp_path / "model", linear_network([0] * 16, 2, scales=255), columns=(asdict(column),), label=LABEL
    )


@pytest.fixture
def pictures():
    return np.random.default_rng(0).integers(0, 256, (6, 4, 4, 1), np.uint8)


def test_arrays_and_images_are_predicted(tmp_path, picture_model, pictures, predicted):
    np.savez(tmp_path / "rows.npz", image=pictures, id=np.arange(6), other=np.zeros(6))
    arrays = predicted(model=picture_model, source=str(tmp_path / "rows.npz"), key_columns=["id"]).table()
    assert arrays["id"].to_pylist() == [*range(6)]
    for number, picture in enumerate(pictures):
        folder = tmp_path / "images" / ("cat" if number < 3 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture[:, :, 0]).save(folder / f"{number}.png")
    images = predicted(model=picture_model, source=str(tmp_path / "images")).table()
    assert images["file"].to_pylist() == [f"{'cat' if number < 3 else 'dog'}/{number}.png" for number in range(6)]
    assert images["row"].to_pylist() == [0] * 6
    assert images.select(["prediction", "probability"]).equals(arrays.select(["prediction", "probability"]))
    (tmp_path / "images" / "cat" / "1.png").write_bytes(b"no image")
    some = predicted(
        model=picture_model, source=str(tmp_path / "images"), key_columns=["label"], on_bad_row="skip"
    ).table()
    assert some["label"].to_pylist() == ["cat"] * 2 + ["dog"] * 3
    assert some["probability"].to_pylist() == [images["probability"][row].as_py() for row in (0, 2, 3, 4, 5)]


def test_an_array_of_another_shape_is_refused(tmp_path, picture_model, pictures, refused):
    np.savez(tmp_path / "rows.npz", image=pictures.reshape(6, 16))
    assert refused(model=picture_model, source=str(tmp_path / "rows.npz")) == (
        "ValueError: column 'image' of the source is a tensor of the shape [16], and the model takes a tensor of the "
        "shape [4, 4, 1]: write the column in the form of the training data"
    )


@pytest.fixture
def number_model(tmp_path):
    columns = (asdict(Column("x", "number", "float32")),)
    return save_onnx(tmp_path / "numbers", linear_network([0], 2), columns=columns, label=LABEL)


def test_a_source_without_the_columns_is_refused(tmp_path, number_model, refused):
    source = tmp_path / "rows.csv"
    source.write_text("a,b\n1,2\n")
    assert refused(model=number_model, source=str(source)) == (
        "ValueError: rows.csv lacks 'x' of the columns of the model; it has ['a', 'b']: write these columns into the "
        "source, with the names that they have there"
    )
    source.write_text("x,b\n1,2\n")
    message = refused(model=number_model, source=str(source), key_columns=["id"])
    assert message.startswith("ValueError: rows.csv lacks 'id' of the key_columns; it has ['x', 'b']")


def test_a_folder_with_splits_is_refused(tmp_path, number_model, refused):
    folder = tmp_path / "rows"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}.csv").write_text("x\n1\n")
    message = refused(model=number_model, source=str(folder))
    assert message == ("ValueError: source rows has splits of its own (train, test): give the files of one split")
    assert message.count("\n") == 0


def test_other_csv_formats_are_read(tmp_path, number_model, predicted):
    (tmp_path / "rows.csv").write_text("1,5;u\n2,5;v\n")
    named = save_onnx(
        tmp_path / "other",
        linear_network([0], 2),
        columns=(asdict(Column("column_1", "number", "float32")),),
        label=LABEL,
    )
    csv_format = {"separator": ";", "decimal": ",", "header": False}
    found = predicted(model=named, source=str(tmp_path / "rows.csv"), csv_format=csv_format).table()
    assert found["row"].to_pylist() == [0, 1]
    (tmp_path / "plain.csv").write_text("x\n1.5\n2.5\n")
    plain = predicted(model=number_model, source=str(tmp_path / "plain.csv")).table()
    assert plain["probability"].equals(found["probability"])


def test_an_error_about_a_kind_names_no_parameter_that_the_step_lacks(tmp_path, number_model, refused):
    (tmp_path / "rows.csv").write_text("x,y\n1,2\nabc,2\n")
    assert refused(model=number_model, source=str(tmp_path / "rows.csv")) == (
        "RowsRefused: row 3 of rows.csv: 'x' is 'abc', which is no number, but the column has numbers in the training "
        'data: correct it, or leave it empty (on_bad_row="skip" leaves such rows out)'
    )
    (tmp_path / "keys.csv").write_text("key,x\n" + "1,2\n" * 9 + "abc,2\n")
    message = refused(model=number_model, source=str(tmp_path / "keys.csv"), key_columns=["key"])
    assert "row 11 of keys.csv: 'key' is 'abc', which is no whole number" in message
    assert message.endswith("write the column as in the training data, or take it out of key_columns")
    np.savez(tmp_path / "rows.npz", x=np.zeros((3, 4)))
    assert refused(model=number_model, source=str(tmp_path / "rows.npz")) == (
        "ValueError: 'x' is a tensor of [4], but a number in the training data: write one number in each row"
    )
