"""Functions of the tutorials and guides, on a table with missing values."""

import numpy as np
import own_function
import pytest
import resumable_function
from samples import CLASSES, COLUMNS, table

from kfp_distributed.components.evaluate.model_function import load_model_function
from kfp_distributed.storage.dataset import DatasetManifest, read_batches

pytestmark = pytest.mark.takes(2)


def test_the_function_trains_on_missing_values_and_its_model_answers_them(tmp_path, write_dataset):
    arrays, labels = table(600, 0)
    write_dataset(tmp_path / "train", COLUMNS, arrays, labels, CLASSES, [600])
    (tmp_path / "metrics").mkdir()
    own_function.fit(str(tmp_path / "train"), str(tmp_path / "model"), str(tmp_path / "metrics"), epochs=10)

    # Not the loss: relu makes 0 of NaN, and hides weights that are NaN.
    import tensorflow as tf

    stored = tf.train.load_checkpoint(str(tmp_path / "model" / "variables" / "variables"))
    weights = [stored.get_tensor(name) for name, shape in stored.get_variable_to_shape_map().items() if len(shape) == 2]
    assert sorted(weight.shape for weight in weights) == [(9, 32), (32, 3)]
    assert all(np.isfinite(weight).all() for weight in weights)
    manifest = DatasetManifest.from_json((tmp_path / "train" / "dataset.json").read_text())
    ((inputs, classes),) = read_batches(tmp_path / "train", manifest)
    incomplete = np.isnan(inputs).any(axis=1)
    assert incomplete.sum() > 30
    answers = load_model_function(tmp_path / "model", manifest.columns, "probabilities")(inputs[incomplete])
    assert np.isfinite(answers).all()
    assert (answers.argmax(axis=1) == classes[incomplete]).mean() > 0.6


def test_the_resumable_function_trains_the_missing_epochs_alone(tmp_path, write_dataset, capfd):
    arrays, labels = table(200, 0)
    write_dataset(tmp_path / "train", COLUMNS, arrays, labels, CLASSES, [200])
    folders = [str(tmp_path / name) for name in ("train", "model", "checkpoints")]
    printed = []
    for epochs in (2, 3):
        resumable_function.fit(*folders, epochs=epochs)
        printed.append(capfd.readouterr().out)
    assert ["Epoch 1/2" in printed[0], "Epoch 2/3" in printed[1], "Epoch 3/3" in printed[1]] == [True, False, True]
