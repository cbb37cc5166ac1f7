"""Holds a training after one of its steps, so that no test depends on how fast a machine trains."""

from pathlib import Path

import pytest
from forked_replicas import SITE_VARIABLE

HELD = "this training is held"
"""Line of the leader when it is held. All earlier checkpoints are stored, and the leader looks for notices."""


def hold(patch: pytest.MonkeyPatch, folder: Path, question: int) -> Path:
    """Hold the next training of a trainer in this test once, until a replica must end.

    Args:
        patch: Sets the variables of the replicas.
        folder: Folder for files about it.
        question: Number of the question, from 1, which the leader answers when it is released. Trainers ask after each
            step of an epoch but the last whether a replica must end, synchronous ones of Keras after 50. Keras asks
            again when the metrics of the epoch are known, PyTorch after each batch of validation rows.

    Returns:
        A file. If the test creates it, the training continues.
    """
    patch.setenv(SITE_VARIABLE, str(Path(__file__).parent))
    patch.setenv("TESTS_HELD_QUESTION", str(question))
    patch.setenv("TESTS_HELD_LINE", HELD)
    patch.setenv("TESTS_HELD_UNTIL", str(folder / "released"))
    return folder / "released"
