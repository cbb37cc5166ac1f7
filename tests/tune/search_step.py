"""A `tune` step with real trainings of a function that needs no framework, as processes of this machine."""

import json
import os
import re
import subprocess
import sys

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import load_study

from kfp_distributed.trainers import train_specification

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

folder, uri, data = (given.pop(name) for name in ("folder", "uri", "data"))
names = "model", "metrics", "report"
artifacts = {name: Artifact(path=f"{folder}/{name}", uri=f"{uri}/{name}", metadata={}) for name in names}
data = Artifact(path=data, uri=data, metadata={})
found = run_step(train_dataset=data, validation_dataset=None, **artifacts, **given)
print("FOUND", json.dumps([*found, {name: artifact.metadata for name, artifact in artifacts.items()}]))
"""


class Step:
    """A task with the step. All its processes are attempts of this task.

    Attributes:
        data: Folder of the training dataset.
        folder: Folder of the outputs on this machine.
        uri: Their folder in a store. Default: None, the same folder.
    """

    def __init__(self, data, folder, uri=None):
        self.data, self.folder, self.uri = data, folder, uri or folder

    def start(self, variables=None, **changed):
        given = {
            "folder": str(self.folder),
            "uri": str(self.uri),
            "data": str(self.data),
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
        words, variables = [sys.executable, "-c", STEP, json.dumps(given)], {**os.environ, **(variables or {})}
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables)

    def run(self, **given):
        """Return the exit code of an attempt, its output, and what it has found."""
        process = self.start(**given)
        output, _ = process.communicate(timeout=200)
        found = re.search(r"^FOUND (.*)$", output, re.MULTILINE)
        return process.returncode, output, json.loads(found[1]) if found else None

    def trials(self):
        (file,) = (self.folder / "checkpoints").glob("tune-*/study.journal")
        return load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(file)))).trials
