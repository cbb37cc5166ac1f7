"""Measure what `tune` adds to its trainings, and what its samplers and pruners find."""

import json
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from measure import header, installed, log, measure, parser, spread, table, take_turns, write_page
from prepared_data import prepare

from kfp_distributed.components.tune.search_space import Range
from kfp_distributed.components.tune.study import Search, Study
from kfp_distributed.trainers import train_specification

TRIALS, EPOCHS, EPOCH_SECONDS = 24, 10, 0.2
"""Trials of a search whose wall time is measured, and its training, which waits and needs no processor."""

SEARCHED_EPOCHS, SEEDS = 30, 10
"""Epochs of a trial whose loss is compared, and number of searches."""

_TEXT = """\
# Searches for parameters

{header}

[All measurements](../docs/explanation/benchmarks.md) has the other pages.

## Wall time

A search of {trials} trials whose training waits {epochs} times {seconds} s. *tune* is the step: each trial is a
process that plans, starts and follows a job with one replica, stores its checkpoints, metrics, log and report, and
verifies its model. *Optuna's loop* is `study.optimize(n_jobs=...)` of the same function in threads of one process,
which stores nothing. *train* is the step `train` with the same function, alone. *Added to train* is the time of a trial
without parallel trials, less that of train; the goal is 2 s.

{times}

## What is found

The lowest validation loss of {seeds} searches of a small network over its learning rate, momentum and width, with the
same number of epochs: {budget}, which are {trials} trials without pruning. A pruned trial leaves its epochs to more
trials.

{losses}
"""


def fit(model_dir: str, metrics_dir: str, rate: float, epochs: int, seconds: float) -> None:
    """Stand for a training whose loss falls."""
    import time
    from pathlib import Path

    from kfp_distributed.trainers.sync import record_epoch

    for epoch in range(1, epochs + 1):
        time.sleep(seconds)
        record_epoch(Path(metrics_dir, "training.json"), "worker-0", epoch, epochs, {"loss": rate + 1 / epoch})
    Path(model_dir, "weights").write_text(str(rate))


_STEP = """
import importlib, json, sys
from types import SimpleNamespace
step, given = sys.argv[1], json.loads(sys.argv[2])
folder = given.pop("folder")
class Artifact(SimpleNamespace):
    def log_metric(self, name, value):
        pass
paths = {name: f"{folder}/{name}" for name in ("model", "metrics", "report")}
artifacts = {name: Artifact(path=path, uri=path, metadata={}) for name, path in paths.items()}
data = Artifact(path=given.pop("data"), uri="", metadata={})
run = importlib.import_module(f"kfp_distributed.components.{step}.step").run_step
run(train_dataset=data, validation_dataset=None, **artifacts, **given, runner="local", distribution_specification={})
"""

_LOOP = """
import sys, time, optuna
trials, jobs, epochs, seconds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
def objective(trial):
    rate = trial.suggest_float("rate", 0, 1)
    for epoch in range(1, epochs + 1):
        time.sleep(seconds)
        trial.report(rate + 1 / epoch, epoch)
    return rate + 1 / epochs
optuna.create_study().optimize(objective, trials, n_jobs=jobs)
"""


def _step(step: str, data: Path, folder: Path, **given: Any) -> float:  # noqa: ANN401
    given |= {
        "folder": str(folder / str(uuid.uuid4()) / step / str(uuid.uuid4())),
        "data": str(data / "train"),
        "train_specification": dict(train_specification(fit)),
    }
    return measure([sys.executable, "-c", _STEP, step, json.dumps(given)]).seconds


def _times(data: Path, folder: Path, runs: int) -> list[list[str]]:
    fixed = {"epochs": EPOCHS, "seconds": EPOCH_SECONDS}
    space = {"rate": {"low": 0.0, "high": 1.0}}

    def search(parallel: int) -> float:
        given = {"search_space": space, "metric": "loss", "trials": TRIALS, "search": {}, "parallel_trials": parallel}
        return _step("tune", data, folder, train_parameters=fixed, **given)

    def loop(parallel: int) -> float:
        words = map(str, (TRIALS, parallel, EPOCHS, EPOCH_SECONDS))
        return measure([sys.executable, "-c", _LOOP, *words]).seconds

    ways: dict[tuple[str, int], Callable[[int], float]] = {
        ("train", 1): lambda run: _step("train", data, folder, train_parameters={**fixed, "rate": 0.5})
    }
    for parallel in (1, 2, 4):
        ways["tune", parallel] = lambda run, parallel=parallel: search(parallel)  # type: ignore[misc]
        ways["loop", parallel] = lambda run, parallel=parallel: loop(parallel)  # type: ignore[misc]
    seconds = take_turns(ways, runs)
    alone = statistics.median(seconds["train", 1])
    rows = []
    for parallel in (1, 2, 4):
        tune = seconds["tune", parallel]
        added = f"{statistics.median(tune) / TRIALS - alone:+.2f} s" if parallel == 1 else ""
        rows.append([str(parallel), spread(tune, form=".1f"), spread(seconds["loop", parallel], form=".1f"), added])
    return [*rows, ["train alone", spread(seconds["train", 1], form=".1f"), "", ""]]


