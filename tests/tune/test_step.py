"""The `tune` step with real trainings of a function that needs no framework, as processes of this machine."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import samples
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import load_study

from kfp_distributed.storage.dataset import Column
from kfp_distributed.storage.model import verify_model_folder
from kfp_distributed.trainers import train_specification

pytestmark = pytest.mark.takes(60)

FOLDER = "digits/4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11/tune/11111111-aaaa-4bbb-8ccc-dddddddddddd"


def fit(model_dir, checkpoint_dir, metrics_dir, rate: float = 0.5, epochs: int = 3, slow: bool = False):
    """Train to a loss that is the rate, and continue after the epoch of the checkpoint."""
    import time
    from pathlib import Path

    from kfp_distributed.trainers.sync import record_epoch

    state = Path(checkpoint_dir, "state")
    done = int(state.read_text()) if state.exists() else 0
    print(f"begins after epoch {done}", flush=True)
    for epoch in range(done + 1, epochs + 1):
        if rate > 0.9:
            raise ValueError(f"rate is {rate}")
        state.write_text(str(epoch))
        record_epoch(Path(metrics_dir, "training.json"), "worker-0", epoch, epochs, {"loss": rate + 1 / epoch})
        time.sleep(0.5 if slow else 0)
    Path(model_dir, "weights").write_text(str(rate))


STEP = """
import json, sys
from types import SimpleNamespace
from kfp_distributed.components.tune.step import run_step

given = json.loads(sys.argv[1])

class Artifact(SimpleNamespace):
    def log_metric(self, name, value):
        self.metadata[name] = value

folder = given.pop("folder")
names = "model", "metrics"
artifacts = {name: Artifact(path=f"{folder}/{name}", uri=f"{folder}/{name}", metadata={}) for name in names}
data = Artifact(path=given.pop("data"), uri="", metadata={})
found = run_step(train_dataset=data, validation_dataset=None, **artifacts, **given)
print("FOUND", json.dumps([*found, {name: artifact.metadata for name, artifact in artifacts.items()}]))
"""


@pytest.fixture
def step(tmp_path):
    """A function that starts the step, and its folder. All calls are attempts of one task."""
    column = Column("x", "number", "float32", (), (), 3.5, 2.3)
    rows = pa.array(np.arange(8, dtype=np.float32))
    samples.write_dataset(tmp_path / "train", [column], [rows], np.arange(8) % 2, ["a", "b"], [4, 4])
    folder = tmp_path / FOLDER

    def start(**changed):
        given = {
            "folder": str(folder),
            "data": str(tmp_path / "train"),
            "train_specification": dict(train_specification(fit)),
            "train_parameters": {},
            "distribution_specification": {},
            "search_space": {"rate": {"low": 0.0, "high": 0.8}},
            "metric": "loss",
            "trials": 3,
            "parallel_trials": 2,
            "search": {},
            "runner": "local",
            **changed,
        }
        words = [sys.executable, "-c", STEP, json.dumps(given)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    return start, folder


def end(process):
    """Return the exit code of a step, its output, and what it has found."""
    output, _ = process.communicate(timeout=200)
    found = re.search(r"^FOUND (.*)$", output, re.MULTILINE)
    return process.returncode, output, json.loads(found[1]) if found else None


def journal(folder):
    (file,) = Path(folder, "checkpoints").glob("tune-*/study.journal")
    return load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(file)))).trials


def test_a_search_ends_with_the_model_of_its_best_trial(step):
    start, folder = step
    code, output, (parameters, distribution, value, model_uri, metadata) = end(start())
    assert code == 0, output
    rates = [trial.params["rate"] for trial in journal(folder)]
    assert len(rates) == 3
    assert parameters == {"rate": min(rates)}
    assert (distribution, value) == ({}, pytest.approx(min(rates) + 1 / 3))
    assert Path(folder, "model", "weights").read_text() == str(min(rates))
    assert verify_model_folder(folder / "model").metrics["loss"] == value == metadata["metrics"]["loss"]
    assert not [*Path(folder).rglob("trials/*/*")], "the other models are deleted"
    assert model_uri == str(folder / "model")
    for number in range(3):
        assert len(re.findall(rf"trial-{number} worker-0: epoch \d/3 loss", output)) == 3


def test_a_killed_step_continues_its_trials(step):
    start, folder = step
    slow = {"train_parameters": {"slow": True, "epochs": 6}}
    process = start(**slow)
    for line in process.stdout:
        if "trial-1 worker-0: epoch 3/6" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    code, output, _ = end(start(**slow))
    assert code == 0, output
    assert [trial.state.name for trial in journal(folder)] == ["COMPLETE"] * 3
    begun = {int(epoch) for epoch in re.findall(r"trial-1 worker-0: begins after epoch (\d)", output)}
    assert min(begun) >= 2, output


def test_a_pruned_trial_ends_early_and_a_failed_one_is_named(step):
    start, folder = step
    choices = {"rate": {"choices": [0.1, 0.2, 0.8, 0.95]}}
    settings = {"sampler": "grid", "pruner": "median", "trial_failures": 1}
    slow = {"train_parameters": {"slow": True, "epochs": 8}}
    code, output, found = end(start(search_space=choices, search=settings, trials=4, parallel_trials=1, **slow))
    assert code == 0, output
    states = {trial.params["rate"]: trial.state.name for trial in journal(folder)}
    assert found[0]["rate"] == 0.1
    assert states[0.95] == "FAIL"
    assert re.search(r"trial \d has failed: .*ValueError: rate is 0.95", output)
