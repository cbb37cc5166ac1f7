"""The built-in trainers against scikit-learn's network of the same size, on the same rows and for as many epochs."""

import warnings
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from kfp_distributed.components.evaluate.model_function import load_model_function
from kfp_distributed.components.prepare_data.plan import Options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.request import Request
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.storage.dataset import input_shape, read_batches

pytestmark = pytest.mark.takes(150)

POINTS = 0.02
"""Largest difference of the accuracy on the test rows."""


class Training(NamedTuple):
    epochs: int
    batch_size: int
    learning_rate: float


class Table(NamedTuple):
    """A table as a prepared dataset, and the accuracy of scikit-learn's network on its test rows."""

    folder: str
    test: tuple[np.ndarray, np.ndarray]
    shape: tuple[int, ...]
    training: Training
    accuracy: float


def synthetic():
    inputs, labels = make_classification(10_000, 20, n_informative=8, n_classes=3, flip_y=0.05, random_state=4)
    return inputs, labels


TABLES = {
    # Inputs and labels, fraction of the rows for the test, and the training. Few epochs, because each one also saves a
    # checkpoint and metrics.
    "breast cancer": (lambda: load_breast_cancer(return_X_y=True), 0.4, Training(12, 24, 4e-3)),
    "wine": (lambda: load_wine(return_X_y=True), 0.5, Training(15, 12, 4e-3)),
    "synthetic": (synthetic, 0.4, Training(6, 120, 1e-2)),
}


def rows_of(folder, manifest):
    return tuple(np.concatenate(parts) for parts in zip(*read_batches(folder, manifest), strict=True))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Return a function that prepares a table, sorted by class, once."""
    prepared = {}

    def table(name):
        if name not in prepared:
            load, test_fraction, training = TABLES[name]
            inputs, labels = load()
            order = np.argsort(labels, kind="stable")
            folder = tmp_path_factory.mktemp("table")
            source = folder / "table.npz"
            np.savez(source, x=inputs[order], label=labels[order])
            splits = ("train", "validation", "test")
            datasets = {split: SimpleNamespace(path=str(folder / split), metadata={}) for split in splits}
            # With this seed, networks of other initial weights agree about nearly all test rows of `wine`.
            options = Options(validation_fraction=0.0, test_fraction=test_fraction, shards=3, seed=4)
            manifests = prepare(str(source), options, datasets, str(folder / "overview.html"))
            train, test = (rows_of(folder / split, manifests[split]) for split in ("train", "test"))
            accuracy = scikit_learn_accuracy(*train, *test, training)
            prepared[name] = Table(str(folder), test, input_shape(manifests["test"]), training, accuracy)
        return prepared[name]

    return table


def scikit_learn_accuracy(inputs, labels, test_inputs, test_labels, training):
    """Return the mean accuracy of three networks. That of one depends on its initial weights by up to two points."""
    scaler, scores = StandardScaler().fit(inputs), []
    for seed in range(3):
        network = MLPClassifier(
            (32,),
            alpha=0,
            batch_size=training.batch_size,
            learning_rate_init=training.learning_rate,
            max_iter=training.epochs,
            n_iter_no_change=training.epochs,
            random_state=seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # It stops after the same number of epochs.
            network.fit(scaler.transform(inputs), labels)
        scores.append(network.score(scaler.transform(test_inputs), test_labels))
    return np.mean(scores)


TRAINERS = {
    "keras all-reduce": ("keras_classifier", {"distribution_type": "TF", "number_of_parameter_servers": 0}),
    "keras parameter servers": ("keras_classifier", {"distribution_type": "TF", "number_of_parameter_servers": 1}),
    "keras_horovod": ("keras_horovod", {"distribution_type": "MPI"}),
    "torch": ("torch_classifier", {"distribution_type": "PyTorch"}),
    "torch_horovod": ("torch_horovod", {"distribution_type": "MPI"}),
}
# Each trainer with each table and each number of workers, and each table with each number of workers.
CASES = [
    (trainer, table, (row + column) % 3 + 1)
    for row, trainer in enumerate(TRAINERS)
    for column, table in enumerate(TABLES)
]


@pytest.mark.parametrize(("trainer", "name", "workers"), CASES)
def test_a_trainer_is_as_accurate_as_scikit_learn(tables, tmp_path, trainer, name, workers):
    table, (program, distribution) = tables(name), TRAINERS[trainer]
    request = Request(
        train_uri=f"{table.folder}/train",
        model_uri=str(tmp_path / "model"),
        train_specification={"trainer": program},
        train_parameters={**table.training._asdict(), "hidden_units": [32]},
        distribution_specification={**distribution, "number_of_workers": workers},
        identity=(str(tmp_path),),
    )
    launch(request, LocalRunner(), lambda entry: None)
    answers = load_model_function(tmp_path / "model", table.shape, "probabilities")(table.test[0])
    accuracy = (answers.argmax(axis=1) == table.test[1]).mean()
    assert accuracy == pytest.approx(table.accuracy, abs=POINTS)
