"""PyTorch jobs of the local runner: replicas that are killed, replicas with several processes, elastic jobs."""

import json
import re
import signal
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from environments import trainer_python
from evaluations import evaluate_model
from held_training import HELD, hold
from replicas import kill_replica
from resumed_epochs import assert_resumed

from kfp_distributed.components.train.run.facts import JobEvent, LogLine, ReplicaChanged
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.storage import open_store
from kfp_distributed.storage.dataset import DatasetManifest, read_batches
from kfp_distributed.storage.model import verify_model
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.job_description import PREEMPTED

pytestmark = pytest.mark.takes(40)

EPOCHS, STEPS = 8, 10
"""Epochs of the trainings, and steps of an epoch. Rank 0 asks as often in an epoch whether a replica must end."""
PROGRAM = {"trainer": "torch_classifier"}
PARAMETERS = {"epochs": EPOCHS, "batch_size": 130, "learning_rate": 0.01}


@pytest.fixture
def run(digits, tmp_path, monkeypatch):
    """Return a function that runs a job, kills a replica when rank 0 is held, and returns facts and model's folder."""
    monkeypatch.setenv("KFP_DISTRIBUTED_PYTORCH_PYTHON", trainer_python("pytorch"))

    def run_one(program, parameters, victim="", number=signal.SIGKILL, folder="model", released=None, **distribution):
        request = Request(
            train_uri=str(digits.folder / "train"),
            validation_uri=str(digits.folder / "validation"),
            model_uri=str(tmp_path / folder / "model"),
            train_specification=program,
            train_parameters=parameters,
            distribution_specification={"distribution_type": "PyTorch", **distribution},
            identity=(folder,),
        )
        job, runner, facts = plan_job(request), LocalRunner(), []
        runner.check(job)
        try:
            runner.start(job)
            for fact in runner.facts():
                facts.append((time.monotonic(), fact))
                if victim and isinstance(fact, LogLine) and HELD in fact.line:
                    kill_replica(victim, number=number)
                    if released and fact.replica != victim:  # A victim that is held must not train until it is dead.
                        released.touch()
                    victim = ""
        finally:
            runner.stop()
        return [fact for _, fact in facts], tmp_path / folder / "model"

    return run_one


def lines(facts, pattern=""):
    return [(fact.replica, fact.line) for fact in facts if isinstance(fact, LogLine) and re.search(pattern, fact.line)]


def text(facts):
    return "\n".join(f"[{fact.replica}] {fact.line}" if isinstance(fact, LogLine) else str(fact) for fact in facts)


def epochs(facts):
    return [int(line.split("/")[0].removeprefix("epoch ")) for _, line in lines(facts, r"^epoch \d+/")]


def accuracy(model, digits):
    session = onnxruntime.InferenceSession(str(model / "model.onnx"))
    (probabilities,) = session.run(["probabilities"], {"image": digits.test_inputs})
    return (probabilities.argmax(axis=1) == digits.test_labels).mean()


def test_a_master_and_a_worker_resume_after_a_kill_and_save_one_model(run, digits, tmp_path, monkeypatch):
    hold(monkeypatch, tmp_path, 2 * STEPS + 5)
    facts, model = run(PROGRAM, PARAMETERS, "worker-0", number_of_workers=1)
    assert facts[-1].succeeded, text(facts)
    assert epochs(facts) == list(range(1, EPOCHS + 1)), "no epoch comes again, because its checkpoint is stored"
    assert {name for name, _ in lines(facts, "^epoch")} == {"master-0"}
    manifest = verify_model(open_store(str(model)))
    assert manifest.format == "onnx"
    assert set(manifest.metrics) == {"epoch", "loss", "accuracy", "val_loss", "val_accuracy"}
    assert accuracy(model, digits) >= 0.95
    # The evaluation, with another library, has the same results as the training.
    evaluation, _ = evaluate_model(model, digits.folder / "validation")
    assert evaluation.scores.accuracy == pytest.approx(manifest.metrics["val_accuracy"])
    assert evaluation.scores.loss == pytest.approx(manifest.metrics["val_loss"], rel=1e-3)
    assert [fact.text for fact in facts if isinstance(fact, JobEvent) and "restart" in fact.text] == [
        "restart 1 of 3: all replicas (worker-0 failed)"
    ]


@pytest.mark.parametrize("preempted", ["master-0", "worker-0"])
def test_a_training_loses_no_step_when_a_replica_is_preempted(run, digits, preempted, tmp_path, monkeypatch):
    """The weights are those of a training without an interruption, which only one of the cases runs."""
    hold(monkeypatch, tmp_path, STEPS + 5)
    parameters = {**PARAMETERS, "epochs": 3}
    facts, model = run(PROGRAM, parameters, preempted, signal.SIGTERM, number_of_workers=1)
    assert facts[-1].succeeded, text(facts)
    ended = [fact for fact in facts if isinstance(fact, ReplicaChanged) and fact.exit_code == PREEMPTED]
    assert {fact.replica for fact in ended} == {"master-0"}
    assert re.findall(r"saved a checkpoint in epoch (\d) after step (\d+)", text(facts)) == [("2", "5")]
    continued = re.findall(rf"continues epoch (\d) after step (\d+) of {STEPS}", text(facts))
    assert continued == [("2", "5")] * 2, "in each of two ranks"
    assert epochs(facts) == [1, 2, 3]
    if preempted == "master-0":
        return
    _, expected = run(PROGRAM, parameters, folder="whole", number_of_workers=1)
    for values, others in zip(weights(model), weights(expected), strict=True):
        np.testing.assert_array_equal(values, others)


