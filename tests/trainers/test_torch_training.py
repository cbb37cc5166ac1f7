"""PyTorch jobs by the local runner: replicas that are killed, replicas of several processes, elastic ones."""

import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import onnxruntime
import psutil
import pytest
from environments import torch_python

from kfp_distributed.components.train.launch import Request, plan_job
from kfp_distributed.components.train.runners.local import LocalRunner
from kfp_distributed.components.train.runners.protocol import JobEvent, LogLine
from kfp_distributed.storage import open_store
from kfp_distributed.storage.model import verify_model

EPOCHS = 8
PROGRAM = {"trainer": "torch_classifier"}
PARAMETERS = {"epochs": EPOCHS, "learning_rate": 3e-3}


@pytest.fixture
def run(digits, tmp_path, monkeypatch):
    """Runs a job to its end, and kills a replica after a line; returns what the runner told and where the model is."""
    # Debian's torchrun fails on Python 3.11 unless some rank's output is redirected: the tenth's is.
    monkeypatch.setenv("PET_REDIRECTS", "9:1")
    monkeypatch.setenv("PET_TEE", "9:1")

    def run_one(program, parameters, victim="", line="", **distribution):
        request = Request(
            train_uri=str(digits.folder / "train"),
            validation_uri=str(digits.folder / "validation"),
            model_uri=str(tmp_path / "model"),
            train_specification=program,
            train_parameters=parameters,
            distribution_specification={"distribution_type": "PyTorch", **distribution},
            identity=(str(tmp_path),),
        )
        rooms = Path(sys.modules["kfp_distributed.storage"].__file__).parents[2]
        argv = (torch_python(), "-m", "kfp_distributed.trainers.entry")
        job = replace(plan_job(request), argv=argv, environment={"PYTHONPATH": str(rooms)})
        runner, facts = LocalRunner(), []
        runner.check(job)
        try:
            runner.start(job)
            for fact in runner.facts():
                facts.append((time.monotonic(), fact))
                if victim and isinstance(fact, LogLine) and line in fact.line:
                    kill(victim)
                    victim = ""
        finally:
            runner.stop()
        return [fact for _, fact in facts], tmp_path / "model"

    return run_one


def kill(replica):
    """Kills the processes of a replica of ours, all at once."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("KFP_DISTRIBUTED_REPLICA") == replica and "entry" in " ".join(process.cmdline()):
                process.kill()
        except psutil.Error:
            continue


def lines(facts, pattern=""):
    return [(fact.replica, fact.line) for fact in facts if isinstance(fact, LogLine) and re.search(pattern, fact.line)]


def text(facts):
    return "\n".join(f"[{fact.replica}] {fact.line}" if isinstance(fact, LogLine) else str(fact) for fact in facts)


def epochs(facts):
    return [int(line.split("/")[0].removeprefix("epoch ")) for _, line in lines(facts, r"^epoch \d+/")]


def accuracy(model, digits):
    session = onnxruntime.InferenceSession(str(model / "model.onnx"))
    (found,) = session.run(["probabilities"], {"features": digits.test_inputs})
    return (found.argmax(axis=1) == digits.test_labels).mean()


def test_a_master_and_workers_resume_after_a_kill_and_save_one_model(run, digits):
    facts, model = run(PROGRAM, PARAMETERS, "worker-1", f"epoch 2/{EPOCHS}")
    assert facts[-1].succeeded, text(facts)
    assert epochs(facts) == list(range(1, EPOCHS + 1)), "resumed at the next epoch, not at 1"
    assert {name for name, _ in lines(facts, "^epoch")} == {"master-0"}
    manifest = verify_model(open_store(str(model)))
    assert manifest.format == "onnx"
    assert set(manifest.metrics) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert accuracy(model, digits) >= 0.95
    assert [fact.text for fact in facts if isinstance(fact, JobEvent) and "restart" in fact.text] == [
        "restart 1 of 3: all replicas (worker-1 failed)"
    ]
