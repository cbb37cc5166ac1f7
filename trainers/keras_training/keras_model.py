"""The Keras model: its construction from a dataset's manifest, and its evaluation."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras

from kfp_distributed.storage.dataset import DatasetManifest, Label, read_batches
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import categories, fills, read_manifest, scaling
from kfp_distributed.trainers.runtime.data_loading.target import count_outputs, metrics_of, scale_labels


def build_model(manifest: DatasetManifest, hidden_units: Sequence[int], spare_values: int = 0) -> tf_keras.Model:
    """Return a new Keras model that maps raw inputs, as `read_batches` yields them, to what `scale_labels` returns.

    Inputs are float32 [n, width]. Outputs are the probabilities of the classes, [n, classes], or the scaled number to
    predict, [n, 1]. The model includes the preprocessing: `fills` replaces missing values, numbers are scaled with the
    manifest's mean and standard deviation or by their logarithms, and categories are embedded.

    Args:
        manifest: Manifest of the training dataset.
        hidden_units: Sizes of the hidden layers.
        spare_values: Values of each category beyond those of its vocabulary. Default: 0.
    """
    mean, std, scale, log_unit = scaling(manifest)
    inputs = tf_keras.Input(mean.shape, name="features")
    filled = tf.where(tf.math.is_nan(inputs), fills(manifest), inputs)
    numbers = filled
    if log_unit.any():
        quotients = tf.minimum(tf.abs(filled) / np.where(log_unit > 0, log_unit, 1), np.finfo(np.float32).max)
        numbers = tf.where(log_unit > 0, tf.sign(filled) * tf.math.log1p(quotients), filled)
    parts = [(numbers - mean) / std * scale]
    for column, count in categories(manifest).items():
        parts.append(
            tf_keras.layers.Embedding(count + spare_values, min(count, 16))(tf.cast(filled[:, column], tf.int32))
        )
    values = tf.concat(parts, 1)
    for units in hidden_units:
        values = tf_keras.layers.Dense(units, "relu")(values)
    activation = None if manifest.label.task == "regression" else "softmax"
    return tf_keras.Model(inputs, tf_keras.layers.Dense(count_outputs(manifest.label), activation)(values))


def score(
    model: tf_keras.Model, folder: str, label: Label, after_batch: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Return the metrics of a model over a local dataset: "val_loss", and "val_accuracy" or "val_rmse".

    The result is {} if the dataset has no rows.

    Args:
        model: The model.
        folder: Folder of the dataset.
        label: Label of the training dataset.
        after_batch: Callback after each batch. Default: none.
    """
    parts = []
    for inputs, labels in read_batches(Path(folder), read_manifest(folder)):
        outputs = model(inputs, training=False)
        if label.task == "regression":
            losses = (outputs.numpy()[:, 0] - scale_labels(labels, label)) ** 2
        else:
            losses = tf_keras.losses.sparse_categorical_crossentropy(labels, outputs).numpy()
        parts.append([losses, outputs.numpy().argmax(1) == labels])
        after_batch()
    if not parts:
        return {}
    loss, accuracy = np.concatenate(parts, axis=1).mean(axis=1).tolist()
    return {f"val_{name}": value for name, value in metrics_of(loss, accuracy, label).items()}
