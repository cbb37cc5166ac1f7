"""Holds a training after one of its steps, so that no test depends on how fast a machine trains."""

from pathlib import Path

import pytest
from forked_replicas import SITE_VARIABLE

HELD = "this training is held"
"""Line of the leader when it is held. All earlier checkpoints are stored, and the leader looks for notices."""


def hold(patch: pytest.MonkeyPatch, folder: Path, question: int = 0, epoch: int = 0) -> Path:
    """Hold the next training of this test once: that of a trainer until a replica must end, another one until it ends.

    Args:
        patch: Sets the variables of the replicas.
        folder: Folder for files about it.
        question: Number of the question, from 1, which the leader answers when it is released. Trainers ask after each
            step of an epoch but the last whether a replica must end, synchronous ones of Keras after 50. Keras asks
            again when the metrics of the epoch are known, PyTorch after each batch of validation rows. Default: the
            leader is held after an epoch.
        epoch: Number of the epoch after which a function that calls `record_epoch` is held. Default: a question.

    Returns:
        A file. If the test creates it, the training continues.
    """
    patch.setenv(SITE_VARIABLE, str(Path(__file__).parent))
    patch.setenv("TESTS_HELD_QUESTION", str(question))
    patch.setenv("TESTS_HELD_EPOCH", str(epoch))
    patch.setenv("TESTS_HELD_LINE", HELD)
    patch.setenv("TESTS_HELD_UNTIL", str(folder / "released"))
    return folder / "released"
