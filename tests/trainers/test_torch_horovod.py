"""torch_horovod, and a user's Horovod program for PyTorch, in the ranks of an MPI job."""

import re
import signal
import textwrap
from functools import partial

import mpi_jobs
import onnxruntime
import pytest
from environments import trainer_python
from examples.test_diffs import code_of
from forked_replicas import forked
from held_training import HELD, hold
from mpi_jobs import kill_rank, losses

pytestmark = pytest.mark.takes(40)

train = partial(mpi_jobs.train, program={"trainer": "torch_horovod"})


@pytest.fixture(autouse=True)
def python(monkeypatch):
    interpreter = trainer_python("horovod-pytorch")
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTORCH_PYTHON", interpreter)
    return interpreter


def rows_of_ranks(lines):
    """Return the worker, the number of ranks and the rows of each rank, by rank."""
    matches = (re.match(r"\[(.*)\] rank (\d) of (\d) on cpu has (\d+) rows", line) for line in lines)
    rows = sorted((int(match[2]), match[1], int(match[3]), int(match[4])) for match in matches if match)
    return [row[1:] for row in rows]


WHOLE_BATCHES = {"epochs": 10, "batch_size": 1500, "learning_rate": 0.03}
"""Parameters with which each step has all rows, for any number of ranks. So the curves differ only by rounding."""


def epochs_of(lines):
    """Return the epochs that rank 0 has printed. The others print none."""
    return [(match[1], int(match[2])) for line in lines if (match := re.match(r"\[(.*)\] epoch (\d+)/", line))]


def test_two_ranks_learn_as_one_process_though_one_of_them_is_killed(odd_digits, tmp_path, monkeypatch):
    """The ranks have uneven parts. The curve shows that weights and optimizer come from the checkpoint."""
    alone, _ = train(odd_digits, tmp_path / "alone", 1, parameters=WHOLE_BATCHES)
    hold(monkeypatch, tmp_path, 4)  # In epoch 4: a leader with one step in an epoch asks when it scores.

    def kill_held(line):
        if HELD in line:
            kill_rank("1")

    parameters = {**WHOLE_BATCHES, "learning_rate": 0.015, "scale_learning_rate": True}
    both, lines = train(odd_digits, tmp_path, 2, see=kill_held, parameters=parameters)
    assert any("restart 1 of 3: all replicas (launcher-0 failed)" in line for line in lines)
    parts = [("worker-0", 2, 649), ("worker-1", 2, 650)]
    assert rows_of_ranks(lines) == sorted(2 * parts), "before the kill and after"
    # Only rank 0 saves and prints.
    assert epochs_of(lines) == [("worker-0", epoch) for epoch in range(1, 11)], "no epoch comes again"
    for epoch, expected in zip(both.metrics["worker-0"], alone.metrics["worker-0"], strict=True):
        assert epoch == pytest.approx(expected, rel=1e-4)
    assert losses(both)[-1] < losses(both)[0] / 4
    assert both.model.format == "onnx"
    session = onnxruntime.InferenceSession(str(tmp_path / "model" / "model.onnx"))
    (probabilities,) = session.run(["probabilities"], {"image": odd_digits.test_inputs})
    assert (probabilities.argmax(axis=1) == odd_digits.test_labels).mean() > 0.93


def test_a_training_loses_no_step_when_a_rank_is_preempted(digits, tmp_path, monkeypatch):
    hold(monkeypatch, tmp_path, 10 + 4)

    def end_held(line):
        if HELD in line:
            kill_rank("1", signal.SIGTERM)

    _, lines = train(digits, tmp_path, 2, see=end_held, parameters={"epochs": 3, "batch_size": 130})
    assert re.findall(r"saved a checkpoint in epoch (\d) after step (\d+)", "\n".join(lines)) == [("2", "4")]
    assert re.findall(r"continues epoch (\d) after step (\d+) of 10", "\n".join(lines)) == [("2", "4")] * 2
    assert epochs_of(lines) == [("worker-0", epoch) for epoch in range(1, 4)]


