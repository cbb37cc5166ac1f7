"""The trainer `keras_horovod`: a Keras classifier whose gradients Horovod averages over the ranks of an MPI job."""

import os
from pathlib import Path

import horovod.tensorflow.keras as hvd
import tensorflow as tf
import tf_keras
from horovod.tensorflow import broadcast_object
from tensorflow.python.autograph.core import config

from kfp_distributed.storage.dataset import parts_of_rank
from kfp_distributed.trainers.architecture import has_epochs_left
from kfp_distributed.trainers.divergence import end_if_diverged
from kfp_distributed.trainers.keras_fit import compile_model, has_finite_weights, keep_checkpoints, keep_input
from kfp_distributed.trainers.keras_model import build_model, export_model, log_scalars, score
from kfp_distributed.trainers.runtime.cluster import check_size
from kfp_distributed.trainers.runtime.feed import describe_batch, plan_epoch, read_manifest, read_records, write_records
from kfp_distributed.trainers.runtime.horovodrun import is_elastic
from kfp_distributed.trainers.runtime.job import REPLICA_VARIABLE, TRAINING_METRICS
from kfp_distributed.trainers.runtime.sync import record_epoch

# AutoGraph of TensorFlow 2.15 skips Keras, but only under the name `keras`. To convert tf_keras takes 15 s each start.
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

    Each rank computes the gradients of its own rows. Horovod averages them, and all ranks apply the average. Only rank
    0 writes checkpoints, metrics and the model. It broadcasts the restored checkpoint to the other ranks.

    In an elastic job, the remaining ranks form a new ring when a rank is lost. They divide the rows among themselves,
    and continue after the last epoch that all of them have finished.

    Args:
        train_dir: Folder with the manifest of the training dataset and the shards of this rank, or all shards in an
            elastic job.
        validation_dir: Folder of the validation dataset; "" for none.
        model_dir: Folder for the SavedModel of rank 0.
        checkpoint_dir: Folder for checkpoints, one after each epoch.
        metrics_dir: Folder for training.json.
        tensorboard_dir: Folder for rank 0's metrics in TensorBoard's format; "" for none.
        epochs: Number of passes over all rows, including those of a checkpoint. Default: 10.
        batch_size: Rows in one update of the weights, over all ranks. Every rank has the same number of rows, so an
            update has the largest multiple of the number of ranks that is not above batch_size, or fewer so that all
            updates of an epoch are of one size. Default: 32.
        learning_rate: Learning rate of the Adam optimizer. Default: 0.001.
        hidden_units: Sizes of the hidden layers. Default: [128].
        seed: Seed of the initial weights and of the order of the rows. Default: 0.
        scale_learning_rate: Whether to multiply learning_rate by the number of ranks. Default: false.
    """
    hvd.init()
    check_size(os.environ, hvd.size())
    if gpus := tf.config.list_physical_devices("GPU"):  # Each rank of a worker uses one.
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    # Each rank shuffles its rows with its own seed. The initial weights are those of rank 0, by broadcast.
    tf_keras.utils.set_random_seed(seed + hvd.rank())
    manifest, metrics_file = read_manifest(train_dir), Path(metrics_dir, TRAINING_METRICS)
    model, elastic = build_model(manifest, hidden_units), is_elastic(os.environ)
    compile_model(model, hvd.DistributedOptimizer(tf_keras.optimizers.Adam()), 1)
    done, save = keep_checkpoints(model, checkpoint_dir, manifest, leads=hvd.rank() == 0)
    state = hvd.elastic.KerasState(model, done=done, metrics=metrics_file.read_text() if metrics_file.exists() else "")

    def end_epoch(epoch: int, logs: dict[str, float]) -> None:
        rate = float(model.optimizer.learning_rate)
        end_if_diverged(epoch + 1, float(logs["weighted_loss"]), has_finite_weights(model), rate)
        if hvd.rank() == 0:
            save(epoch + 1)
            metrics = {"loss": float(logs["weighted_loss"]), "accuracy": float(logs["accuracy"])}
            metrics |= score(model, validation_dir) if validation_dir else {}
            if tensorboard_dir:
                log_scalars(tensorboard_dir, epoch + 1, metrics)
            record_epoch(metrics_file, os.environ[REPLICA_VARIABLE], epoch + 1, epochs, metrics)
        if elastic:
            state.done, state.metrics = broadcast_object((epoch + 1, hvd.rank() or metrics_file.read_text()))
            state.commit()

    def train(state: hvd.elastic.KerasState) -> None:
        if hvd.rank() == 0 and state.metrics:
            metrics_file.write_text(state.metrics)
        # In an elastic job, the number of ranks can change between two calls.
        model.optimizer.learning_rate = learning_rate * (hvd.size() if scale_learning_rate else 1)
        callback = tf_keras.callbacks.LambdaCallback(on_epoch_end=end_epoch)
        if has_epochs_left(state.done, epochs, hvd.rank() == 0):
            _fit(model, train_dir, batch_size, seed, range(state.done, epochs), callback)

    keep_input(model, lambda: plan_epoch(manifest.rows, batch_size, hvd.size()).batch)
    if elastic:
        hvd.elastic.run(train)(state)
        if state.done < epochs:  # Horovod mistakes some errors of TensorFlow for its own, and returns.
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
    """Train a model for some epochs on the rows of this rank. The rows depend on the current number of ranks."""
    rank, size, manifest = hvd.rank(), hvd.size(), read_manifest(train_dir)
    plan = plan_epoch(manifest.rows, batch_size, size)
    parts = parts_of_rank(manifest, rank, size)
    rows = sum(part.rows for part in parts)
    print(f"rank {rank} of {size} has {rows} rows and continues after epoch {epochs.start}", flush=True)
    if rank == 0:
        print(describe_batch(plan, batch_size, size), flush=True)
    write_records(Path(train_dir), manifest, parts, plan.records)
    model.fit(
        read_records(manifest, plan.batch, seed),
        epochs=epochs.stop,
        initial_epoch=epochs.start,
        steps_per_epoch=plan.steps,
        verbose=0,
        callbacks=[hvd.callbacks.MetricAverageCallback(), callback],
    )
