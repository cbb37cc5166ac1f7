"""Functions that the Keras trainers share: compilation, checkpoints, and the input of `fit`."""

import ctypes
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras

from kfp_distributed.trainers.runtime.sampling import count_rows


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
    model: tf_keras.Model, folder: str, has_servers: bool = False
) -> tuple[int, Callable[[int], object]]:
    """Load the latest checkpoint of a folder.

    This works like Keras' BackupAndRestore, except that the chief of a cluster with parameter servers reads and writes
    all files. BackupAndRestore has no option for that, and each server would write its part to its own disk.

    Args:
        model: Model to restore and to save.
        folder: Folder of the checkpoints.
        has_servers: Whether the cluster has parameter servers. Default: false.

    Returns:
        Number of finished epochs in the checkpoint, and a function that saves a checkpoint with such a number.
    """
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), folder, max_to_keep=1)
    chief = "/job:chief/replica:0/task:0/device:CPU:0" if has_servers else None
    options = tf.train.CheckpointOptions(experimental_io_device=chief)
    newest = manager.latest_checkpoint
    if newest:
        manager.checkpoint.restore(newest, options)
    return int(newest.rpartition("-")[2]) if newest else 0, lambda epoch: manager.save(epoch, options=options)


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