class _Memory(dict[str, bytes]):
    """A store of a study."""

    exists = dict.__contains__
    read = dict.__getitem__
    write = dict.__setitem__


def _losses(rate: float, momentum: float, width: int) -> Any:  # noqa: ANN401  (a generator of floats)
    """Yield the validation loss of a network of one hidden layer after each epoch."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(400, 8))
    labels = (np.sin(inputs[:, 0] * 2) + inputs[:, 1] * inputs[:, 2] > 0).astype(float)[:, None]
    weights = [random.normal(size=(8, width)) * 0.5, random.normal(size=(width, 1)) * 0.5]
    speeds = [0 * array for array in weights]
    for _ in range(SEARCHED_EPOCHS):
        for begin in range(0, 300, 30):
            batch, target = inputs[begin : begin + 30], labels[begin : begin + 30]
            hidden = np.tanh(batch @ weights[0])
            error = (_probability(hidden @ weights[1]) - target) / 30
            gradients = [batch.T @ ((error @ weights[1].T) * (1 - hidden * hidden)), hidden.T @ error]
            for speed, weight, gradient in zip(speeds, weights, gradients, strict=True):
                speed *= momentum
                speed -= rate * gradient
                weight += speed
        found = _probability(np.tanh(inputs[300:] @ weights[0]) @ weights[1])
        right = np.where(labels[300:] > 0, found, 1 - found)
        yield float(-np.log(np.clip(right, 1e-7, 1)).mean())


def _probability(scores: Any) -> Any:  # noqa: ANN401  (an array)
    return 1 / (1 + np.exp(-np.clip(scores, -30, 30)))


_SPACE = {
    "momentum": Range(0.0, 0.95, is_whole=False),
    "rate": Range(1e-3, 3.0, is_whole=False, log=True),
    "width": Range(2, 64, is_whole=True, log=True),
}


def _search(sampler: Any, pruner: Any, seed: int) -> tuple[float, int]:  # noqa: ANN401
    """Return the lowest loss of a search within the budget of epochs, and the number of its trials."""
    study = Study(_Memory(), Search("minimize", sampler, pruner, seed, SEARCHED_EPOCHS), _SPACE)
    left, best, trials = TRIALS * SEARCHED_EPOCHS, float("inf"), 0
    while left >= SEARCHED_EPOCHS:
        trial, trials = study.next_trial(), trials + 1
        loss, end = float("inf"), "complete"
        for epoch, loss in enumerate(_losses(**trial.values), 1):
            left -= 1
            study.report(trial.number, epoch, loss)
            if epoch < SEARCHED_EPOCHS and study.should_prune(trial.number):
                end = "pruned"
                break
        study.end(trial.number, end, loss if end == "complete" else None)  # type: ignore[arg-type]
        best = min(best, loss) if end == "complete" else best
    return best, trials


def _found() -> list[list[str]]:
    rows = []
    for sampler, pruner in (
        ("random", "none"),
        ("tpe", "none"),
        ("tpe", "median"),
        ("tpe", "hyperband"),
        ("tpe", "successive_halving"),
    ):
        losses, trials = zip(*(_search(sampler, pruner, seed) for seed in range(SEEDS)), strict=True)
        log(f"{sampler}, {pruner}: {losses}")
        rows.append([sampler, pruner, spread(losses, "", ".4f"), spread(trials, "", ".0f")])
    return rows


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__, "tune.md", runs=1).parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        times = _times(prepare(Path(name, "digits")), Path(name), options.runs)
    text = _TEXT.format(
        header=header("bench-tune", installed("optuna"), "columns"),
        trials=TRIALS,
        epochs=EPOCHS,
        seconds=EPOCH_SECONDS,
        seeds=SEEDS,
        budget=TRIALS * SEARCHED_EPOCHS,
        times=table(["parallel trials", "tune", "Optuna's loop", "added to train, for each trial"], times),
        losses=table(["sampler", "pruner", "lowest loss", "trials"], _found()),
    )
    write_page(options.page, text)


if __name__ == "__main__":
    main()
