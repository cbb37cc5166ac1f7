"""The example of a table that is cut among parameter servers, on replicas that the local runner starts."""

import re

import numpy as np
import pyarrow as pa
import pytest
from partitioned_embedding import partitioned_embedding
from replicas import KillOnce
from step_lines import into

from kfp_distributed.components.evaluate.evaluation import evaluate_model
from kfp_distributed.components.train.launch import Request, launch
from kfp_distributed.components.train.runners.local.runner import LocalRunner
from kfp_distributed.storage.dataset import Column
from kfp_distributed.trainers import train_specification

pytestmark = pytest.mark.takes(35)

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
def train(users):
    def train_one(folder, parameters, show, workers=2, servers=2):
        request = Request(
            train_uri=str(users / "train"),
            validation_uri=str(users / "validation"),
            model_uri=str(folder / "model"),
            checkpoint_uri=str(folder / "checkpoints"),
            train_specification=train_specification(partitioned_embedding),
            train_parameters=parameters,
            distribution_specification={
                "distribution_type": "TF",
                "number_of_workers": workers,
                "number_of_parameter_servers": servers,
            },
            identity=(str(folder),),
        )
        return launch(request, LocalRunner(), show)

    return train_one


@pytest.fixture(scope="module")
def small(train, tmp_path_factory):
    """Two trainings of one table, the first with a kill: their lines, the second one's outcome, where they were."""
    folder, show, again = tmp_path_factory.mktemp("small"), KillOnce("ps-0", "epoch 2/4"), []
    train(folder, {**SMALL, "epochs": 4}, show)
    outcome = train(folder, {**SMALL, "epochs": 6}, into(again), workers=1, servers=1)
    return show.lines, again, outcome, folder


def placed(lines):
    """Of each part of the table the rows and the server."""
    pattern = r"part \d of the table: (\d+) of \d+ rows, (/job:ps/.*\d)/device:CPU:0$"
    return re.findall(pattern, "\n".join(lines), re.MULTILINE)


def test_a_partitioned_table_learns_resumes_and_is_evaluated(small, users):
    first, again, outcome, folder = small
    assert "restart 1 of 3: all replicas" in "\n".join(first)
    assert placed(first) == [("300", SERVER + "0"), ("300", SERVER + "1")] * 2, "before the kill and after"
    assert placed(again) == [("600", SERVER + "0")], "a checkpoint is for any number of servers"
    done = [int(line.split()[2][0]) for line in first + again if line.startswith("[chief-0] epoch")]
    assert done == list(range(1, 7)), "resumed at the next epoch, not at 1"

    history = outcome.metrics["chief-0"]
    assert [epoch["epoch"] for epoch in history] == done
    assert history[-1]["val_accuracy"] > 0.9
    scores, _ = evaluate_model(folder / "model", users / "validation")
    assert scores.accuracy == pytest.approx(history[-1]["val_accuracy"])
    assert scores.loss == pytest.approx(history[-1]["val_loss"], rel=1e-3)


def test_no_process_has_the_whole_table_in_memory(small, train, tmp_path):
    """Not while it is made or trained, nor while a checkpoint and the model are written, in parts."""
    said = []
    outcome = train(tmp_path, LARGE, said.append, workers=1)
    assert placed(said) == [("1500001", SERVER + "0"), ("1500000", SERVER + "1")]
    # Beyond what a process of the same role has when the table is small.
    replicas, usual = outcome.status.replicas, small[2].status.replicas
    grown = {
        name: (each.peak_memory - usual[f"{name[:-2]}-0"].peak_memory) * 1024 / LARGE_BYTES
        for name, each in replicas.items()
    }
    assert sorted(grown) == ["chief-0", "ps-0", "ps-1", "worker-0"]
    for name, part in grown.items():
        low, high = (0.45, 0.75) if name.startswith("ps-") else (-0.1, 0.25)
        assert low < part < high, grown

    table = np.load(tmp_path / "model" / "table.npy", mmap_mode="r")
    assert table.shape == (3_000_001, 32)
    assert np.flatnonzero(table.any(1)).max() < USERS, "users that there are have learned something, others nothing"
    assert np.load(tmp_path / "model" / "layers.npz").files == [f"arr_{number}" for number in range(4)]