def weights(folder):
    model = onnx.load(folder / "model.onnx")
    return [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]


def note_rows(train_dir, model_dir, notes: str):
    import json
    import os
    from pathlib import Path

    import pyarrow.parquet as pq
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    total = torch.tensor(rank)
    dist.all_reduce(total)
    tables = [pq.read_table(file) for file in sorted(Path(train_dir).glob("*.parquet"))]
    noted = {
        "replica": os.environ["KFP_DISTRIBUTED_REPLICA"],
        "sum of ranks": int(total),
        "rows": [row for table in tables for row in table["image"].to_pylist()],
    }
    Path(notes, str(rank)).write_text(json.dumps(noted))
    Path(model_dir, "weights").write_text(str(rank))


def test_each_process_of_a_replica_has_its_own_rows(run, digits, tmp_path, monkeypatch):
    notes, scratch = tmp_path / "notes", tmp_path / "scratch"
    notes.mkdir()
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    facts, model = run(train_specification(note_rows), {"notes": str(notes)}, number_of_workers=1, slots_per_worker=2)
    assert facts[-1].succeeded, text(facts)
    noted = [json.loads((notes / str(rank)).read_text()) for rank in range(4)]
    assert [note["replica"] for note in noted] == ["master-0", "master-0", "worker-0", "worker-0"]
    assert [note["sum of ranks"] for note in noted] == [6] * 4
    folder = digits.folder / "train"
    manifest = DatasetManifest.from_json((folder / "dataset.json").read_text())
    every = [row for inputs, _ in read_batches(folder, manifest) for row in inputs.astype(int).tolist()]
    assert sorted(row for note in noted for row in note["rows"]) == sorted(every), "each row in one process, once"
    assert open_store(str(model)).read("weights") == b"0"
    assert [*scratch.glob("torchelastic*")] == []


def test_a_killed_worker_joins_an_elastic_training_again(run, digits, tmp_path, monkeypatch):
    """It restarts alone. The ranks of the others are too few without it, so they wait and restart together."""
    released = hold(monkeypatch, tmp_path, 2 * STEPS + 5)
    facts, model = run(PROGRAM, PARAMETERS, "worker-1", released=released, number_of_workers=2, min_workers=2)
    assert facts[-1].succeeded, text(facts)
    # Number of ranks and epoch after which they continue, for each rendezvous.
    rounds = [(int(line.split()[3]), int(line.split()[-1])) for _, line in lines(facts, "^rank 0 of")]
    first, *later = rounds
    assert first == (3, 0)
    # Any worker may have been rank 0. The checkpoints of two epochs are stored when it is killed.
    assert later, text(facts)
    assert all(ranks == 3 and done >= 2 for ranks, done in later), rounds
    assert_resumed(epochs(facts), EPOCHS, kills=len(later))
    # torchrun may count the killed worker again and wait for it. Then all replicas restart.
    restarts = [fact.text for fact in facts if isinstance(fact, JobEvent) and "restart" in fact.text]
    assert restarts[0] == "restart 1 of 3: worker-1 (worker-1 failed)"
    assert accuracy(model, digits) >= 0.95


# A program of somebody who does not know this library. It uses torchrun's environment and its own command line.
STRANGER = """
import argparse, glob, os
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

arguments = argparse.ArgumentParser()
arguments.add_argument("--data")
arguments.add_argument("--output")
arguments.add_argument("--steps", type=int)
options = arguments.parse_args()
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
table = pa.concat_tables([pq.read_table(file) for file in glob.glob(options.data + "/*.parquet")])
images, labels = torch.tensor(table["image"].to_pylist()) / 16, torch.tensor(table["label"].to_pylist())
model = DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
for _ in range(options.steps):
    batch = torch.randint(len(images), (64,))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
every = [torch.empty_like(weights) for _ in range(size)]
dist.all_gather(every, weights)
equal = all(torch.equal(others, weights) for others in every)
print("rank", rank, os.environ["LOCAL_RANK"], "of", size, "has", len(images), "rows, equal:", equal)
if rank == 0:
    state = {name: value.numpy() for name, value in model.module.state_dict().items()}
    np.savez(options.output + "/weights.npz", **state)
"""


def test_a_command_that_reads_only_the_variables_of_torch(run, digits, tmp_path):
    program = tmp_path / "main.py"
    program.write_text(STRANGER)
    command = ["python", str(program), "--data", "{train_dir}", "--output={model_dir}"]
    facts, model = run(train_specification(command), {"steps": 200}, number_of_workers=1)
    assert facts[-1].succeeded, text(facts)
    assert sorted(lines(facts, "^rank")) == [
        ("master-0", "rank 0 0 of 2 has 650 rows, equal: True"),
        ("worker-0", "rank 1 0 of 2 has 650 rows, equal: True"),
    ]
    manifest = verify_model(open_store(str(model)))
    assert (manifest.format, [entry.path for entry in manifest.files]) == ("custom", ["weights.npz"])
    weights = np.load(model / "weights.npz")
    predictions = (digits.test_inputs.reshape(-1, 64) / 16 @ weights["weight"].T + weights["bias"]).argmax(axis=1)
    assert (predictions == digits.test_labels).mean() > 0.85
