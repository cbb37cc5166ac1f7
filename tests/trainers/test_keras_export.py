"""The SavedModel of the Keras trainers, of networks that are not trained."""

import os
import subprocess
import sys

import numpy as np
import pytest
from forked_replicas import forked

from kfp_distributed.components.model_formats.model_inputs import plan_inputs
from kfp_distributed.components.model_formats.saved_model import SavedModel
from kfp_distributed.storage.dataset import Column, DatasetManifest, Label, log_values

LARGEST = np.finfo(np.float32).max

NAMES = [
    *("size", "unit price", "unit.price", "unit_price", "Größe", "self", "features", "1st", "a/b", "class", "inputs"),
    *("_x", "a:0", "kwargs", "name", "column_3", "column_2", "\n", "", "probabilities", "Size"),
]
"""Names that Python, TensorFlow or this library use, and names that are alike."""


@pytest.fixture
def manifest():
    """A table with a category, a tensor and a number of each name. The second category has no vocabulary."""
    kinds = [
        Column("colour", "category", "int32", vocabulary=("blue", "red", "grün")),
        Column("empty", "category", "int32"),
        Column("signal", "tensor", "float32", (2, 3), mean=10.0, std=2.0),
    ]
    columns = (*kinds, *(Column(name, "number", "float32") for name in NAMES))
    return DatasetManifest("train", columns, Label("kind", ("a", "b", "c")), (), (0, 0, 0), 0, "made up")


AMOUNT = Column("amount", "number", "float32", mean=1e6, std=1e9, fill=2.0, log_unit=0.5, log_mean=7.0, log_std=8.0)
AMOUNTS = [0, 1e-6, 3, -40, 1e30, 3.4e38, -3.4e38, np.nan]


def test_logarithms_are_scaled(tmp_path):
    from kfp_distributed.trainers.keras_training.keras_export import export_model
    from kfp_distributed.trainers.keras_training.keras_model import build_model

    label = Label("price", (), "regression", 5.0, 3.0)
    manifest = DatasetManifest("train", (AMOUNT, Column("x", "number", "float32")), label, (), (), 0, "made up")
    network = build_model(manifest, [])
    network.set_weights([np.array([[1], [0]], np.float32), np.zeros(1, np.float32)])
    export_model(network, manifest, str(tmp_path))
    model = SavedModel(tmp_path)
    rows = plan_inputs(model.signature, manifest.columns).from_columns({"amount": AMOUNTS, "x": [0] * len(AMOUNTS)})
    scaled = (model.run(rows)["prediction"][:, 0] - 5) / 3
    known = np.nan_to_num(np.array(AMOUNTS), nan=2)
    logarithms = np.sign(known) * log_values(np.minimum(abs(known) / 0.5, LARGEST), 1)
    np.testing.assert_allclose(scaled, (logarithms - 7) / 8, rtol=1e-5, atol=1e-7)


def test_columns_of_any_name_are_inputs_and_give_the_answers_of_the_matrix(manifest, tmp_path):
    import tf_keras

    from kfp_distributed.trainers.keras_training.keras_export import export_model
    from kfp_distributed.trainers.keras_training.keras_model import build_model

    tf_keras.utils.set_random_seed(0)
    network = build_model(manifest, [8])
    export_model(network, manifest, str(tmp_path))
    by_column, by_matrix = SavedModel(tmp_path), SavedModel(tmp_path, "features")
    assert {name: (spec.dtype, spec.shape) for name, spec in by_column.signature.inputs.items()} == {
        **dict.fromkeys(NAMES, ("float32", (None,))),
        "colour": ("string", (None,)),
        "empty": ("string", (None,)),
        "signal": ("float32", (None, 2, 3)),
    }
    random = np.random.default_rng(0)
    matrix = random.normal(size=(20, 8 + len(NAMES))).astype(np.float32)
    matrix[:, 0], matrix[:, 1] = np.arange(20) % 4, 0
    matrix[5, 8:12] = np.nan
    raw = {name: matrix[:, 8 + index] for index, name in enumerate(NAMES)} | {
        "colour": [(None, "blue", "red", "grün")[int(index)] for index in matrix[:, 0]],
        "empty": [""] * 20,
        "signal": matrix[:, 2:8].reshape(-1, 2, 3),
    }
    inputs = plan_inputs(by_column.signature, manifest.columns)
    expected = network(matrix).numpy()
    for model, batch in (
        (by_matrix, {"features": matrix}),
        (by_column, inputs.from_matrix(matrix)),
        (by_column, inputs.from_columns(raw)),
    ):
        np.testing.assert_allclose(model.run(batch)["probabilities"], expected, rtol=1e-5)

    unknown = by_column.run(inputs.from_columns({**raw, "colour": ["purple"] * 20, "empty": ["x"] * 20}))
    assert abs(unknown["probabilities"] - expected).max() > 1e-3
    for index in (np.nan, -1, 4, 99, np.inf):
        matrix[:, :2] = index
        answers = by_matrix.run({"features": matrix})["probabilities"]
        np.testing.assert_allclose(answers, unknown["probabilities"], rtol=1e-5, err_msg=str(index))


def test_an_unknown_category_is_embedded_as_the_mean_of_the_known_ones(manifest):
    from kfp_distributed.trainers.keras_training.keras_export import with_unknown
    from kfp_distributed.trainers.keras_training.keras_model import build_model

    network = build_model(manifest, [8, 4])
    trained, served = network.get_weights(), with_unknown(network, manifest).get_weights()
    for table, larger in zip(trained[:2], served[:2], strict=True):
        np.testing.assert_array_equal(larger[:-1], table)
    np.testing.assert_allclose(served[0][-1], trained[0][1:].mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(served[1][-1], trained[1][0])
    for weights, others in zip(trained[2:], served[2:], strict=True):
        np.testing.assert_array_equal(weights, others)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["size", "SIZE", "name", "features"], ["size", "column_1", "name", "features"]),
        (["self", "column_0", "column_0_", "class"], ["column_0__", "column_0", "column_0_", "column_3"]),
        (["Größe", "a b", "a.b", "_x", "1"], ["column_0", "column_1", "column_2", "column_3", "column_4"]),
    ],
)
def test_names_that_python_does_not_allow_are_replaced(names, expected):
    from kfp_distributed.trainers.keras_training.keras_export import parameter_names

    assert parameter_names(names) == expected


LOAD = """
import sys, tensorflow
signatures = tensorflow.saved_model.load(sys.argv[1]).signatures
inputs = signatures["serving_default"].structured_input_signature[1]
print(sorted(inputs))
rows = {name: tensorflow.zeros([2], spec.dtype) for name, spec in inputs.items()}
print(signatures["serving_default"](**rows)["prediction"].shape)
"""


def test_tensorflow_loads_the_model_without_a_warning(tmp_path):
    from kfp_distributed.trainers.keras_training.keras_export import export_model
    from kfp_distributed.trainers.keras_training.keras_model import build_model

    columns = (Column("size", "number", "float32"), Column("unit price", "number", "float32"))
    manifest = DatasetManifest("train", columns, Label("price", (), "regression"), (), (), 0, "made up")
    export_model(build_model(manifest, [4]), manifest, str(tmp_path))
    argv = forked(sys.executable, "-c", LOAD, tmp_path)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    process = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.splitlines() == ["['column_1', 'size']", "(2, 1)"]
    assert "ingerprint" not in process.stderr
