"""keras_horovod and programs of others in the ranks of an MPI job, which mpirun or horovodrun starts here."""

import shutil
from functools import partial
from pathlib import Path

import mpi_jobs
import numpy as np
import pytest
from environments import trainer_python
from mpi_jobs import kill_rank, losses

train = partial(mpi_jobs.train, program={"trainer": "keras_horovod"})
TOLERANCE = 0.08
"""Of the loss after an epoch: the ranks see the same rows in other batches than one process does."""


@pytest.fixture(autouse=True)
def python(monkeypatch):
    found = trainer_python("horovod")
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", found)
    return found


def test_two_ranks_learn_as_one_process_does(digits, tmp_path):
    half, whole = {"batch_size": 16, "learning_rate": 1e-3}, {"batch_size": 32, "learning_rate": 2e-3}
    # The rate is multiplied by the ranks, and their batches add up.
    alone, _ = train(digits, tmp_path / "1", 1, parameters={"epochs": 4, **whole})
    both, said = train(digits, tmp_path / "2", 2, parameters={"epochs": 4, **half}, tensorboard=True)
    assert np.abs(np.subtract(losses(alone), losses(both))).max() < TOLERANCE, (losses(alone), losses(both))
    assert both.metrics["worker-0"][-1]["val_accuracy"] > 0.9
    logs = (tmp_path / "2").glob("checkpoints/*/metrics/tensorboard/*/*.v2")
    assert {file.parent.name for file in logs} == {"train", "validation"}
    # Rank 0 alone saves and tells.
    assert both.model.format == "saved_model"
    assert [line.split(" loss")[0] for line in said if "] epoch " in line] == [
        f"[worker-0] epoch {epoch}/4" for epoch in range(1, 5)
    ]


def test_a_killed_rank_starts_all_again_from_the_last_checkpoint(digits, tmp_path):
    killed = []

    def kill_once(line):
        if "epoch 3/12" in line and not killed:
            killed.append(line)
            kill_rank("1")

    outcome, said = train(digits, tmp_path, 2, see=kill_once, parameters={"epochs": 12})
    assert any("restart 1 of 3: all replicas (launcher-0 failed)" in line for line in said)
    epochs = [int(line.split("epoch ")[1].split("/")[0]) for line in said if "[worker-0] epoch " in line]
    assert epochs == list(range(1, 13)), "went on after the last epoch that was kept"
    assert len(losses(outcome)) == 12


def test_slots_are_ranks_of_one_worker(digits, tmp_path):
    outcome, said = train(digits, tmp_path, 1, parameters={"epochs": 1}, slots_per_worker=2)
    assert list(outcome.metrics) == ["worker-0"]
    assert not any(line.startswith("[launcher-0] [") for line in said), "all marks are read"


# As somebody would write it who has never heard of this library.
STRANGER = """
import os, sys
from pathlib import Path
import numpy as np
import pyarrow.parquet as pq
import horovod.tensorflow as hvd
import tensorflow as tf

data, out = sys.argv[1:3]
hvd.init()
table = pq.read_table(sorted(Path(data).glob("*.parquet")))
x = np.stack(table["image"].to_numpy(zero_copy_only=False)).astype("float32") / 16
y = table["label"].to_numpy()
weights = tf.Variable(tf.zeros([64, 10]))
for step in range(60):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ weights))
    weights.assign_sub(2.0 * hvd.allreduce(tape.gradient(loss, weights)))
print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "has", len(y), "rows, loss", float(loss))
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    np.save(Path(out, "weights.npy"), weights.numpy())
"""


def test_a_program_that_knows_nothing_of_us(digits, tmp_path):
    file = tmp_path / "main.py"
    file.write_text(STRANGER)
    program = {"command": ["python", str(file), "{train_dir}", "{model_dir}"]}
    outcome, said = train(digits, tmp_path, 2, program=program)
    assert [entry.path for entry in outcome.model.files] == ["weights.npy"]
    weights = np.load(tmp_path / "model" / "weights.npy")
    found = (digits.test_inputs.reshape(-1, 64) / 16 @ weights).argmax(axis=1)
    assert (found == digits.test_labels).mean() > 0.85
    assert {line.split(" rows")[0] for line in said if " rows, loss" in line} == {
        "[worker-0] rank 0 has 650",
        "[worker-1] rank 1 has 650",
    }


def test_gloo_where_there_is_no_openmpi(digits, tmp_path, python, monkeypatch):
    if shutil.which("mpirun"):
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, program in {"python": python, "horovodrun": str(Path(python).with_name("horovodrun"))}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", str(folder / "python"))
    program = {"command": ["python", "-c", "import os; print('size', os.environ['HOROVOD_SIZE']); os._exit(3)"]}
    with pytest.raises(Exception, match="launcher-0 failed with exit code 3"):
        train(digits, tmp_path / "failed", 2, program=program)
    outcome, _ = train(digits, tmp_path, 2, parameters={"epochs": 1})
    assert outcome.model.format == "saved_model"
