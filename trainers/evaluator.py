"""The evaluator replica: scores each new checkpoint of keras_classifier while the training goes on."""

import os
import time
from pathlib import Path

import tensorflow as tf
import tf_keras

from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.keras_model import score
from kfp_distributed.trainers.runtime.checkpoints import complete_checkpoints, restore_checkpoint
from kfp_distributed.trainers.runtime.job import EVALUATOR_METRICS, JOB_VARIABLE, JobDescription
from kfp_distributed.trainers.runtime.sync import read_epochs, record_epoch


def evaluate_checkpoints(
    model: tf_keras.Model, validation_dir: str, checkpoint_dir: Path, metrics_dir: Path, epochs: int
) -> None:
    """Score new checkpoints until that of the last epoch is done; one that is overtaken may be left out.

    Args:
        model: A model as the training's.
        validation_dir: The validation dataset; without one there is nothing to do.
        checkpoint_dir: Local folder for one checkpoint.
        metrics_dir: Gets evaluator.json; what is in it is continued.
        epochs: The last epoch.
    """
    store = open_store(JobDescription.from_json(Path(os.environ[JOB_VARIABLE]).read_text()).checkpoint_uri)
    file, seen = metrics_dir / EVALUATOR_METRICS, ""
    while validation_dir and not any(entry["epoch"] >= epochs for entry in read_epochs(file)):
        time.sleep(1)
        try:
            if (newest := max(complete_checkpoints(store), default="")) == seen:
                continue
            # What is fetched may be a newer one, or, where the newest is damaged, the one before.
            seen = max(newest, restore_checkpoint(store, checkpoint_dir))
        except StorageError as error:  # The training goes on without us, and so do we.
            print(f"no checkpoint can be read, trying again: {error}", flush=True)
            continue
        if path := tf.train.latest_checkpoint(checkpoint_dir):
            tf.train.Checkpoint(model=model).restore(path).expect_partial()
            record_epoch(file, "evaluator-0", int(path.rpartition("-")[2]), epochs, score(model, validation_dir))
