"""Functions that the Keras trainers share: compilation and checkpoints."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras

from kfp_distributed.storage.dataset import DatasetManifest, Label, Task
from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.trainers.epochs.position import Position
from kfp_distributed.trainers.resumed_network import (
    Architecture,
    architecture,
    end_if_other_data,
    end_if_other_network,
    end_if_other_program,
    record_data,
    refuse,
)
from kfp_distributed.trainers.runtime.data_loading.target import metrics_of

_DATA = "data.json"
"""File beside the checkpoint that describes its training data."""

_POSITION = "position.json"
"""File beside a checkpoint that was saved within an epoch."""

_STEPS_AT_ONCE, _OPERATIONS_AT_ONCE = 50, 10**10
"""Limits of the steps in one call: with 50 small steps, three workers on two processors need a third less time than
with 1. A call should end within about a second, because a replica that must end soon waits for it. One processor
computes some 10^10 operations in a second."""


def steps_at_once(model: tf_keras.Model, steps: int, batch: int) -> int:
    """Return the number of synchronous steps in one call.

    Args:
        model: Model to train.
        steps: Steps of an epoch.
        batch: Rows of one device in a step.
    """
    # Two operations for each weight and row in the forward pass, and four in the backward pass.
    operations = 6 * batch * int(model.count_params())
    return max(1, min(steps, _STEPS_AT_ONCE, _OPERATIONS_AT_ONCE // operations))


def compile_model(
    model: tf_keras.Model,
    optimizer: tf_keras.optimizers.Optimizer,
    steps_at_once: int,
    task: Task,
) -> None:
    """Compile a model for training. Call it inside the scope of the strategy.

    Args:
        model: Model to compile.
        optimizer: Its optimizer.
        steps_at_once: Number of steps in one call.
        task: Task of the label.
    """
    losses = _squared_errors if task == "regression" else _cross_entropies
    # Keras' own loss counts the rows of weight 0 that fill up an epoch.
    metrics = [_MeanOfRows("weighted_loss", losses, is_weighted=True)]
    if task != "regression":
        metrics.append(_MeanOfRows("accuracy", _hits))
    model.compile(optimizer, losses, weighted_metrics=metrics, steps_per_execution=steps_at_once)
    model.optimizer.build(model.trainable_variables)


def metrics_of_logs(logs: Mapping[str, float], label: Label) -> dict[str, float]:
    """Return the metrics of an epoch from the logs of `fit` for a model that `compile_model` compiled."""
    return metrics_of(float(logs["weighted_loss"]), float(logs.get("accuracy", 0)), label)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _squared_errors(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.square(tf.reshape(labels, [-1]) - tf.reshape(outputs, [-1]))


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _cross_entropies(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf_keras.losses.sparse_categorical_crossentropy(tf.reshape(labels, [-1]), outputs)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _hits(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.argmax(outputs, 1) == tf.cast(tf.reshape(labels, [-1]), tf.int64), tf.float32)


class _MeanOfRows(tf_keras.metrics.Mean):  # type: ignore[misc]  # tf_keras is not installed where types are checked
    """Mean of a value over the rows. Rows of weight 0, which fill up an epoch, do not count."""

    def __init__(
        self, name: str, measure: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], is_weighted: bool = False
    ) -> None:
        """Create the metric.

        Args:
            name: Name of the metric.
            measure: Returns a value for each row, [n], from labels and outputs.
            is_weighted: Whether to multiply the value of a row by its weight. Default: false.
        """
        super().__init__(name)
        self._measure, self._is_weighted = measure, is_weighted

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # for the same reason
    def update_state(self, labels: tf.Tensor, outputs: tf.Tensor, sample_weight: tf.Tensor) -> tf.Operation:
        """Add the rows of a batch."""
        weights = tf.reshape(sample_weight, [-1])
        values = self._measure(labels, outputs)
        return super().update_state(values * weights if self._is_weighted else values, tf.sign(weights))


def has_finite_weights(model: tf_keras.Model) -> bool:
    """Return whether no weight of a model is NaN or infinite."""
    return all(np.isfinite(weights).all() for weights in model.get_weights())


def read_data(folder: str | Path) -> str:
    """Return what `record_data` returned for the checkpoint in a folder; "" for none."""
    file = Path(folder, _DATA)
    return file.read_text() if file.exists() else ""


def keep_checkpoints(
    model: tf_keras.Model, folder: str, manifest: DatasetManifest, has_servers: bool = False, leads: bool = False
) -> tuple[Position, Callable[[Position], None]]:
    """Load the latest checkpoint of a folder.

    This works like Keras' BackupAndRestore, except that the chief of a cluster with parameter servers reads and writes
    all files. BackupAndRestore has no option for that, and each server would write its part to its own disk.

    Args:
        model: Compiled model to restore and to save.
        folder: Folder of the checkpoints.
        manifest: Manifest of the training dataset, as `keep_scales` returns it.
        has_servers: Whether the cluster has parameter servers. Default: false.
        leads: Whether this process prints how the data of the checkpoint differs. Default: false.

    Returns:
        Position of the checkpoint, and a function that saves a checkpoint with a position. The number in the name of a
        checkpoint is that of its finished epochs.

    Raises:
        SystemExit: The checkpoint is of another network, of other columns or classes, or of another program.
    """
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), folder, max_to_keep=1)
    # The first save would create this variable. Inside `fit`, all workers would have to create it at once.
    _ = manager.checkpoint.save_counter
    chief = "/job:chief/replica:0/task:0/device:CPU:0" if has_servers else None
    options = tf.train.CheckpointOptions(experimental_io_device=chief)
    newest, data, file = manager.latest_checkpoint, record_data(manifest), Path(folder, _DATA)
    end_if_other_program([] if newest else sorted(path.name for path in Path(folder).glob("*")))
    if newest:
        check_network(model, newest)
        if (line := end_if_other_data(read_data(folder), data)) and leads:
            print(line, flush=True)
        try:
            manager.checkpoint.restore(newest, options).assert_existing_objects_matched()
        except (AssertionError, ValueError):  # Missing variables, or variables of other shapes.
            refuse("lacks variables of this trainer, such as those of its optimizer", "resume from one of this trainer")

    def save(position: Position) -> None:
        with unfinished_file(file) as stream:
            stream.write(data.encode())
        # It never lies beside the weights of another position.
        Path(folder, _POSITION).unlink(missing_ok=True)
        # TensorFlow would rewrite it in place, although a snapshot of it may be waiting for its upload.
        Path(folder, f"ckpt-{position.epoch}.index").unlink(missing_ok=True)
        manager.save(position.epoch, options=options)
        if position.step:
            with unfinished_file(Path(folder, _POSITION)) as stream:
                stream.write(position.to_json().encode())

    return read_position(folder), save


def read_position(folder: str | Path) -> Position:
    """Return the position of the checkpoint in a folder, as `keep_checkpoints` saves it."""
    file, newest = Path(folder, _POSITION), tf.train.latest_checkpoint(folder)
    if file.exists():
        return Position.from_json(file.read_text())
    return Position(int(newest.rpartition("-")[2]) if newest else 0)


def check_network(model: tf_keras.Model, path: str) -> None:
    """Check that a checkpoint is of the same network as a model. TensorFlow would restore a part of it silently.

    Args:
        model: The model.
        path: Path of the checkpoint, as `tf.train.latest_checkpoint` returns it.

    Raises:
        SystemExit: It is of another network.
    """
    saved: dict[str, list[tuple[int, list[int]]]] = {"embeddings": [], "kernel": []}
    for name, shape in tf.train.list_variables(path):
        if match := re.fullmatch(
            r"model/layer_with_weights-(\d+)/(embeddings|kernel)/\.ATTRIBUTES/VARIABLE_VALUE", name
        ):
            saved[match[2]].append((int(match[1]), shape))
    end_if_other_network(
        architecture(*([shape for _, shape in sorted(found)] for found in saved.values())), _own(model)
    )


def _own(model: tf_keras.Model) -> Architecture | None:
    kinds = tf_keras.layers.Embedding, tf_keras.layers.Dense
    return architecture(
        *([layer.weights[0].shape for layer in model.layers if isinstance(layer, kind)] for kind in kinds)
    )
