"""Follows the epochs of a built-in trainer: keeps the weights of the best one, and chooses those of the model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from kfp_distributed.trainers.epochs.best_epoch import (
    BestEpoch,
    EpochChoice,
    describe_end,
    describe_model,
    follow_epoch,
    resume_best,
)
from kfp_distributed.trainers.runtime.outputs.metrics_file import mark_model_epoch

Weights = TypeVar("Weights")


class EpochFollower(Generic[Weights]):
    """The best epoch of a training, and its weights if they may become the model.

    Attributes:
        choice: Which epoch becomes the model, and when the training ends early.
        best: The best epoch so far; None if there is none.
        weights: Its weights; None if the model is that of the last epoch.
    """

    def __init__(self, choice: EpochChoice, saved: str, weights: Weights | None, epoch: int, leads: bool) -> None:
        """Resume from a checkpoint.

        Args:
            choice: Choice of this training.
            saved: Result of `BestEpoch.to_json` in the checkpoint; "" if it has none.
            weights: Weights of the best epoch in the checkpoint; None if it has none.
            epoch: Number of finished epochs in the checkpoint; 0 without a checkpoint.
            leads: Whether this process prints if the epochs of the checkpoint do not count.
        """
        self.choice = choice
        self.best, line = resume_best(choice, saved, weights is not None, epoch)
        self.weights = weights if self.best and choice.keeps_best else None
        if line and leads:
            print(line, flush=True)

    @property
    def state(self) -> tuple[BestEpoch | None, Weights | None]:
        """The best epoch and its weights, which never change. Assign them to return to an earlier epoch."""
        return self.best, self.weights

    @state.setter
    def state(self, state: tuple[BestEpoch | None, Weights | None]) -> None:
        self.best, self.weights = state

    @property
    def has_ended(self) -> bool:
        """Whether the training ends early."""
        return self.choice.ends_after(self.best)

    def end_epoch(self, epoch: int, metrics: Mapping[str, float], read_weights: Callable[[], Weights]) -> None:
        """Compare an epoch with the best one. Call it before the checkpoint of the epoch is saved.

        Args:
            epoch: Number of the epoch, from 1.
            metrics: Its metrics.
            read_weights: Returns a copy of its weights.
        """
        if not self.choice.is_followed:
            return
        self.best = follow_epoch(self.choice, self.best, epoch, metrics)
        if self.choice.keeps_best and self.best.epoch == epoch:
            self.weights = read_weights()

    def choose_model(self, metrics_file: Path, epochs: int) -> Weights | None:
        """Return the weights of the model; None for the current ones. Print which epoch it is, and record it.

        Args:
            metrics_file: Metrics file of the leader.
            epochs: Number of the last epoch, as the user has set it.
        """
        for line in (describe_end(self.choice, self.best, epochs), describe_model(self.choice, self.best)):
            if line:
                print(line, flush=True)
        mark_model_epoch(metrics_file, self.best.epoch if self.best and self.choice.keeps_best else None)
        return self.weights
