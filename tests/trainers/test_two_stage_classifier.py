"""The example of model parallelism, on two replicas of the local runner."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import two_stage_classifier as example
from environments import trainer_python
from evaluations import evaluate_model
from forked_replicas import forked
from held_training import HELD, hold
from replicas import KillOnce
from step_lines import into
from two_stage_classifier import two_stage_classifier

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.storage.dataset import DatasetManifest, parts_of_rank, read_batches
from kfp_distributed.trainers import train_specification

pytestmark = pytest.mark.takes(19)

PARAMETERS = {
    "epochs": 15,
    "batch_size": 100,
    "micro_batches": 3,
    "learning_rate": 5e-3,
    "hidden_units": [48, 32],
    "seed": 3,
}
TOLERANCE = 1e-4
"""Relative tolerance of loss and accuracy after each epoch. The float32 sums have another order."""

# The same network in one piece and in one process.
WHOLE = """
import json, sys
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

data, options = np.load(sys.argv[1]), json.loads(sys.argv[2])
inputs, labels = torch.tensor(data["inputs"]), torch.tensor(data["labels"]).long()
first, second = options["hidden_units"]
torch.manual_seed(options["seed"])
layers = [nn.Linear(inputs.shape[1], first), nn.ReLU()]
torch.manual_seed(options["seed"] + 1)
model = nn.Sequential(*layers, nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 10))
optimizer = torch.optim.Adam(model.parameters(), options["learning_rate"])
losses = []
for epoch in range(options["epochs"]):
    total = 0.0
    order = torch.tensor(np.random.default_rng((options["seed"], epoch + 1)).permutation(len(labels)))
    for part in order.split(options["batch_size"]):
        loss = cross_entropy(model(inputs[part]), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(part)
    losses.append(total / len(labels))
print(json.dumps(losses))
"""


def manifest_of(folder):
    return DatasetManifest.from_json((folder / "dataset.json").read_text())


def whole_curve(train_data, folder):
    manifest = manifest_of(train_data)
    # Each rank reads a part of the rows. The ranks exchange them in the order of the ranks.
    parts = [part for rank in range(2) for part in parts_of_rank(manifest, rank, 2)]
    batches = read_batches(train_data, manifest, parts)
    inputs, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    column = manifest.columns[0]
    np.savez(folder / "rows.npz", inputs=(inputs - np.float32(column.mean)) / np.float32(column.std), labels=labels)
    argv = forked(trainer_python("pytorch"), "-c", WHOLE, folder / "rows.npz", json.dumps(PARAMETERS))
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(done.stdout)


@pytest.fixture
def request_for(odd_digits, tmp_path, monkeypatch):
    monkeypatch.setenv("KFP_DISTRIBUTED_PYTORCH_PYTHON", trainer_python("pytorch"))

    def make(parameters, workers=1, program=two_stage_classifier):
        return Request(
            train_uri=str(odd_digits.folder / "train"),
            validation_uri=str(odd_digits.folder / "validation"),
            model_uri=str(tmp_path / "model"),
            train_specification=train_specification(program),
            train_parameters=parameters,
            distribution_specification={"distribution_type": "PyTorch", "number_of_workers": workers},
            identity=(str(tmp_path),),
        )

    return make


def test_two_stages_train_like_the_whole_network_and_resume_after_a_kill(
    request_for, odd_digits, tmp_path, monkeypatch
):
    hold(monkeypatch, tmp_path, epoch=3)
    show = KillOnce("worker-0", HELD)
    outcome = launch(request_for(PARAMETERS), LocalRunner(), StepLog(show))
    log = "\n".join(show.lines)
    assert "restart 1 of 3: all replicas" in log
    assert re.findall(r"^\[(.*)\] epoch (\d+)/15", log, re.MULTILINE) == [("master-0", str(n)) for n in range(1, 16)]
    history = outcome.metrics["master-0"]
    expected_losses = whole_curve(odd_digits.folder / "train", tmp_path)
    assert [epoch["loss"] for epoch in history] == pytest.approx(expected_losses, rel=TOLERANCE)

    stages = re.findall(r"^\[(.*)\] stage (\d) of 2 has (\d+) parameters and (\d+) (\w+)$", log, re.MULTILINE)
    first, second = 64 * 48 + 48, 48 * 32 + 32 + 32 * 10 + 10
    expected = [("master-0", "0", str(first), "1299", "inputs"), ("worker-0", "1", str(second), "1299", "labels")]
    assert sorted(stages) == sorted(2 * expected), "each rank has only its own layers, before the kill and after"

    evaluation, _ = evaluate_model(tmp_path / "model", odd_digits.folder / "validation")
    assert evaluation.scores.accuracy == pytest.approx(history[-1]["val_accuracy"])
    assert evaluation.scores.loss == pytest.approx(history[-1]["val_loss"], rel=1e-3)
    assert evaluation.scores.accuracy > 0.9


def listened_to(train_dir, model_dir, checkpoint_dir, metrics_dir, example: str, parameters: dict):
    """Train as the example does, and print what each rank sends and receives in the first step."""
    import sys

    import torch.distributed as dist

    sys.path.append(example)
    from two_stage_classifier import two_stage_classifier

    calls = []

    def noted(name):
        call = getattr(dist, name)

        def note(message, other):
            calls.append(f"{name} {len(message)}")
            return call(message, other)

        return note

    dist.isend, dist.recv = noted("isend"), noted("recv")
    two_stage_classifier(train_dir, "", model_dir, checkpoint_dir, metrics_dir, **parameters)
    sent = [call for call in calls if "isend" in call]
    print(f"rank {dist.get_rank()} begins with {', '.join(calls[:8])} and sends {len(sent)}", flush=True)


def test_a_batch_is_processed_in_micro_batches(request_for):
    """All micro-batches go forward before the first gradient comes back. There are 13 steps of 3."""
    parameters = {"example": str(Path(example.__file__).parent), "parameters": {**PARAMETERS, "epochs": 1}}
    lines = []
    launch(request_for(parameters, program=listened_to), LocalRunner(), into(lines))
    assert sorted(line for line in lines if "begins with" in line) == [
        "[master-0] rank 0 begins with isend 649, recv 650, "
        "isend 34, isend 33, isend 33, recv 34, recv 33, recv 33 and sends 40",
        "[worker-0] rank 1 begins with isend 650, recv 649, "
        "recv 34, recv 33, recv 33, isend 34, isend 33, isend 33 and sends 40",
    ]


def test_a_validation_dataset_without_rows_is_not_scored(request_for, tmp_path):
    request = request_for({"epochs": 1, "hidden_units": [8]})
    empty = replace(manifest_of(Path(request.validation_uri)), shards=(), class_counts=(0,) * 10)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "dataset.json").write_text(empty.to_json())
    outcome = launch(replace(request, validation_uri=str(tmp_path / "empty")), LocalRunner(), lambda line: None)
    assert [[*epoch] for epoch in outcome.metrics["master-0"]] == [["epoch", "loss", "accuracy"]]


def test_more_than_two_ranks_are_refused(request_for):
    with pytest.raises(Exception, match="3 ranks; allowed: 2"):
        launch(request_for({}, workers=2), LocalRunner(), lambda line: None)
