"""The built-in trainers against scikit-learn's network of the same size, on the same rows and for as many epochs."""

import warnings
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from environments import environment_of
from saved_models import answers_of
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_classification, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage.dataset import Column, Label, read_batches

pytestmark = pytest.mark.takes(60)

POINTS = 0.02
"""Largest difference of the accuracy on the test rows."""


POINTS_OF_NUMBERS = 0.05
"""How much lower R² on the test rows may be. R² is 0 for the mean and 1 without an error."""


class Training(NamedTuple):
    epochs: int
    batch_size: int
    learning_rate: float


class Table(NamedTuple):
    """A table as a prepared dataset, and the score of scikit-learn's network on its test rows."""

    folder: str
    test: tuple[np.ndarray, np.ndarray]
    training: Training
    score: float


def synthetic():
    inputs, labels = make_classification(10_000, 20, n_informative=8, n_classes=3, flip_y=0.05, random_state=4)
    return inputs, labels


TABLES = {
    # Inputs and labels, fraction of the rows for the test, and the training. Few epochs, because each one also saves a
    # checkpoint and metrics.
    "breast cancer": (lambda: load_breast_cancer(return_X_y=True), 0.4, Training(10, 48, 8e-3)),
    "wine": (lambda: load_wine(return_X_y=True), 0.5, Training(12, 24, 8e-3)),
    "synthetic": (synthetic, 0.4, Training(5, 200, 1e-2)),
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
            datasets = {
                split: SimpleNamespace(path=str(folder / split), uri=str(folder / split), metadata={})
                for split in splits
            }
            # With this seed, networks of other initial weights agree about nearly all test rows of `wine`.
            options = Options(validation_fraction=0.0, test_fraction=test_fraction, shards=3, seed=4)
            manifests = prepare(str(source), options, datasets, str(folder / "overview.html"))
            train, test = (rows_of(folder / split, manifests[split]) for split in ("train", "test"))
            score = scikit_learn_score(MLPClassifier, *train, *test, training)
            prepared[name] = Table(str(folder), test, training, score)
        return prepared[name]

    return table


def scikit_learn_score(kind, inputs, labels, test_inputs, test_labels, training):
    """Return the mean score of three networks. That of one depends on its initial weights by up to two points."""
    scaler, scores = StandardScaler().fit(inputs), []
    for seed in range(3):
        network = kind(
            hidden_layer_sizes=(32,),
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
}
# Each table. Ranks of torch_horovod learn as one process does, and that trains like torch_classifier.
CASES = [
    ("keras all-reduce", "synthetic", 2),
    ("keras parameter servers", "wine", 2),
    # No other complete training of keras_horovod starts its ranks by their command lines.
    pytest.param("keras_horovod", "breast cancer", 2, marks=pytest.mark.command_line),
    ("torch", "breast cancer", 2),
]


@pytest.mark.parametrize(("trainer", "name", "workers"), CASES)
def test_a_trainer_is_as_accurate_as_scikit_learn(tables, tmp_path, trainer, name, workers):
    table = tables(name)
    train(table, tmp_path, trainer, workers)
    answers = answers_of(tmp_path / "model", "probabilities")(table.test[0])
    accuracy = (answers.argmax(axis=1) == table.test[1]).mean()
    assert accuracy == pytest.approx(table.score, abs=POINTS)


def train(table, folder, trainer, workers):
    program, distribution = TRAINERS[trainer]
    request = Request(
        train_uri=f"{table.folder}/train",
        model_uri=str(folder / "model"),
        train_specification={"trainer": program},
        train_parameters={**table.training._asdict(), "hidden_units": [32]},
        distribution_specification={**distribution, "number_of_workers": workers},
        identity=(str(folder),),
    )
    with environment_of(program):
        launch(request, LocalRunner(), lambda entry: None)


NUMBERS = {
    # 442 rows of 10 columns, as scikit-learn publishes them, and a nonlinear function of 5 of 10 columns.
    "diabetes": (lambda: load_diabetes(return_X_y=True, scaled=False), Training(12, 16, 4e-3)),
    "friedman": (lambda: make_friedman1(3000, noise=1.0, random_state=4), Training(12, 50, 8e-3)),
}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory, write_dataset):
    """Return a function that writes a table of numbers to predict once. A third of its rows are for the test."""
    prepared = {}

    def table(name):
        if name not in prepared:
            load, training = NUMBERS[name]
            inputs, labels = load()
            inputs = inputs.astype(np.float32)
            order = np.random.default_rng(0).permutation(len(labels))
            test, train = np.split(order, [len(order) // 3])
            folder = tmp_path_factory.mktemp("numbers")
            columns = [
                Column(f"column {index}", "number", "float32", mean=float(values.mean()), std=float(values.std()))
                for index, values in enumerate(inputs[train].T.astype(float))
            ]
            label = Label("number", (), "regression", float(labels[train].mean()), float(labels[train].std()))
            arrays, shards = [pa.array(values) for values in inputs[train].T], [len(train) - 200, 200]
            write_dataset(folder / "train", columns, arrays, labels[train], (), shards, label=label)
            of_test = inputs[test], labels[test]
            # Its targets are scaled, as a user of scikit-learn does with TransformedTargetRegressor.
            scaled = [(values - label.mean) / label.std for values in (labels[train], labels[test])]
            score = scikit_learn_score(MLPRegressor, inputs[train], scaled[0], inputs[test], scaled[1], training)
            prepared[name] = Table(str(folder), of_test, training, score)
        return prepared[name]

    return table


# Keras and PyTorch. Ranks add up gradients whatever the loss is.
NUMBERS_CASES = [
    ("keras all-reduce", "diabetes", 1),
    ("torch", "friedman", 1),
]


@pytest.mark.parametrize(("trainer", "name", "workers"), NUMBERS_CASES)
def test_a_trainer_predicts_numbers_as_well_as_scikit_learn(numbers, tmp_path, trainer, name, workers):
    table = numbers(name)
    train(table, tmp_path, trainer, workers)
    predictions = answers_of(tmp_path / "model", "prediction")(table.test[0])
    assert r2_score(table.test[1], predictions[:, 0]) >= table.score - POINTS_OF_NUMBERS
