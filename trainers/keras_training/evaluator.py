"""The evaluator replica: scores each new checkpoint of keras_classifier while the training continues."""

import os
import time
from pathlib import Path

import tensorflow as tf
import tf_keras

from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.epochs.best_epoch import EpochChoice, resume_best
from kfp_distributed.trainers.keras_training.keras_best import read_best
from kfp_distributed.trainers.keras_training.keras_fit import check_network, read_data, read_position
from kfp_distributed.trainers.keras_training.keras_model import score
from kfp_distributed.trainers.resumed_network import keep_scales
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import (
    NoUsableCheckpoint,
    complete_checkpoints,
    restore_checkpoint,
)
from kfp_distributed.trainers.runtime.job_description import EVALUATOR_METRICS, JOB_VARIABLE, JobDescription
from kfp_distributed.trainers.runtime.outputs.epoch_metrics import record_epoch
from kfp_distributed.trainers.runtime.outputs.metrics_file import read_epochs


def evaluate_checkpoints(
    model: tf_keras.Model,
    manifest: DatasetManifest,
    validation_dir: str,
    checkpoint_dir: Path,
    metrics_dir: Path,
    epochs: int,
    choice: EpochChoice = EpochChoice(),  # noqa: B008 - immutable
) -> None:
    """Score new checkpoints until the last one is scored, after the last epoch or an early end.

    A checkpoint that is replaced by a newer one before it is read is skipped.

    Args:
        model: Model with the architecture of the one that is trained.
        manifest: Manifest of the training dataset.
        validation_dir: Folder of the validation dataset. If it is "", nothing is scored.
        checkpoint_dir: Local folder for one checkpoint.
        metrics_dir: Folder of evaluator.json. Epochs that this file already has are kept.
        epochs: Number of the last epoch.
        choice: When the training ends early. Default: never.

    Raises:
        SystemExit: A checkpoint is of another network. The leader ends for the same reason.
    """
    store = open_store(JobDescription.from_json(Path(os.environ[JOB_VARIABLE]).read_text()).checkpoint_uri)
    file, seen, has_ended = metrics_dir / EVALUATOR_METRICS, "", False
    while validation_dir and not has_ended and not any(entry["epoch"] >= epochs for entry in read_epochs(file)):
        time.sleep(1)
        try:
            if (newest := max(complete_checkpoints(store), default="")) == seen:
                continue
            # The download may get a newer checkpoint, or the previous one if the latest is damaged.
            seen = max(newest, restore_checkpoint(store, checkpoint_dir))
        except (StorageError, NoUsableCheckpoint) as error:  # The training continues, so the evaluator does as well.
            print(f"cannot read a checkpoint, retrying: {error}", flush=True)
            continue
        position = read_position(checkpoint_dir)
        # A checkpoint that was saved within an epoch is none of that epoch.
        if (path := tf.train.latest_checkpoint(checkpoint_dir)) and not position.step:
            check_network(model, path)
            tf.train.Checkpoint(model=model).restore(path).expect_partial()
            label = keep_scales(read_data(checkpoint_dir), manifest, leads=False).label
            record_epoch(file, "evaluator-0", position.epoch, epochs, score(model, validation_dir, label))
            saved, weights = read_best(checkpoint_dir)
            best, _ = resume_best(choice, saved, weights is not None, position.epoch)
            has_ended = choice.ends_after(best)
