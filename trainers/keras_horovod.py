"""The trainer `keras_horovod`: a Keras network for classes, trained by Horovod's all-reduce among the ranks of MPI."""

import os
from pathlib import Path

import horovod.tensorflow.keras as hvd
import tensorflow as tf
import tf_keras
from horovod.tensorflow import broadcast_object
from tensorflow.python.autograph.core import config

from kfp_distributed.storage.dataset import slices_of_rank
from kfp_distributed.trainers.divergence import end_if_diverged
from kfp_distributed.trainers.keras_fit import compile_model, has_finite_weights, keep_checkpoints, keep_input
from kfp_distributed.trainers.keras_model import build_model, export_model, log_scalars, score
from kfp_distributed.trainers.runtime.cluster import check_size
from kfp_distributed.trainers.runtime.feed import plan_epoch, read_manifest, read_records, write_records
from kfp_distributed.trainers.runtime.horovodrun import is_elastic
from kfp_distributed.trainers.runtime.job import REPLICA_VARIABLE, TRAINING_METRICS
from kfp_distributed.trainers.runtime.sync import record_epoch

# TensorFlow 2.15 leaves Keras as it is, but does not know this name of it: rewriting all of it takes 15 s a start.
config.CONVERSION_RULES = (config.DoNotConvert("tf_keras"), *config.CONVERSION_RULES)


def keras_horovod(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    tensorboard_dir: str,
    epochs: int = 10,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    hidden_units: list[int] = [128],  # noqa: B006 - a literal, so that the signature says it
    seed: int = 0,
    scale_learning_rate: bool = False,
) -> None:
    """Train a fully connected network on all ranks together and save it as a SavedModel.

    Each rank computes the gradients of its own rows, Horovod averages them, and all apply the same. Rank 0 alone
    keeps checkpoints and metrics and saves the model; what it goes on from reaches the others by broadcast.

    In an elastic job the ranks that are left when one dies meet anew, divide the rows among themselves, and go on
    after the last epoch that all have finished.

    Args:
        train_dir: The training dataset's manifest and the shards of this rank; of an elastic job all shards.
        validation_dir: The validation dataset; "" where there is none.
        model_dir: Gets the SavedModel, in rank 0.
        checkpoint_dir: Gets a checkpoint after each epoch.
        metrics_dir: Gets training.json.
        tensorboard_dir: Gets rank 0's metrics as TensorBoard reads them; "" where nobody wants them.
        epochs: How often all rows are seen.
        batch_size: Rows of one update of the weights, over all ranks.
        learning_rate: Of the Adam optimizer.
        hidden_units: Sizes of the hidden layers.
        seed: For the first weights and the order of the rows.
        scale_learning_rate: Whether to multiply learning_rate by the number of ranks.
    """
    hvd.init()
    check_size(os.environ, hvd.size())
    if gpus := tf.config.list_physical_devices("GPU"):  # One for each rank of a worker.
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    # An order of its own for each rank; the first weights are those of rank 0, by broadcast.
    tf_keras.utils.set_random_seed(seed + hvd.rank())
    manifest, kept = read_manifest(train_dir), Path(metrics_dir, TRAINING_METRICS)
    model, elastic = build_model(manifest, hidden_units), is_elastic(os.environ)
    compile_model(model, hvd.DistributedOptimizer(tf_keras.optimizers.Adam()), 1)
    done, save = keep_checkpoints(model, checkpoint_dir)
    state = hvd.elastic.KerasState(model, done=done, metrics=kept.read_text() if kept.exists() else "")

    def end_epoch(epoch: int, logs: dict[str, float]) -> None:
        rate = float(model.optimizer.learning_rate)
        end_if_diverged(epoch + 1, float(logs["weighted_loss"]), has_finite_weights(model), rate)
        if hvd.rank() == 0:
            save(epoch + 1)
            metrics = {"loss": float(logs["weighted_loss"]), "accuracy": float(logs["accuracy"])}
            metrics |= score(model, validation_dir) if validation_dir else {}
            if tensorboard_dir:
                log_scalars(tensorboard_dir, epoch + 1, metrics)
            record_epoch(kept, os.environ[REPLICA_VARIABLE], epoch + 1, epochs, metrics)
        if elastic:
            state.done, state.metrics = broadcast_object((epoch + 1, hvd.rank() or kept.read_text()))
            state.commit()

    def train(state: hvd.elastic.KerasState) -> None:
        if hvd.rank() == 0 and state.metrics:
            kept.write_text(state.metrics)
        # In an elastic job the number of ranks may be another one each time.
        model.optimizer.learning_rate = learning_rate * (hvd.size() if scale_learning_rate else 1)
        callback = tf_keras.callbacks.LambdaCallback(on_epoch_end=end_epoch)
        _fit(model, train_dir, batch_size, seed, range(state.done, epochs), callback)

    keep_input(model, lambda: plan_epoch(manifest.rows, batch_size, hvd.size()).batch)
    if elastic:
        hvd.elastic.run(train)(state)
        if state.done < epochs:  # It takes some errors of TensorFlow's for its own, and returns.
            raise RuntimeError(f"Horovod ended the training after epoch {state.done} of {epochs}")
    else:
        state.sync()
        train(state)
    if hvd.rank() == 0:
        export_model(model, manifest, model_dir)


def _fit(
    model: tf_keras.Model,
    train_dir: str,
    batch_size: int,
    seed: int,
    epochs: range,
    callback: tf_keras.callbacks.Callback,
) -> None:
    """Train a model for some epochs on the rows of this rank, of as many ranks as there are now."""
    rank, size, manifest = hvd.rank(), hvd.size(), read_manifest(train_dir)
    plan = plan_epoch(manifest.rows, batch_size, size)
    slices = slices_of_rank(manifest, rank, size)
    rows = sum(part.stop - part.start for part in slices)
    print(f"rank {rank} of {size} has {rows} rows and goes on after epoch {epochs.start}", flush=True)
    write_records(Path(train_dir), manifest, slices, plan.records)
    model.fit(
        read_records(manifest, plan.batch, seed),
        epochs=epochs.stop,
        initial_epoch=epochs.start,
        steps_per_epoch=plan.steps,
        verbose=0,
        callbacks=[hvd.callbacks.MetricAverageCallback(), callback],
    )
