"""Whether rows of a dataset have trained a model."""

from dataclasses import replace

import pytest

from kfp_distributed.storage.dataset import Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.provenance import find_contamination, training_data, with_training_data

TRAIN = DatasetManifest(
    "train",
    (Column("x", "number", "float32"),),
    Label("kind", ("a", "b")),
    (Shard("0.parquet", 4, 10, "a" * 64), Shard("1.parquet", 4, 10, "b" * 64)),
    (4, 4),
    seed=7,
    source="data.csv",
    shuffled=True,
    preparation="one",
    content="8-00ff",
)
TEST = replace(TRAIN, split="test", shards=(Shard("0.parquet", 8, 10, "c" * 64),))


def test_a_model_knows_its_training_data():
    assert training_data(TRAIN) == {
        "split": "train",
        "source": "data.csv",
        "seed": 7,
        "preparation": "one",
        "content": "8-00ff",
        "shards": ["a" * 64, "b" * 64],
    }


OLD = {"preparation": "", "content": ""}


@pytest.mark.parametrize(
    ("trained", "dataset"),
    [
        (TRAIN, TEST),
        (TRAIN, replace(TEST, source="other.csv", content="9-1234", preparation="two")),
        (TRAIN, replace(TEST, source="other.csv", **OLD)),
        (replace(TRAIN, **OLD), replace(TEST, **OLD)),
    ],
    ids=["the same run", "other rows", "other source", "the same seed in format 1"],
)
def test_rows_that_did_not_train_the_model(trained, dataset):
    assert find_contamination(dataset, [training_data(trained)]) == ""


@pytest.mark.parametrize(
    ("trained", "dataset", "reason"),
    [
        (TRAIN, TRAIN, "2 of the 2 shards of the dataset trained the model"),
        (
            TRAIN,
            replace(TEST, preparation="two", seed=8),
            "split of the same rows, with the seed 8",
        ),
        (
            TRAIN,
            replace(TEST, preparation="two", source="copy.csv"),
            "split of the same rows, with other",
        ),
        (
            TRAIN,
            replace(TEST, preparation="two", content="9-1"),
            "split of the same source data.csv, with other",
        ),
        (
            replace(TRAIN, **OLD),
            replace(TEST, seed=8, **OLD),
            "split of the same source data.csv, with the seed 8",
        ),
    ],
)
def test_rows_that_may_have_trained_the_model(trained, dataset, reason):
    assert reason in find_contamination(dataset, [training_data(trained)])


def test_nothing_is_known_of_a_model_without_training_data():
    assert find_contamination(TEST, [{}]) == ""


def test_a_resumed_model_knows_all_its_training_data():
    other = replace(TRAIN, seed=8, preparation="two", shards=(Shard("0.parquet", 8, 10, "d" * 64),))
    trained = with_training_data([training_data(TRAIN)], other)
    assert trained == with_training_data(trained, other) == [training_data(TRAIN), training_data(other)]
    # The test rows of the second run are new to the second training alone.
    test = replace(other, split="test", shards=(Shard("0.parquet", 8, 10, "e" * 64),))
    assert find_contamination(test, [training_data(other)]) == ""
    assert "with the seed 8 instead of 7" in find_contamination(test, trained)