def test_each_slot_of_a_worker_is_a_rank(digits, tmp_path):
    outcome, lines = train(digits, tmp_path, 1, parameters={"epochs": 1}, slots_per_worker=2)
    assert rows_of_ranks(lines) == [("worker-0", 2, 650), ("worker-0", 2, 650)]
    assert list(outcome.metrics) == ["worker-0"]


# A program of somebody who does not know this library. Every rank has all of the data.
STRANGER = """
import sys
from pathlib import Path
import horovod.torch as hvd
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

data, out = sys.argv[1:3]
hvd.init()
table = [row for file in sorted(Path(data).glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
rows = TensorDataset(torch.tensor([row["image"] for row in table]) / 16, torch.tensor([row["label"] for row in table]))
sampler = DistributedSampler(rows, num_replicas=hvd.size(), rank=hvd.rank())
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for epoch in range(5):
    sampler.set_epoch(epoch)
    for inputs, labels in DataLoader(rows, batch_size=32, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
weights = hvd.allgather(model.weight.data.reshape(1, -1))
print("rank", hvd.rank(), "has", len(sampler), "of", len(rows), "rows, equal:", bool((weights == weights[0]).all()))
right = (model(rows.tensors[0]).argmax(1) == rows.tensors[1]).float().mean()
if hvd.rank() == 0:
    print("accuracy", float(right))
    torch.save(model.state_dict(), Path(out, "weights.pt"))
"""


def test_a_program_with_a_distributed_sampler_runs_unchanged(digits, tmp_path, python, monkeypatch):
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", python)
    file = tmp_path / "main.py"
    file.write_text(STRANGER)
    program = {"command": forked(python, file, digits.folder / "train", "{model_dir}")}
    outcome, lines = train(digits, tmp_path, 2, program=program)
    assert {line for line in lines if "] rank" in line} == {
        f"[worker-{rank}] rank {rank} has 650 of 1300 rows, equal: True" for rank in range(2)
    }
    (accuracy,) = (float(line.split()[-1]) for line in lines if "] accuracy" in line)
    assert accuracy > 0.9
    assert [entry.path for entry in outcome.model.files] == ["weights.pt"]


# The code around the diff of the page. One rank has one batch more than the other.
BEFORE = """
def fit(train_dir, model_dir):
    import os, torch
    from torch import nn
    from torch.optim import SGD as Adam  # Adam would hide gradients that are not averaged.

    torch.manual_seed(0)
    rank, rate, loss = int(os.environ["OMPI_COMM_WORLD_RANK"]), 0.1, nn.CrossEntropyLoss()
    batches = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(11)]
    rows, build_model = (batches[:5], batches[5:])[rank], lambda: torch.manual_seed(0) and nn.Linear(4, 3)

"""
AFTER = """
alone = build_model()
descent = Adam(alone.parameters(), rate * 2)
for pair in zip(batches[:5], batches[5:]):
    inputs, labels = map(torch.cat, zip(*pair))
    descent.zero_grad()
    loss(alone(inputs), labels).backward()
    descent.step()
pairs = zip(model.parameters(), alone.parameters())
print("as one process:", all(torch.allclose(*pair, rtol=1e-4, atol=1e-6) for pair in pairs), flush=True)
"""


def test_the_diff_of_the_page_does_what_one_process_does(digits, tmp_path, python, monkeypatch):
    monkeypatch.setenv("KFP_DISTRIBUTED_HOROVOD_PYTHON", python)
    body = textwrap.indent(code_of("horovod", " +", 1) + AFTER, "    ")
    _, lines = mpi_jobs.train(digits, tmp_path, 2, program={"function": "fit", "source": BEFORE + body})
    assert sorted(line for line in lines if "as one" in line) == [
        f"[worker-{rank}] as one process: True" for rank in (0, 1)
    ]
