"""Functions that the Keras trainers share: compilation, checkpoints, and the input of `fit`."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras

from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.trainers.architecture import (
    Architecture,
    architecture,
    end_if_other_data,
    end_if_other_network,
    end_if_other_program,
    record_data,
    refuse,
)
from kfp_distributed.trainers.runtime.sampling import count_rows

_DATA = "data.json"
"""File beside the checkpoint that describes its training data."""


def compile_model(model: tf_keras.Model, optimizer: tf_keras.optimizers.Optimizer, steps_at_once: int) -> None:
    """Compile a model for training. Call it inside the scope of the strategy."""
    model.compile(
        optimizer,
        "sparse_categorical_crossentropy",
        # Weighted, because Keras' own loss counts the rows of weight 0 that fill up an epoch.
        weighted_metrics=["accuracy", tf_keras.metrics.SparseCategoricalCrossentropy(name="weighted_loss")],
        steps_per_execution=steps_at_once,
    )
    model.optimizer.build(model.trainable_variables)


def has_finite_weights(model: tf_keras.Model) -> bool:
    """Return whether no weight of a model is NaN or infinite."""
    return all(np.isfinite(weights).all() for weights in model.get_weights())


def keep_checkpoints(
    model: tf_keras.Model, folder: str, manifest: DatasetManifest, has_servers: bool = False, leads: bool = False
) -> tuple[int, Callable[[int], None]]:
    """Load the latest checkpoint of a folder.

    This works like Keras' BackupAndRestore, except that the chief of a cluster with parameter servers reads and writes
    all files. BackupAndRestore has no option for that, and each server would write its part to its own disk.

    Args:
        model: Compiled model to restore and to save.
        folder: Folder of the checkpoints.
        manifest: Manifest of the training dataset.
        has_servers: Whether the cluster has parameter servers. Default: false.
        leads: Whether this process prints how the data of the checkpoint differs. Default: false.

    Returns:
        Number of finished epochs in the checkpoint, and a function that saves a checkpoint with such a number.

    Raises:
        SystemExit: The checkpoint is of another network, of other columns or classes, or of another program.
    """
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), folder, max_to_keep=1)
    chief = "/job:chief/replica:0/task:0/device:CPU:0" if has_servers else None
    options = tf.train.CheckpointOptions(experimental_io_device=chief)
    newest, data, file = manager.latest_checkpoint, record_data(manifest), Path(folder, _DATA)
    end_if_other_program([] if newest else sorted(path.name for path in Path(folder).glob("*")))
    if newest:
        check_network(model, newest)
        if (line := end_if_other_data(file.read_text() if file.exists() else "", data)) and leads:
            print(line, flush=True)
        try:
            manager.checkpoint.restore(newest, options).assert_existing_objects_matched()
        except (AssertionError, ValueError):  # Missing variables, or variables of other shapes.
            refuse("lacks variables of this trainer, such as those of its optimizer", "resume from one of this trainer")

    def save(epoch: int) -> None:
        with unfinished_file(file) as stream:
            stream.write(data.encode())
        manager.save(epoch, options=options)

    return int(newest.rpartition("-")[2]) if newest else 0, save


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


def keep_input(model: tf_keras.Model, rows_of_step: Callable[[], int]) -> None:
    """Keep the input iterator of `fit` alive until the process ends, and count its rows.

    Its destructor, here or in a remote worker, waits for a thread of tf.data. This thread may miss its notification
    and then sleeps for up to a minute (TensorFlow 2.21, Model::OptimizeLoop: the notification comes before
    IsCancelled() returns true).

    Args:
        model: Compiled model, before the call of `fit`.
        rows_of_step: Returns the number of rows that this process reads in a step, for its samples.
    """
    make_train_function, kept = model.make_train_function, set()

    def make(force: bool = False) -> Callable[[object], object]:
        step = make_train_function(force)

        def keep(iterator: object) -> object:
            if id(iterator) not in kept:
                kept.add(id(iterator))
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(iterator))
            # One call runs several steps.
            count_rows(rows_of_step() * int(model._steps_per_execution.numpy()))
            return step(iterator)

        return keep

    model.make_train_function = make
