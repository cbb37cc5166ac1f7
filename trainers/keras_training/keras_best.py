"""The best epoch in the checkpoints of the Keras trainers: its record and its weights, in two files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.files import unfinished_file
from kfp_distributed.trainers.epochs.best_epoch import EpochChoice
from kfp_distributed.trainers.epochs.epoch_follower import EpochFollower
from kfp_distributed.trainers.epochs.position import Position

_BEST, _WEIGHTS = "best.json", "best.npz"

KerasWeights: TypeAlias = list[NDArray[Any]]
"""Weights of a model, as `get_weights` returns them."""


def read_best(folder: str | Path) -> tuple[str, KerasWeights | None]:
    """Return the record of the best epoch in the checkpoint of a folder, and its weights; "" and None for none."""
    record, file = Path(folder, _BEST), Path(folder, _WEIGHTS)
    weights = None
    if file.exists():
        with np.load(file, allow_pickle=False) as arrays:
            weights = [arrays[f"arr_{number}"] for number in range(len(arrays.files))]
    return record.read_text() if record.exists() else "", weights


def follow_checkpoints(
    folder: str, choice: EpochChoice, position: Position, save: Callable[[Position], object], leads: bool
) -> tuple[EpochFollower[KerasWeights], Callable[[Position], None]]:
    """Continue to follow the epochs of the checkpoint in a folder.

    Args:
        folder: Folder of the checkpoint.
        choice: Which epoch becomes the model, and when the training ends early.
        position: Position of the checkpoint.
        save: Saves a checkpoint with a position.
        leads: Whether this process prints if the epochs of the checkpoint do not count.

    Returns:
        The follower, and a function that saves a checkpoint with a position and with the best epoch.
    """
    follower = EpochFollower(choice, *read_best(folder), position.epoch, leads)
    record, file = Path(folder, _BEST), Path(folder, _WEIGHTS)
    written: list[KerasWeights | None] = [None]

    def save_both(position: Position) -> None:
        best, weights = follower.state
        if best is None:
            record.unlink(missing_ok=True)
        else:
            with unfinished_file(record) as stream:
                stream.write(best.to_json().encode())
        if weights is None:
            file.unlink(missing_ok=True)
        elif weights is not written[0]:
            with unfinished_file(file) as stream:
                np.savez(stream, *weights)
        written[0] = weights
        save(position)

    return follower, save_both
