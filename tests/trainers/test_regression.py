"""The built-in trainers learn a number: what they record and save, and the agreement of two ranks with one process."""

import math
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from environments import environment_of
from saved_models import answers_of

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage.dataset import Column, Label

pytestmark = pytest.mark.takes(30)

COLUMNS = [
    Column("size", "number", "float32", mean=500.0, std=100.0, fill=480.0),
    Column("age", "number", "float32", mean=20.0, std=10.0),
    Column("color", "category", "int32", vocabulary=("blue", "red")),
]
LABEL = Label("price", (), "regression", 1.7e9, 15.0)
"""Such as a time in seconds. There, 32-bit floats are 128 apart."""

PARAMETERS = {"epochs": 3, "batch_size": 500, "learning_rate": 0.05, "hidden_units": [16], "seed": 3}
"""Each step has all rows, so that the order of the rows does not matter."""


def table(rows, seed):
    """Return Arrow arrays and numbers to predict. One age in ten is missing."""
    random = np.random.default_rng(seed)
    size, age, red = random.normal(500, 100, rows), random.normal(20, 10, rows), random.integers(0, 2, rows)
    price = LABEL.mean + LABEL.std * ((size - 500) / 133 + (age - 20) / 20 + (red - 0.5) / 2)
    missing = random.random(rows) < 0.1
    arrays = [pa.array(size, pa.float32()), pa.array(age, pa.float32(), mask=missing), pa.array(red + 1, pa.int32())]
    return arrays, price


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_dataset):
    """301 training rows, which two ranks do not divide evenly, and 100 validation rows."""
    folder = tmp_path_factory.mktemp("prices")
    for split, rows, seed in (("train", 301, 0), ("validation", 100, 1)):
        write_dataset(folder / split, COLUMNS, *table(rows, seed), (), [rows - 60, 60], split, LABEL)
    return folder


def train(data, folder, trainer, distribution, resume_from="", **parameters):
    """Train, and return the metrics of the epochs, the folder of the model and the printed lines."""
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
        outcome = launch(request, LocalRunner(), lambda entry: lines.append(str(entry)))
    (epochs,) = (rows for name, rows in outcome.metrics.items() if not name.startswith("evaluator"))
    (checkpoints,) = (folder / "checkpoints").iterdir()
    return SimpleNamespace(epochs=epochs, model=folder / "model", checkpoints=str(checkpoints), lines=lines)


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """One training in one process for each framework."""
    trainings = {}

    def training(trainer):
        if trainer not in trainings:
            one = {"distribution_type": "MPI", "number_of_workers": 1} if trainer == "keras_horovod" else {}
            trainings[trainer] = train(data, tmp_path_factory.mktemp(trainer), trainer, one, epochs=12)
        return trainings[trainer]

    return training


@pytest.mark.parametrize("trainer", ["keras_classifier", "keras_horovod", "torch_classifier"])
def test_a_number_is_learned_and_saved_in_its_own_unit(data, alone, trainer):
    epochs, predict = alone(trainer).epochs, answers_of(alone(trainer).model, "prediction")
    assert [[*entry] for entry in epochs] == [["epoch", "loss", "rmse", "val_loss", "val_rmse"]] * 12
    for entry in epochs:
        for prefix in ("", "val_"):
            assert entry[prefix + "rmse"] == pytest.approx(LABEL.std * math.sqrt(entry[prefix + "loss"]))
    assert epochs[-1]["val_rmse"] < 0.4 * LABEL.std
    arrays, prices = table(100, 1)
    inputs = np.column_stack([array.to_numpy(zero_copy_only=False) for array in arrays]).astype(np.float32)
    answers = predict(inputs)
    assert (answers.dtype, answers.shape) == (np.float64, (100, 1))
    assert np.sqrt(np.mean((answers[:, 0] - prices) ** 2)) == pytest.approx(epochs[-1]["val_rmse"], rel=1e-3)


