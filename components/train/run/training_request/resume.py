"""Copy the checkpoints and epoch metrics of another training, so that this training resumes from them."""

import json
import re
from collections.abc import Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from kfp_distributed.storage.errors import KeyNotFound, StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.parallel import run_in_parallel
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri
from kfp_distributed.trainers.programs.program import LANGUAGE_MODEL
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import (
    StoredCheckpoints,
    complete_checkpoints,
    list_checkpoints,
    parse_manifest,
)
from kfp_distributed.trainers.runtime.job_description import (
    EVALUATOR_METRICS,
    TRAINING_DATA,
    TRAINING_METRICS,
    JobDescription,
)

CHECKPOINTS = "checkpoints"
METRICS = "metrics"


class CopiedTraining(NamedTuple):
    """What was copied of another training.

    Attributes:
        newest: Name of the newest checkpoint that was copied.
        rejected: Names of the newer ones that were not copied, because their program failed right after it had restored
            them; latest first.
    """

    newest: str
    rejected: tuple[str, ...]

    def describe(self, resume_from: str) -> str:
        """Return the line of the step's log: which checkpoint is taken, and which newer ones are not, and why."""
        line = f"starts from checkpoint {self.newest} of {resume_from}"
        if not self.rejected:
            return line
        return (
            f"{line}. Newer checkpoints are left out, because the program failed right after it had restored them: "
            f"{', '.join(self.rejected)} (to take one, delete its NUMBER.failed)"
        )


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
        ValueError: The folder of the other training has no complete checkpoint, or all of them were rejected. Or the
            trainer is `language_model`, which cannot continue with other rows or more epochs.
    """
    if not resume_from or _has_checkpoint(description.checkpoint_uri):
        return False
    if description.program.get("trainer") == LANGUAGE_MODEL:
        # The Trainer of transformers counts updates alone: it would skip rows of another dataset, and begin the new
        # epochs with the learning rate 0.
        raise ValueError(
            f"resume_from = {resume_from!r}: {LANGUAGE_MODEL} does not continue the training of another run. Leave "
            "resume_from empty, and set base_model to the model of that training, saved with export = 'merged' or with "
            "method = 'full'. A run that has failed continues after its own checkpoints when it is retried"
        )
    try:
        stored = list_checkpoints(open_store(join_uri(resume_from, CHECKPOINTS)))
        if _usable(stored):
            return True
        cause = "the folder has no complete checkpoint"
        if stored.complete:
            cause = (
                "its program failed right after it had restored each of its complete checkpoints: "
                f"{', '.join(stored.complete)}. To take one of them, delete its NUMBER.failed"
            )
    except (StorageError, ValueError) as error:
        cause = str(error)
    raise ValueError(
        f"resume_from = {resume_from!r}: {cause}. Pass the folder of a training with a stored checkpoint, "
        'CHECKPOINT_URI/JOB. Its step prints it as "checkpoints are stored in". Leave resume_from empty to start a new '
        "training"
    )


def copy_training(resume_from: str, description: JobDescription) -> CopiedTraining:
    """Copy the checkpoints and epoch metrics of another training, and what is known about its training data.

    Checkpoints after whose restore the program failed are not copied.

    Returns:
        The newest checkpoint, and the newer ones that were not copied.

    Raises:
        StorageError: An object cannot be read or written. A checkpoint that was not copied completely is ignored later.
    """
    copied = copy_newest(open_store(join_uri(resume_from, CHECKPOINTS)), open_store(description.checkpoint_uri))
    # After the checkpoints: a training that goes on may have recorded more epochs by now. They are replaced when this
    # training reaches them.
    metrics = open_store(join_uri(resume_from, METRICS))
    own_metrics = open_store(description.metrics_uri)
    for file in (TRAINING_METRICS, EVALUATOR_METRICS):
        if metrics.exists(file):
            own_metrics.copy(metrics, file, file)
    if metrics.exists(TRAINING_DATA):
        own_metrics.copy(metrics, TRAINING_DATA, TRAINING_DATA)
    else:  # Version 0.1 did not store it.
        own_metrics.write(TRAINING_DATA, json.dumps([{}]).encode())
    return copied


def _usable(stored: StoredCheckpoints) -> list[str]:
    """Return the names of the complete checkpoints that were not rejected, latest first."""
    return [name for name in stored.complete if name not in stored.rejected]


def copy_newest(source: Store, target: Store) -> CopiedTraining:
    """Copy the complete checkpoints that were not rejected, latest first.

    The other training may go on. A checkpoint that it deletes meanwhile is left out, and a newer one is copied if the
    latest is deleted.

    Raises:
        StorageError: An object cannot be read or written.
    """
    copied: list[str] = []
    gone: set[str] = set()
    while name := _next_to_copy(_usable(stored := list_checkpoints(source)), copied, gone):
        try:
            copy_checkpoint(source, target, name)
            copied.append(name)
        except KeyNotFound:
            gone.add(name)
    if not copied:
        raise StorageError("", "", source.uri, "all checkpoints were deleted while they were copied")
    rejected = (name for name in stored.complete if name > copied[0] and name in stored.rejected)
    return CopiedTraining(copied[0], tuple(rejected))


def _next_to_copy(names: Sequence[str], copied: Sequence[str], gone: Set[str]) -> str:
    """Return the latest of the names that is older than all copied ones; "" if there is none."""
    return next((name for name in names if name not in gone and all(name < other for other in copied)), "")


def copy_checkpoint(source: Store, target: Store, name: str) -> None:
    """Copy a checkpoint. Its manifest is copied last, because a checkpoint without a manifest is ignored.

    Raises:
        KeyNotFound: An object of it was deleted.
        StorageError: An object cannot be read or written.
    """
    manifest = source.read(f"{name}.json")
    keys = [f"{name}/{file.path}" for file in parse_manifest(manifest)[0]]
    run_in_parallel(lambda key: target.copy(source, key, key), keys)
    target.write(f"{name}.json", manifest)


def _has_checkpoint(checkpoint_uri: str) -> bool:
    # The bucket may not exist yet. A store that does not answer is reported when the job is about to start.
    with suppress(StorageError):
        return bool(complete_checkpoints(open_store(checkpoint_uri)))
    return False
