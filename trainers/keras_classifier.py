"""The trainer `keras_classifier`: a Keras network that uses the TensorFlow strategy for the job's topology."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf
import tf_keras

from kfp_distributed.storage.dataset import DatasetManifest, parts_of_rank, width
from kfp_distributed.trainers.epochs.best_epoch import choose_epoch
from kfp_distributed.trainers.epochs.divergence import end_if_diverged
from kfp_distributed.trainers.epochs.position import plan_of_rows
from kfp_distributed.trainers.keras_training.evaluator import evaluate_checkpoints
from kfp_distributed.trainers.keras_training.keras_best import follow_checkpoints
from kfp_distributed.trainers.keras_training.keras_export import export_model
from kfp_distributed.trainers.keras_training.keras_fit import (
    compile_model,
    has_finite_weights,
    keep_checkpoints,
    metrics_of_logs,
    read_data,
    steps_at_once,
)
from kfp_distributed.trainers.keras_training.keras_model import build_model, score
from kfp_distributed.trainers.keras_training.keras_steps import EpochSteps, fit_from, follow_steps
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters
from kfp_distributed.trainers.resumed_network import has_epochs_left, keep_scales
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import (
    Epoch,
    describe_batch,
    number_of_epochs,
    plan_epoch,
    read_manifest,
)
from kfp_distributed.trainers.runtime.data_loading.row_dataset import dataset_of_rows, dataset_of_served_rows
from kfp_distributed.trainers.runtime.data_loading.row_feed import open_rows
from kfp_distributed.trainers.runtime.data_loading.row_order import order_of_rows
from kfp_distributed.trainers.runtime.data_loading.served_rows import RowOptions, RowRequest
from kfp_distributed.trainers.runtime.data_loading.target import weights_of_classes
from kfp_distributed.trainers.runtime.job_description import TRAINING_METRICS
from kfp_distributed.trainers.runtime.outputs.epoch_metrics import record_epoch
from kfp_distributed.trainers.runtime.outputs.tensorboard_logs import log_scalars
from kfp_distributed.trainers.runtime.ranks.cluster import Cluster, read_cluster


def keras_classifier(
    train_dir: str,
    validation_dir: str,
    model_dir: str,
    checkpoint_dir: str,
    metrics_dir: str,
    tensorboard_dir: str,
    parameters: TrainingParameters,
) -> None:
    """Train a fully connected network and save it as a SavedModel.

    TF_CONFIG decides about the strategy. With parameter servers it is ParameterServerStrategy (asynchronous), with
    several workers MultiWorkerMirroredStrategy (synchronous). Without TF_CONFIG, the devices of this machine train.
    The training continues where the checkpoint in checkpoint_dir was saved: after an epoch, or within one if a replica
    had to end. An evaluator scores the checkpoints of the job instead of training.

    Args:
        train_dir: Folder with the manifest of the training dataset and the shards of this process.
        validation_dir: Folder of the validation dataset; "" for none.
        model_dir: Folder for the SavedModel. The leader writes it.
        checkpoint_dir: Folder for checkpoints, one after each epoch and one before an early end.
        metrics_dir: Folder for training.json. The leader's file is stored.
        tensorboard_dir: Folder for the leader's metrics in TensorBoard's format; "" for none.
        parameters: Its parameters.
    """
    tf.get_logger().setLevel("ERROR")
    tf_keras.utils.set_random_seed(parameters.seed)
    own, cluster = read_manifest(train_dir), read_cluster(os.environ)
    batch_size, seed = parameters.batch_size, parameters.seed
    epochs = number_of_epochs(parameters.epochs, own.rows, batch_size)
    choice = choose_epoch(parameters, own.label.task, bool(validation_dir))
    if cluster.role == "evaluator":
        model = build_model(keep_scales(read_data(checkpoint_dir), own, leads=False), parameters.hidden_units)
        evaluate_checkpoints(model, own, validation_dir, Path(checkpoint_dir), Path(metrics_dir), epochs, choice)
        return
    manifest = keep_scales(read_data(checkpoint_dir), own, cluster.index == 0)
    has_servers, workers = "ps" in cluster.addresses, cluster.workers
    strategy = _strategy(cluster)  # First of all: TensorFlow can set up its collective operations only once.
    # The leader scores and saves a copy of the model in its own process.
    copy = build_model(manifest, parameters.hidden_units)
    # With parameter servers, each step belongs to one worker, which reads its records endlessly. So workers need not
    # have the same number of steps.
    ranks = (1, 1) if has_servers else (workers, strategy.num_replicas_in_sync // workers)
    plan = plan_epoch(manifest.rows, batch_size, *ranks)
    rate = parameters.rate(strategy.num_replicas_in_sync)
    with strategy.scope():
        model = build_model(manifest, parameters.hidden_units)
        at_once = 1 if has_servers else steps_at_once(model, plan.steps, plan.batch)
        compile_model(model, tf_keras.optimizers.Adam(rate), at_once, manifest.label.task)
    position, save = keep_checkpoints(model, checkpoint_dir, manifest, has_servers, cluster.index == 0)
    best, save = follow_checkpoints(checkpoint_dir, choice, position, save, cluster.index == 0)
    steps = EpochSteps(save)
    order = order_of_rows(width(manifest))
    where = steps.begin(position, plan_of_rows(manifest, batch_size, ranks[0], seed, ranks[1], order), plan.steps)
    if cluster.index == 0 and (position.epoch or position.step):
        print(where, flush=True)
    if not has_servers:  # With parameter servers, only the chief restores a checkpoint.
        _check_agreement(strategy, position.epoch, steps.position.step)

    file = Path(metrics_dir, TRAINING_METRICS)

    def end_epoch(epoch: int, logs: dict[str, float]) -> None:
        end_if_diverged(f"epoch {epoch + 1}", float(logs["weighted_loss"]), has_finite_weights(model), rate)
        metrics = metrics_of_logs(logs, manifest.label)
        if validation_dir and cluster.index == 0:
            copy.set_weights(model.get_weights())
            metrics |= score(copy, validation_dir, manifest.label, lambda: steps.end_if_told(logs))
        if cluster.index == 0:
            best.end_epoch(epoch + 1, metrics, model.get_weights)
        steps.end_epoch(epoch + 1)
        if tensorboard_dir and cluster.index == 0:
            log_scalars(tensorboard_dir, epoch + 1, metrics)
        record_epoch(file, f"{cluster.role}-{cluster.index}", epoch + 1, epochs, metrics)
        if choice.patience:
            model.stop_training = best.has_ended if has_servers else _is_true_in_leader(strategy, best.has_ended)

    if cluster.index == 0:
        print(describe_batch(plan, batch_size, ranks[0] * ranks[1]), flush=True)
    follow_steps(model, lambda: plan.batch * ranks[1], steps, at_once, workers)
    if has_epochs_left(position.epoch, epochs, cluster.index == 0) and not best.has_ended:
        own_rows = (
            _rows_of_workers(manifest, seed, parameters.class_weights, plan, workers)
            if has_servers
            else _open_rows(train_dir, manifest, cluster, seed, parameters.class_weights, plan)
        )
        with own_rows as rows:
            fit_from(model, rows, steps, epochs, end_epoch)
    if cluster.index == 0:
        copy.set_weights(best.choose_model(file, epochs) or model.get_weights())
        export_model(copy, manifest, model_dir)


Input = Callable[[int, int], tf_keras.utils.experimental.DatasetCreator]
"""Returns the input of `fit` from an epoch on, after some of its steps."""


@contextmanager
def _open_rows(
    train_dir: str, manifest: DatasetManifest, cluster: Cluster, seed: int, class_weights: str, plan: Epoch
) -> Iterator[Input]:
    """Open the rows of this worker."""
    parts = parts_of_rank(manifest, cluster.index, cluster.workers)
    records_of_step = plan.records // plan.steps
    with open_rows(train_dir, manifest, parts, seed, class_weights, plan.records) as feed:

        def rows(epoch: int, finished: int) -> tf_keras.utils.experimental.DatasetCreator:
            return tf_keras.utils.experimental.DatasetCreator(
                lambda context: dataset_of_rows(feed, width(manifest), plan.batch, epoch, finished * records_of_step)
            )

        yield rows


@contextmanager
def _rows_of_workers(
    manifest: DatasetManifest, seed: int, class_weights: str, plan: Epoch, workers: int
) -> Iterator[Input]:
    """Request the rows that the workers of parameter servers serve to the graphs of this chief."""
    weights_of_classes(manifest, class_weights)  # Refuses what each worker would refuse.
    options = RowOptions(seed, class_weights, manifest.label.mean, manifest.label.std)

    def rows(epoch: int, finished: int) -> tf_keras.utils.experimental.DatasetCreator:
        # Each worker has computed about as many steps as the others.
        request = RowRequest(options, epoch, finished * plan.batch // workers)
        return tf_keras.utils.experimental.DatasetCreator(
            lambda context: dataset_of_served_rows(request, width(manifest), plan.batch)
        )

    yield rows


def _strategy(cluster: Cluster) -> tf.distribute.Strategy:
    if "ps" in cluster.addresses:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
        return tf.distribute.ParameterServerStrategy(resolver)
    if cluster.workers > 1:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        # The strategy has replaced the handler of SIGTERM. Without this line the process would continue to train.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        return strategy
    # Uses the GPUs, or several logical CPUs if the program has configured them.
    mirrored = tf.distribute.MirroredStrategy()
    return mirrored if mirrored.num_replicas_in_sync > 1 else tf.distribute.get_strategy()


def _check_agreement(strategy: tf.distribute.Strategy, epoch: int, step: int) -> None:
    """Check that all workers start with the same epoch, after the same step of it.

    Each worker has fetched the latest checkpoint itself, and one may have done so before the last upload ended.

    Raises:
        tf.errors.UnavailableError: They do not. It counts as the loss of a peer, so all workers restart.
    """
    total = strategy.reduce("SUM", strategy.run(lambda: tf.constant([epoch, step], tf.int64)), axis=None)
    if total.numpy().tolist() != [number * strategy.num_replicas_in_sync for number in (epoch, step)]:
        where = f"of epoch {epoch}" + (f" and {step} steps" if step else "")
        message = f"the checkpoint of this worker is {where}, and that of another worker is not"
        raise tf.errors.UnavailableError(None, None, message)


def _is_true_in_leader(strategy: tf.distribute.Strategy, value: bool) -> bool:
    """Return in all workers the value of the leader, which alone has the metrics. It is false in the others."""
    total = strategy.reduce("SUM", strategy.run(lambda: tf.constant(int(value), tf.int64)), axis=None)
    return bool(total.numpy())