@pytest.mark.parametrize("trainer", ["keras_classifier", "torch_classifier"])
def test_numbers_that_32_bit_floats_take_for_0_are_predicted(write_dataset, tmp_path, trainer):
    label = Label("mass", (), "regression", 2e-49, 1e-49)
    for split, rows, seed in (("train", 301, 0), ("validation", 100, 1)):
        arrays, prices = table(rows, seed)
        masses = label.mean + (prices - LABEL.mean) / LABEL.std * label.std
        write_dataset(tmp_path / split, COLUMNS, arrays, masses, (), [rows], split, label)
    predict = answers_of(train(tmp_path, tmp_path, trainer, {}, epochs=12).model, "prediction")
    inputs = np.column_stack([array.to_numpy(zero_copy_only=False) for array in arrays]).astype(np.float32)
    errors = (predict(inputs)[:, 0] - masses) / label.std
    assert np.sqrt(np.mean(errors**2)) < 0.4


@pytest.mark.parametrize("trainer", ["keras_classifier", "torch_classifier"])
def test_a_model_puts_the_number_of_the_manifest_in_the_place_of_a_gap(alone, trainer):
    predict, nan = answers_of(alone(trainer).model, "prediction"), math.nan
    gaps, filled = [[nan, 30, 1], [600, nan, 1], [nan, nan, 2]], [[480, 30, 1], [600, 20, 1], [480, 20, 2]]
    answers = [predict(np.array(rows, np.float32)) for rows in (gaps, filled)]
    np.testing.assert_array_equal(*answers)
    assert answers[0][0] != predict(np.array([[500, 30, 1]], np.float32))[0]


@pytest.mark.parametrize(
    ("trainer", "distribution"),
    [
        ("keras_classifier", {"distribution_type": "TF", "number_of_parameter_servers": 0}),
        ("torch_classifier", {"distribution_type": "PyTorch"}),
    ],
)
def test_two_ranks_learn_as_one_process(data, alone, tmp_path, trainer, distribution):
    together = train(data, tmp_path, trainer, {**distribution, "number_of_workers": 2})
    for epoch, expected in zip(together.epochs, alone(trainer).epochs[:3], strict=True):
        assert epoch == pytest.approx(expected, rel=1e-4)


@pytest.fixture(scope="module")
def other_data(tmp_path_factory, write_dataset):
    """Rows of the same prices in a dataset with another mean and standard deviation of the price."""
    folder, label = tmp_path_factory.mktemp("other"), Label("price", (), "regression", LABEL.mean + 20, LABEL.std / 4)
    for split, rows, seed in (("train", 200, 2), ("validation", 100, 1)):
        write_dataset(folder / split, COLUMNS, *table(rows, seed), (), [rows], split, label)
    return folder


@pytest.mark.parametrize(
    ("trainer", "epochs", "distribution"),
    [
        ("keras_classifier", 12, {}),
        ("torch_classifier", 13, {}),
        ("keras_classifier", 13, {"distribution_type": "TF", "number_of_workers": 1}),  # With a parameter server.
    ],
)
def test_a_resumed_network_predicts_in_the_scale_of_its_checkpoint(
    other_data, alone, tmp_path, trainer, epochs, distribution
):
    first = alone(trainer)
    resumed = train(other_data, tmp_path, trainer, distribution, first.checkpoints, epochs=epochs)
    assert sum("price keeps its mean 1700000000 (of the new data 1700000020)" in line for line in resumed.lines) == 1
    if epochs == 12:
        answers = [answers_of(of.model, "prediction")(np.array([[500, 20, 1]], np.float32)) for of in (first, resumed)]
        np.testing.assert_array_equal(*answers)
    else:
        # The network goes on from where it was, on numbers of the same meaning.
        assert resumed.epochs[-1]["loss"] == pytest.approx(first.epochs[-1]["loss"], rel=0.5)
        assert resumed.epochs[-1]["val_rmse"] == pytest.approx(first.epochs[-1]["val_rmse"], rel=0.5)
