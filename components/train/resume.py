"""Continues another training: its checkpoints and epoch metrics are copied to where this training keeps its own."""

import re
from contextlib import suppress

from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri
from kfp_distributed.trainers.runtime.checkpoints import complete_checkpoints
from kfp_distributed.trainers.runtime.job import EVALUATOR_METRICS, TRAINING_METRICS, JobDescription

CHECKPOINTS = "checkpoints"
METRICS = "metrics"


def training_folder(description: JobDescription) -> str:
    """Returns the URI of the folder with a training's checkpoints and metrics, CHECKPOINT_URI/JOB."""
    return re.sub(rf"/{CHECKPOINTS}(?=\?|$)", "", description.checkpoint_uri)


def check_resume(resume_from: str, description: JobDescription) -> bool:
    """Checks that another training can be continued. Writes nothing.

    Args:
        resume_from: The other training's folder, CHECKPOINT_URI/JOB; "" for none.
        description: The training that is about to start.

    Returns:
        Whether the other training's checkpoints are to be copied: not where this one has a complete checkpoint itself.

    Raises:
        ValueError: There is no complete checkpoint in the other training's folder.
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
        f"resume_from = {resume_from!r}: {cause}. Pass the folder of a training that has stored a checkpoint, "
        'CHECKPOINT_URI/JOB: its step prints it as "checkpoints are stored in". Leave resume_from empty to train '
        "from the start"
    )


def copy_training(resume_from: str, description: JobDescription) -> str:
    """Copies checkpoints and epoch metrics of another training, the manifest of each checkpoint last.

    Returns:
        The name of the newest checkpoint.

    Raises:
        StorageError: Something cannot be read or written. What was copied is complete or is not taken for a checkpoint.
    """
    metrics = open_store(join_uri(resume_from, METRICS))
    own_metrics = open_store(description.metrics_uri)
    for name in (TRAINING_METRICS, EVALUATOR_METRICS):
        if metrics.exists(name):
            own_metrics.copy(metrics, name, name)
    checkpoints = open_store(join_uri(resume_from, CHECKPOINTS))
    own_checkpoints = open_store(description.checkpoint_uri)
    names = complete_checkpoints(checkpoints)
    for name in names:
        copy_checkpoint(checkpoints, own_checkpoints, name)
    return names[0]


def copy_checkpoint(source: Store, target: Store, name: str) -> None:
    """Copies a checkpoint, its manifest last: a copy that breaks off is not taken for a checkpoint."""
    for entry in source.list(f"{name}/"):
        target.copy(source, entry.key, entry.key)
    target.copy(source, f"{name}.json", f"{name}.json")


def _has_checkpoint(checkpoint_uri: str) -> bool:
    # The bucket may not exist yet. A store that is away is reported when the job is about to start.
    with suppress(StorageError):
        return bool(complete_checkpoints(open_store(checkpoint_uri)))
    return False
