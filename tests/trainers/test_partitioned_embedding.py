"""The example of a table that is cut among parameter servers, on replicas that the local runner starts."""

import re

import numpy as np
import pyarrow as pa
import pytest
from partitioned_embedding import partitioned_embedding
from replicas import KillOnce

from kfp_distributed.components.evaluate.evaluation import evaluate_model
from kfp_distributed.components.train.launch import Request, launch
from kfp_distributed.components.train.runners.local import LocalRunner
from kfp_distributed.storage.dataset import Column
from kfp_distributed.trainers import train_specification

USERS = 600
SMALL = {"column": "user", "table_rows": USERS, "dimensions": 16, "epochs": 6}
LARGE = {"column": "user", "table_rows": 3_000_001, "dimensions": 32, "epochs": 1, "assemble": False}
SERVER = "/job:ps/replica:0/task:"
LARGE_BYTES = 3_000_001 * 32 * 4


@pytest.fixture(scope="module")
def users(tmp_path_factory, write_dataset):
    """Rows of 600 users, whose class is their own: nothing but a row for each user can tell it."""
    folder, random = tmp_path_factory.mktemp("users"), np.random.default_rng(0)
    classes = random.integers(0, 3, USERS)
    columns = [Column("hour", "number", "float32", mean=12.0, std=7.0), Column("user", "number", "float32")]
    for split, rows, shards in (("train", 6000, [2500, 3500]), ("validation", 600, [600])):
        user, hour = random.integers(0, USERS, rows), random.integers(0, 24, rows)
        arrays = [pa.array(hour, pa.float32()), pa.array(user, pa.float32())]
        write_dataset(folder / split, columns, arrays, classes[user], ["a", "b", "c"], shards, split)
    return folder


@pytest.fixture(scope="module")
def train(users, tmp_path_factory):
    def train_one(parameters, show, workers=2):
        folder = tmp_path_factory.mktemp("trained")
        distribution = {"distribution_type": "TF", "number_of_workers": workers, "number_of_parameter_servers": 2}
        request = Request(
            train_uri=str(users / "train"),
            validation_uri=str(users / "validation"),
            model_uri=str(folder / "model"),
            train_specification=train_specification(partitioned_embedding),
            train_parameters=parameters,
            distribution_specification=distribution,
            identity=(str(folder),),
        )
        return launch(request, LocalRunner(), show), folder / "model"

    return train_one


@pytest.fixture(scope="module")
def small(train):
    show = KillOnce("ps-0", "epoch 2/6")
    return *train(SMALL, show), "\n".join(show.lines)


def placed(said):
    """Of each part of the table the rows and the server."""
    return re.findall(r"part \d of the table: (\d+) of \d+ rows, (/job:ps/.*\d)/device:CPU:0$", said, re.MULTILINE)


def test_a_table_in_parts_learns_resumes_and_is_evaluated(small, users):
    outcome, model, said = small
    assert placed(said) == [("300", SERVER + "0"), ("300", SERVER + "1")] * 2, "before the kill and after"
    history = outcome.metrics["chief-0"]
    assert [epoch["epoch"] for epoch in history] == list(range(1, 7)), "resumed at the next epoch, not at 1"
    assert "restart 1 of 3: all replicas" in said
    assert history[-1]["val_accuracy"] > 0.9
    scores, _ = evaluate_model(model, users / "validation")
    assert scores.accuracy == pytest.approx(history[-1]["val_accuracy"])
    assert scores.loss == pytest.approx(history[-1]["val_loss"], rel=1e-3)


def test_no_process_holds_the_whole_table(small, train):
    """Not while it is made or trained, nor while a checkpoint and the model are written, in parts."""
    said = []
    outcome, model = train(LARGE, said.append, workers=1)
    assert placed("\n".join(said)) == [("1500001", SERVER + "0"), ("1500000", SERVER + "1")]
    # Beyond what the same process has when the table is small.
    grown = {
        name: (replica.peak_memory - small[0].status.replicas[name].peak_memory) * 1024 / LARGE_BYTES
        for name, replica in outcome.status.replicas.items()
    }
    assert sorted(grown) == ["chief-0", "ps-0", "ps-1", "worker-0"]
    for name, part in grown.items():
        low, high = (0.45, 0.75) if name.startswith("ps-") else (-0.1, 0.25)
        assert low < part < high, grown

    table = np.load(model / "table.npy", mmap_mode="r")
    assert table.shape == (3_000_001, 32)
    assert np.flatnonzero(table.any(1)).max() < USERS, "users that there are have learned something, others nothing"
    assert np.load(model / "layers.npz").files == [f"arr_{number}" for number in range(4)]
