"""The example with a table that is partitioned among parameter servers, in the local runner."""

import re

import numpy as np
import pyarrow as pa
import pytest
from evaluations import evaluate_model
from held_training import HELD, hold
from partitioned_embedding import partitioned_embedding
from replicas import KillOnce
from step_lines import into

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.storage.dataset import Column
from kfp_distributed.trainers import train_specification

pytestmark = pytest.mark.takes(18)

USERS = 600
SMALL = {"column": "user", "table_rows": USERS, "dimensions": 16, "epochs": 6, "batch_size": 150}
LARGE = {"column": "user", "table_rows": 3_000_001, "dimensions": 32, "epochs": 1, "assemble": False}
SERVER = "/job:ps/replica:0/task:"
LARGE_BYTES = 3_000_001 * 32 * 4


@pytest.fixture(scope="module")
def users(tmp_path_factory, write_dataset):
    """Rows of 600 users. Only a row of the table for each user can predict the user's class."""
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
    def train_one(folder, parameters, tell, servers=2):
        request = Request(
            train_uri=str(users / "train"),
            validation_uri=str(users / "validation"),
            model_uri=str(folder / "model"),
            checkpoint_uri=str(folder / "checkpoints"),
            train_specification=train_specification(partitioned_embedding),
            train_parameters=parameters,
            distribution_specification={
                "distribution_type": "TF",
                "number_of_workers": 1,
                "number_of_parameter_servers": servers,
            },
            identity=(str(folder),),
        )
        return launch(request, LocalRunner(), tell)

    return train_one


@pytest.fixture(scope="module")
def small(train, tmp_path_factory):
    """Train a table twice, the first time with a kill; return the lines of both, the second outcome and the folder."""
    folder, show, again = tmp_path_factory.mktemp("small"), KillOnce("ps-0", HELD), []
    with pytest.MonkeyPatch.context() as patch:
        hold(patch, folder, epoch=2)
        train(folder, {**SMALL, "epochs": 4}, StepLog(show))
    outcome = train(folder, {**SMALL, "epochs": 6}, into(again), servers=1)
    return show.lines, again, outcome, folder


def partitions(lines):
    """Return the rows and the server of each part of the table."""
    pattern = r"part \d of the table: (\d+) of \d+ rows, (/job:ps/.*\d)/device:CPU:0$"
    return re.findall(pattern, "\n".join(lines), re.MULTILINE)


def test_a_partitioned_table_learns_resumes_and_is_evaluated(small, users):
    first, again, outcome, folder = small
    assert "restart 1 of 3: all replicas" in "\n".join(first)
    assert partitions(first) == [("300", SERVER + "0"), ("300", SERVER + "1")] * 2, "before the kill and after"
    assert partitions(again) == [("600", SERVER + "0")], "a checkpoint is for any number of servers"
    done = [int(line.split()[2][0]) for line in first + again if line.startswith("[chief-0] epoch")]
    assert done == list(range(1, 7)), "resumed at the next epoch, not at 1"

    history = outcome.metrics["chief-0"]
    assert [epoch["epoch"] for epoch in history] == done
    assert history[-1]["val_accuracy"] > 0.9
    evaluation, _ = evaluate_model(folder / "model", users / "validation")
    assert evaluation.scores.accuracy == pytest.approx(history[-1]["val_accuracy"])
    assert evaluation.scores.loss == pytest.approx(history[-1]["val_loss"], rel=1e-3)


def test_no_process_has_the_whole_table_in_memory(small, train, tmp_path):
    """Checkpoints and the model are written in parts."""
    lines = []
    outcome = train(tmp_path, LARGE, into(lines))
    assert partitions(lines) == [("1500001", SERVER + "0"), ("1500000", SERVER + "1")]
    # Peak memory compared with a process of the same role and a small table, as a part of the large table.
    replicas, with_small_table = outcome.status.replicas, small[2].status.replicas
    growth = {
        name: (replica.peak_memory - with_small_table[f"{name[:-2]}-0"].peak_memory) * 1024 / LARGE_BYTES
        for name, replica in replicas.items()
    }
    assert sorted(growth) == ["chief-0", "ps-0", "ps-1", "worker-0"]
    for name, part in growth.items():
        low, high = (0.45, 0.75) if name.startswith("ps-") else (-0.1, 0.25)
        assert low < part < high, growth

    table = np.load(tmp_path / "model" / "table.npy", mmap_mode="r")
    assert table.shape == (3_000_001, 32)
    assert np.flatnonzero(table.any(1)).max() < USERS, "only the rows of existing users are trained"
    assert np.load(tmp_path / "model" / "layers.npz").files == [f"arr_{number}" for number in range(4)]
