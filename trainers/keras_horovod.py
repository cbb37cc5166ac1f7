"""The trainer `keras_horovod`: a Keras network whose gradients Horovod averages over the ranks of an MPI job."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import horovod.tensorflow.keras as hvd
import tensorflow as tf
import tf_keras
from horovod.tensorflow import broadcast_object

from kfp_distributed.storage.dataset import DatasetManifest, parts_of_rank, width
from kfp_distributed.trainers.epochs.best_epoch import choose_epoch
from kfp_distributed.trainers.epochs.divergence import end_if_diverged
from kfp_distributed.trainers.epochs.position import Position, plan_of_rows
from kfp_distributed.trainers.keras_training.keras_best import follow_checkpoints
from kfp_distributed.trainers.keras_training.keras_export import export_model
from kfp_distributed.trainers.keras_training.keras_fit import (
    compile_model,
    has_finite_weights,
    keep_checkpoints,
    metrics_of_logs,
    read_data,
)
from kfp_distributed.trainers.keras_training.keras_model import build_model, score
from kfp_distributed.trainers.keras_training.keras_steps import EpochSteps, fit_from, follow_steps
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters
from kfp_distributed.trainers.resumed_network import has_epochs_left, keep_scales
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import (
    describe_batch,
    number_of_epochs,
    plan_epoch,
    read_manifest,
)
from kfp_distributed.trainers.runtime.data_loading.row_dataset import dataset_of_rows
from kfp_distributed.trainers.runtime.data_loading.row_feed import open_rows
from kfp_distributed.trainers.runtime.data_loading.row_order import order_of_rows
from kfp_distributed.trainers.runtime.job_description import REPLICA_VARIABLE, TRAINING_METRICS
from kfp_distributed.trainers.runtime.outputs.epoch_metrics import record_epoch
from kfp_distributed.trainers.runtime.outputs.tensorboard_logs import log_scalars
from kfp_distributed.trainers.runtime.ranks.cluster import check_size, is_elastic
from kfp_distributed.trainers.runtime.workarounds.tensorflow_internals import leave_keras_unconverted

leave_keras_unconverted()


def keras_horovod(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    tensorboard_dir: str,
    parameters: TrainingParameters,
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
        parameters: Its parameters.
    """
    hvd.init()
    check_size(os.environ, hvd.size())
    if gpus := tf.config.list_physical_devices("GPU"):  # Each rank of a worker uses one.
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    tf_keras.utils.set_random_seed(parameters.seed)
    # All checkpoints of a training have the same scale, so a rank that joins an elastic job has that of the others.
    manifest = keep_scales(read_data(checkpoint_dir), read_manifest(train_dir), hvd.rank() == 0)
    batch_size, seed = parameters.batch_size, parameters.seed
    epochs = number_of_epochs(parameters.epochs, manifest.rows, batch_size)
    choice = choose_epoch(parameters, manifest.label.task, bool(validation_dir))
    metrics_file = Path(metrics_dir, TRAINING_METRICS)
    model, elastic = build_model(manifest, parameters.hidden_units), is_elastic(os.environ)
    compile_model(model, hvd.DistributedOptimizer(tf_keras.optimizers.Adam()), 1, manifest.label.task)
    position, save = keep_checkpoints(model, checkpoint_dir, manifest, leads=hvd.rank() == 0)
    best, save = follow_checkpoints(checkpoint_dir, choice, position, save, hvd.rank() == 0)
    metrics_text = metrics_file.read_text() if metrics_file.exists() else ""
    state = hvd.elastic.KerasState(
        model, done=position.epoch, position=position.to_json(), metrics=metrics_text, best=best.state
    )
    # In an elastic job, another rank can become rank 0.
    steps = EpochSteps(lambda position: save(position) if hvd.rank() == 0 else None)

    def end_epoch(epoch: int, logs: dict[str, float]) -> None:
        rate = float(model.optimizer.learning_rate)
        end_if_diverged(f"epoch {epoch + 1}", float(logs["weighted_loss"]), has_finite_weights(model), rate)
        metrics = metrics_of_logs(logs, manifest.label)
        if hvd.rank() == 0 and validation_dir:
            metrics |= score(model, validation_dir, manifest.label, lambda: steps.end_if_told(logs))
        if choice.is_followed:  # All ranks decide by the metrics of rank 0.
            metrics = broadcast_object(metrics)
            best.end_epoch(epoch + 1, metrics, model.get_weights)
        steps.end_epoch(epoch + 1)
        if hvd.rank() == 0:
            if tensorboard_dir:
                log_scalars(tensorboard_dir, epoch + 1, metrics)
            record_epoch(metrics_file, os.environ[REPLICA_VARIABLE], epoch + 1, epochs, metrics)
        model.stop_training = best.has_ended
        if elastic:
            state.best = best.state
            state.done, state.metrics = broadcast_object((epoch + 1, hvd.rank() or metrics_file.read_text()))
            state.commit()

    def train(state: hvd.elastic.KerasState) -> None:
        if hvd.rank() != 0:  # A former rank 0 would replace what its successor has stored.
            folder_uploads.drop()
        elif state.metrics:
            metrics_file.write_text(state.metrics)
        best.state = state.best
        # In an elastic job, the number of ranks can change between two calls.
        model.optimizer.learning_rate = parameters.rate(hvd.size())
        if has_epochs_left(state.done, epochs, hvd.rank() == 0) and not best.has_ended:
            saved = Position.from_json(state.position)
            # An elastic job has no position within an epoch, and it may have finished epochs since its start.
            start = Position(state.done) if state.done > saved.epoch else saved
            order = order_of_rows(width(manifest))
            own_plan = "elastic" if elastic else plan_of_rows(manifest, batch_size, hvd.size(), seed, order=order)
            where = steps.begin(start, own_plan, plan_epoch(manifest.rows, batch_size, hvd.size()).steps)
            with _open_rows(train_dir, manifest, batch_size, seed, parameters.class_weights, where) as rows:
                fit_from(model, rows, steps, epochs, end_epoch, [hvd.callbacks.MetricAverageCallback()])

    follow_steps(model, lambda: plan_epoch(manifest.rows, batch_size, hvd.size()).batch, steps)
    if elastic:
        hvd.elastic.run(train)(state)
        # Horovod mistakes some errors of TensorFlow for its own, and returns.
        if state.done < epochs and not best.has_ended:
            raise RuntimeError(f"Horovod ended the training after epoch {state.done} of {epochs}")
    else:
        state.sync()
        train(state)
    if hvd.rank() == 0:
        if weights := best.choose_model(metrics_file, epochs):
            model.set_weights(weights)
        export_model(model, manifest, model_dir)


@contextmanager
def _open_rows(
    train_dir: str, manifest: DatasetManifest, batch_size: int, seed: int, class_weights: str, where: str
) -> Iterator[Callable[[int, int], tf.data.Dataset]]:
    """Open the rows of this rank, which depend on the current number of ranks.

    Args:
        train_dir: Folder with the manifest of the training dataset.
        manifest: The manifest, as `keep_scales` returns it.
        batch_size: Rows of a step over all ranks, as the user has set it.
        seed: Seed of the order of the rows.
        class_weights: See `weights_of_classes`.
        where: Where the training continues, for the log.

    Yields:
        Function that returns the input of `fit` from an epoch on, after some of its steps.
    """
    rank, size = hvd.rank(), hvd.size()
    plan = plan_epoch(manifest.rows, batch_size, size)
    parts = parts_of_rank(manifest, rank, size)
    print(f"rank {rank} of {size} has {sum(part.rows for part in parts)} rows and {where}", flush=True)
    if rank == 0:
        print(describe_batch(plan, batch_size, size), flush=True)
    with open_rows(train_dir, manifest, parts, seed, class_weights, plan.records) as feed:
        yield lambda epoch, step: dataset_of_rows(feed, width(manifest), plan.batch, epoch, step * plan.batch)
