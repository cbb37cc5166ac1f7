"""The Keras classifier: its construction from a dataset's manifest, its evaluation and its export."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras

from kfp_distributed.storage.dataset import DatasetManifest, input_shape, read_batches
from kfp_distributed.trainers.runtime.feed import categories, read_manifest, scaling


def build_model(manifest: DatasetManifest, hidden_units: Sequence[int]) -> tf_keras.Model:
    """Return a new Keras model that maps raw inputs, as `read_batches` yields them, to class probabilities.

    Inputs are float32 [n, width]. The model includes the preprocessing: numbers are scaled with the manifest's mean and
    standard deviation, a missing number counts as the mean, and categories are embedded.

    Args:
        manifest: Manifest of the training dataset.
        hidden_units: Sizes of the hidden layers.
    """
    mean, std, scale = scaling(manifest)
    inputs = tf_keras.Input(mean.shape, name="features")
    scaled = (inputs - mean) / std * scale
    parts = [tf.where(tf.math.is_nan(scaled), 0.0, scaled)]
    for column, count in categories(manifest).items():
        parts.append(tf_keras.layers.Embedding(count, min(count, 16))(tf.cast(inputs[:, column], tf.int32)))
    values = tf.concat(parts, 1)
    for units in hidden_units:
        values = tf_keras.layers.Dense(units, "relu")(values)
    return tf_keras.Model(inputs, tf_keras.layers.Dense(len(manifest.label.classes), "softmax")(values))


def score(model: tf_keras.Model, folder: str, after_batch: Callable[[], object] = lambda: None) -> dict[str, float]:
    """Return the mean cross entropy ("val_loss") and the accuracy ("val_accuracy") of a model over a local dataset.

    The result is {} if the dataset has no rows.

    Args:
        model: The model.
        folder: Folder of the dataset.
        after_batch: Callback after each batch. Default: none.
    """
    parts = []
    for inputs, labels in read_batches(Path(folder), read_manifest(folder)):
        probabilities = model(inputs, training=False)
        loss = tf_keras.losses.sparse_categorical_crossentropy(labels, probabilities)
        parts.append([loss.numpy(), probabilities.numpy().argmax(1) == labels])
        after_batch()
    if not parts:
        return {}
    loss, accuracy = np.concatenate(parts, axis=1).mean(axis=1).tolist()
    return {"val_loss": loss, "val_accuracy": accuracy}


_summary_writer = cache(tf.summary.create_file_writer)


def log_scalars(folder: str, epoch: int, metrics: Mapping[str, float]) -> None:
    """Write the metrics of an epoch for TensorBoard, with "loss" and "val_loss" as two runs in one chart."""
    # This is what tf.summary.scalar does, but that needs the package tensorboard.
    kind = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})
    for name, value in metrics.items():
        run, tag = ("validation", name[4:]) if name.startswith("val_") else ("train", name)
        writer = _summary_writer(f"{folder}/{run}")
        with writer.as_default(epoch):
            tf.summary.write(tag, value, metadata=kind)
        writer.flush()


def export_model(model: tf_keras.Model, manifest: DatasetManifest, folder: str) -> None:
    """Write a SavedModel that maps "features", float32 [n, *input_shape], to "probabilities", float32 [n, classes]."""

    def serve(features: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"probabilities": model(tf.reshape(features, [-1, model.inputs[0].shape[1]]), training=False)}

    features = tf.TensorSpec([None, *input_shape(manifest)], tf.float32, name="features")
    module = tf.Module()
    module.weights = model.weights
    tf.saved_model.save(module, folder, signatures=tf.function(serve, [features]))
