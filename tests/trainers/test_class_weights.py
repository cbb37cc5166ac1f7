"""A training with balanced classes equals one in which the rows of the rarer class occur more often."""

import numpy as np
import pyarrow as pa
import pytest
from environments import environment_of

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage.dataset import Column

pytestmark = pytest.mark.takes(24)

COLUMNS = [Column(name, "number", "float32") for name in ("width", "height")]
PARAMETERS = {"epochs": 5, "batch_size": 500, "learning_rate": 0.05, "hidden_units": [8], "seed": 3}
"""Each step has all rows, so that the order of the rows does not matter."""

RARE = 51
"""Rows of the rarer class. With twice as many of the other class, two ranks have uneven parts: one has a filler."""


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_dataset):
    """A dataset in which one class has twice as many rows as the other, and one with each of the fewer rows twice."""
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("classes")
    often, rare = random.normal(0, 1, (2 * RARE, 2)), random.normal(0.7, 1, (RARE, 2))
    for name, rows in (("uneven", [often, rare]), ("repeated", [often, rare, rare])):
        inputs, labels = np.concatenate(rows), np.repeat(np.minimum(range(len(rows)), 1) * 2, [*map(len, rows)])
        arrays = [pa.array(values, pa.float32()) for values in inputs.T]
        write_dataset(folder / name, COLUMNS, arrays, labels, ["often", "absent", "rare"], [len(labels)])
    return folder


def train(dataset, folder, trainer, distribution, **parameters):
    request = Request(
        train_uri=str(dataset),
        model_uri=str(folder / "model"),
        train_specification={"trainer": trainer},
        train_parameters={**PARAMETERS, **parameters},
        distribution_specification=distribution,
        identity=(str(folder),),
    )
    with environment_of(trainer):
        (epochs,) = launch(request, LocalRunner(), lambda entry: None).metrics.values()
    return epochs


@pytest.fixture(scope="module")
def repeated(data, tmp_path_factory):
    """The losses of a training on the repeated rows, once for each framework."""
    losses = {}

    def of(trainer):
        if trainer not in losses:
            epochs = train(data / "repeated", tmp_path_factory.mktemp(trainer), trainer, {})
            losses[trainer] = [epoch["loss"] for epoch in epochs]
        return losses[trainer]

    return of


@pytest.mark.parametrize(
    ("trainer", "distribution"),
    [
        ("keras_classifier", {"distribution_type": "TF", "number_of_parameter_servers": 0, "number_of_workers": 2}),
        # The shortest complete trainings of their kinds. No others start these by their command lines.
        pytest.param(
            "keras_classifier",
            {"distribution_type": "TF", "number_of_parameter_servers": 1, "number_of_workers": 1},
            marks=pytest.mark.command_line,
        ),
        pytest.param(
            "torch_classifier",
            {"distribution_type": "PyTorch", "number_of_workers": 1},
            marks=pytest.mark.command_line,
        ),
    ],
    ids=["all-reduce", "parameter servers", "torch"],
)
def test_balanced_classes_count_as_if_the_rarer_rows_were_repeated(data, repeated, tmp_path, trainer, distribution):
    epochs = train(data / "uneven", tmp_path, trainer, distribution, class_weights="balanced")
    assert [epoch["loss"] for epoch in epochs] == pytest.approx(repeated(trainer), rel=1e-4)
    # The accuracy is a fraction of the rows, without weights and fillers.
    correct = np.array([epoch["accuracy"] for epoch in epochs]) * 3 * RARE
    np.testing.assert_allclose(correct, correct.round(), atol=1e-3)
    assert 1.5 * RARE < correct[-1] < 3 * RARE
