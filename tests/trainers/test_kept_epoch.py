"""The built-in trainers save the model of the best epoch and end early, on all ranks, also after a resume."""

import re
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from environments import environment_of
from evaluations import evaluate_model
from samples import CLASSES, COLUMNS, table
from step_lines import into

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage import open_store
from kfp_distributed.storage.model import verify_model

pytestmark = pytest.mark.takes(30)

BEST, FIRST, PATIENCE = 2, 4, 4
"""The epoch with the lowest loss, the epochs of the training to resume from, and those without improvement."""

PARAMETERS = {"batch_size": 500, "learning_rate": 0.1, "hidden_units": [16], "seed": 3}
"""Each step has all rows, so that all trainers have similar curves."""


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_dataset):
    """A table in which four labels in ten are random, so that the network soon learns them by heart."""
    folder = tmp_path_factory.mktemp("table")
    for split, rows, seed in (("train", 301, 0), ("validation", 100, 1)):
        arrays, labels = table(rows, seed)
        random = np.random.default_rng(seed)
        labels = np.where(random.random(rows) < 0.4, random.integers(0, 3, rows), labels)
        write_dataset(folder / split, COLUMNS, arrays, labels, CLASSES, [rows - 60, 60], split)
    return folder


def train(data, folder, trainer, distribution, resume_from="", **parameters):
    """Train; return the epochs of the leader and of the evaluator, the folders and the printed lines."""
    lines = []
    request = Request(
        train_uri=str(data / "train"),
        validation_uri=str(data / "validation"),
        model_uri=str(folder / "model"),
        train_specification={"trainer": trainer},
        train_parameters={**PARAMETERS, **parameters},
        distribution_specification=distribution,
        identity=(str(folder),),
        resume_from=resume_from,
    )
    with environment_of(trainer):
        metrics = dict(launch(request, LocalRunner(), into(lines)).metrics)
    evaluator = metrics.pop("evaluator-0", [])
    (epochs,) = metrics.values()
    (checkpoints,) = (folder / "checkpoints").iterdir()
    return SimpleNamespace(
        epochs=epochs, evaluator=evaluator, folder=folder, checkpoints=str(checkpoints), lines="\n".join(lines)
    )


MPI = {"distribution_type": "MPI", "number_of_workers": 2}
TRAININGS = {
    "all-reduce": ("keras_classifier", {"distribution_type": "TF", "number_of_parameter_servers": 0}),
    "parameter servers": (
        "keras_classifier",
        {"distribution_type": "TF", "number_of_workers": 1, "evaluator": True},
    ),
    "Horovod elastic": ("keras_horovod", {**MPI, "min_workers": 1}),
    "DDP": ("torch_classifier", {"distribution_type": "PyTorch", "number_of_workers": 1}),
}


@pytest.fixture(scope="module")
def first_of(data, tmp_path_factory):
    """Return a function that returns the training to resume from: one of one process for each trainer."""

    @cache
    def first(trainer):
        alone = {**MPI, "number_of_workers": 1} if trainer == "keras_horovod" else {"distribution_type": "Job"}
        training = train(data, tmp_path_factory.mktemp(trainer), trainer, alone, epochs=FIRST, keep="best")
        assert f"the model is that of epoch {BEST} of {FIRST} (val_loss " in training.lines
        assert_best(training, training, data)
        return training

    return first


def assert_best(training, first, data):
    """Assert that the model is that of the best epoch of the first training."""
    manifest = verify_model(open_store(str(training.folder / "model")))
    assert manifest.metrics == first.epochs[BEST - 1]
    evaluation, _ = evaluate_model(training.folder / "model", data / "validation")
    assert evaluation.scores.loss == pytest.approx(manifest.metrics["val_loss"], rel=1e-4)


@pytest.mark.parametrize(("trainer", "distribution"), TRAININGS.values(), ids=TRAININGS)
def test_a_resumed_training_ends_early_with_the_best_epoch_of_its_checkpoint(
    data, first_of, tmp_path, trainer, distribution
):
    first = first_of(trainer)
    resumed = train(
        data,
        tmp_path,
        trainer,
        distribution,
        first.checkpoints,
        epochs=25,
        keep="best",
        patience=PATIENCE,
    )
    last = BEST + PATIENCE
    assert [epoch["epoch"] for epoch in resumed.epochs] == list(range(1, last + 1))
    assert min(resumed.epochs, key=lambda epoch: epoch["val_loss"])["epoch"] == BEST, resumed.epochs
    assert f"the training ends after epoch {last} of 25: val_loss has not improved for {PATIENCE} epochs" in (
        resumed.lines
    )
    assert re.search(rf"the model is that of epoch {BEST} of {last} \(val_loss [\d.]+, the lowest\)", resumed.lines)
    assert {int(epoch) for epoch in re.findall(r"(?<!evaluator-0)\] epoch (\d+)/25", resumed.lines)} == {
        *range(FIRST + 1, last + 1)
    }
    assert "restart" not in resumed.lines
    if distribution.get("evaluator"):
        assert resumed.evaluator[-1]["epoch"] == last
    assert_best(resumed, first, data)
