"""Comparing a dataset with the training data, and its columns in another order."""

from dataclasses import asdict, replace

import pytest

from kfp_distributed.storage.alignment import align
from kfp_distributed.storage.dataset import Column, DatasetManifest, Label

AGE = Column("age", "number", "float32", mean=2.5, std=1.5)
TOWN = Column("town", "category", "int32", vocabulary=("Bern", "Ulm"))
IMAGE = Column("image", "tensor", "uint8", shape=(2, 2, 1))
TRAINED = [asdict(column) for column in (AGE, TOWN, IMAGE)]


def manifest_of(*columns, classes=("a", "b")):
    return DatasetManifest("test", columns, Label("kind", classes), (), (0,) * len(classes), 0, "data.csv")


def test_columns_are_brought_into_the_order_of_the_training_data():
    other = replace(AGE, mean=9.0, std=9.0)
    assert align(manifest_of(IMAGE, other, TOWN), TRAINED, {"classes": ["a", "b"]}) == manifest_of(other, TOWN, IMAGE)


@pytest.mark.parametrize(
    ("columns", "classes", "message"),
    [
        ((AGE, TOWN, IMAGE), ("b", "a"), "the classes are ['b', 'a'], in the training data ['a', 'b']"),
        ((AGE, IMAGE), ("a", "b"), "the column 'town' is missing"),
        (
            (AGE, TOWN, IMAGE, replace(AGE, name="x"), replace(AGE, name="y")),
            ("a", "b"),
            "the columns 'x', 'y' did not exist",
        ),
        (
            (replace(AGE, name="years"), TOWN, IMAGE),
            ("a", "b"),
            "the column 'years' did not exist and the column 'age' is missing",
        ),
        (
            (AGE, replace(TOWN, vocabulary=("Ulm", "Bern")), IMAGE),
            ("a", "b"),
            "the vocabulary of column 'town' is ['Ulm', 'Bern'], in the training data ['Bern', 'Ulm']",
        ),
        (
            (AGE, TOWN, replace(IMAGE, shape=(4,))),
            ("a", "b"),
            "the shape of column 'image' is [4], in the training data [2, 2, 1]",
        ),
        (
            (AGE, TOWN, replace(IMAGE, dtype="float32")),
            ("a", "b"),
            "the dtype of column 'image' is 'float32', in the training data 'uint8'",
        ),
        (
            (Column("age", "category", "int32"), TOWN, IMAGE),
            ("a", "b"),
            "the kind of column 'age' is 'category', in the training data 'number'",
        ),
    ],
)  # fmt: skip
def test_other_columns_or_classes_are_named(columns, classes, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the whole text is compared)
        align(manifest_of(*columns, classes=classes), TRAINED, {"classes": ["a", "b"]})
    assert str(error.value) == message


def test_long_vocabularies_that_differ_at_their_end_are_named():
    words = tuple(str(number) for number in range(100))
    trained = [asdict(replace(TOWN, vocabulary=words))]
    with pytest.raises(ValueError, match="the vocabulary of column 'town' is others than those"):
        align(manifest_of(replace(TOWN, vocabulary=(*words[:-1], "x"))), trained, {"classes": ["a", "b"]})
