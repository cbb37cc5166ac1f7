"""Copy the checkpoints and epoch metrics of another training, so that this training resumes from them."""

import json
import re
from contextlib import suppress

from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri
from kfp_distributed.trainers.runtime.checkpoints import complete_checkpoints
from kfp_distributed.trainers.runtime.job import EVALUATOR_METRICS, TRAINING_DATA, TRAINING_METRICS, JobDescription

CHECKPOINTS = "checkpoints"
METRICS = "metrics"


def training_folder(description: JobDescription) -> str:
    """Return the URI of the folder with the checkpoints and metrics of a training, CHECKPOINT_URI/JOB."""
    return re.sub(rf"/{CHECKPOINTS}(?=\?|$)", "", description.checkpoint_uri)


def check_resume(resume_from: str, description: JobDescription) -> bool:
    """Check whether a training can resume from another one. Writes nothing.

    Args:
        resume_from: Folder of the other training, CHECKPOINT_URI/JOB; "" for none.
        description: Description of the training that is about to start.

    Returns:
        Whether to copy the checkpoints of the other training. False if this training has a complete checkpoint itself.

    Raises:
        ValueError: The folder of the other training has no complete checkpoint.
    """
    if not resume_from or _has_checkpoint(description.checkpoint_uri):
        return False
    try:
        if complete_checkpoints(open_store(join_uri(resume_from, CHECKPOINTS))):
            return True
        cause = "the folder has no complete checkpoint"
    except (StorageError, ValueError) as error:
        cause = str(error)
    raise ValueError(
        f"resume_from = {resume_from!r}: {cause}. Pass the folder of a training with a stored checkpoint, "
        'CHECKPOINT_URI/JOB. Its step prints it as "checkpoints are stored in". Leave resume_from empty to start a new '
        "training"
    )


def copy_training(resume_from: str, description: JobDescription) -> str:
    """Copy the checkpoints and epoch metrics of another training, and what is known about its training data.

    Returns:
        Name of the newest checkpoint.

    Raises:
        StorageError: An object cannot be read or written. A checkpoint that was not copied completely is ignored later.
    """
    metrics = open_store(join_uri(resume_from, METRICS))
    own_metrics = open_store(description.metrics_uri)
    for name in (TRAINING_METRICS, EVALUATOR_METRICS):
        if metrics.exists(name):
            own_metrics.copy(metrics, name, name)
    if metrics.exists(TRAINING_DATA):
        own_metrics.copy(metrics, TRAINING_DATA, TRAINING_DATA)
    else:  # Version 0.1 did not store it.
        own_metrics.write(TRAINING_DATA, json.dumps([{}]).encode())
    checkpoints = open_store(join_uri(resume_from, CHECKPOINTS))
    own_checkpoints = open_store(description.checkpoint_uri)
    names = complete_checkpoints(checkpoints)
    for name in names:
        copy_checkpoint(checkpoints, own_checkpoints, name)
    return names[0]


def copy_checkpoint(source: Store, target: Store, name: str) -> None:
    """Copy a checkpoint. Its manifest is copied last, because a checkpoint without a manifest is ignored."""
    for entry in source.list(f"{name}/"):
        target.copy(source, entry.key, entry.key)
    target.copy(source, f"{name}.json", f"{name}.json")


def _has_checkpoint(checkpoint_uri: str) -> bool:
    # The bucket may not exist yet. A store that does not answer is reported when the job is about to start.
    with suppress(StorageError):
        return bool(complete_checkpoints(open_store(checkpoint_uri)))
    return False
