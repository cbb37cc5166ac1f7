"""Decides which epoch of a training is the best by a metric, and when a training ends early. Pure."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kfp_distributed.storage.dataset import Task
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters

_MEASURES = {"classification": ("loss", "accuracy"), "regression": ("loss", "rmse")}
"""Metrics of an epoch by task. Those of the validation rows have the same names after "val_"."""

_HIGHER_IS_BETTER = ("accuracy", "val_accuracy")


class BestEpoch(NamedTuple):
    """The best epoch of a training so far.

    Attributes:
        metric: Name of the metric by which it is the best.
        epoch: Its number, from 1.
        value: Its value of the metric. It is NaN only if no epoch had another value.
        last: Number of the last epoch that counts.
        waited: Number of epochs after the best one.
    """

    metric: str
    epoch: int
    value: float
    last: int
    waited: int = 0

    def to_json(self) -> str:
        """Return the JSON text that `resume_best` reads."""
        return json.dumps(self._asdict())


@dataclass(frozen=True)
class EpochChoice:
    """Which epoch of a training becomes the model, and when the training ends early.

    Attributes:
        keeps_best: Whether it is the best epoch by the metric. Otherwise it is the last one.
        metric: Name of the metric.
        patience: Number of epochs without improvement after which the training ends; 0 for none.
    """

    keeps_best: bool = False
    metric: str = "val_loss"
    patience: int = 0

    @property
    def is_followed(self) -> bool:
        """Whether the best epoch must be known."""
        return self.keeps_best or self.patience > 0

    def ends_after(self, best: BestEpoch | None) -> bool:
        """Return whether a training ends early with a best epoch."""
        return best is not None and 0 < self.patience <= best.waited


def choose_epoch(parameters: TrainingParameters, task: Task, has_validation: bool) -> EpochChoice:
    """Check the parameters of a built-in trainer that choose an epoch, and return the choice.

    Args:
        parameters: The parameters.
        task: Task of the training dataset.
        has_validation: Whether there are validation rows.

    Raises:
        ValueError: The patience is negative, the task has no such metric, no epochs are compared by it, or it needs
            validation rows and there are none.
    """
    keep, metric, patience = parameters.keep, parameters.metric, parameters.patience
    if patience < 0:
        raise ValueError(f"patience is {patience}; allowed is 0, for none, or more")
    measures = _MEASURES.get(task, ("loss",))
    allowed = [*(f"val_{name}" for name in measures), *measures]
    choice = EpochChoice(keep == "best", metric or "val_loss", patience)
    if choice.metric not in allowed:
        raise ValueError(f"metric is {metric!r}, but the dataset has the task {task!r}; allowed is {_either(allowed)}")
    if metric and not choice.is_followed:
        raise ValueError(
            f"metric is {metric!r}, but keep is {keep!r} and patience is 0, so no epochs are compared; set keep to "
            "'best' or patience to 1 or more, or leave metric out"
        )
    if choice.is_followed and choice.metric.startswith("val_") and not has_validation:
        cause = "keep is 'best'" if choice.keeps_best else f"patience is {patience}"
        raise ValueError(
            f"{cause} and metric is {choice.metric!r}, but there are no validation rows; pass a validation_dataset "
            f"with rows, or set metric to {_either(measures)}"
        )
    return choice


def _either(names: tuple[str, ...] | list[str]) -> str:
    *others, last = (repr(name) for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def follow_epoch(choice: EpochChoice, best: BestEpoch | None, epoch: int, metrics: Mapping[str, float]) -> BestEpoch:
    """Return the best epoch after one more epoch. Of two epochs with the same value, the earlier one is better.

    An epoch that is trained again, because its checkpoint was not stored, does not count twice.

    Args:
        choice: By which metric.
        best: The best epoch before; None if there is none.
        epoch: Number of the epoch, from 1.
        metrics: Its metrics.

    Raises:
        ValueError: The epoch has no such metric.
    """
    if choice.metric not in metrics:
        raise ValueError(f"epoch {epoch} has no metric {choice.metric}, only {', '.join(metrics)}; set another metric")
    value = float(metrics[choice.metric])
    if best is None or epoch <= best.epoch or _is_better(value, best):
        return BestEpoch(choice.metric, epoch, value, epoch)
    return best._replace(last=epoch, waited=epoch - best.epoch)


def _is_better(value: float, best: BestEpoch) -> bool:
    if math.isnan(value) or math.isnan(best.value):
        return not math.isnan(value)
    return value > best.value if best.metric in _HIGHER_IS_BETTER else value < best.value


def resume_best(choice: EpochChoice, saved: str, has_weights: bool, epoch: int) -> tuple[BestEpoch | None, str]:
    """Return the best epoch of a checkpoint, and a line for the log if the epochs before it do not count.

    Args:
        choice: Choice of the training that resumes.
        saved: Result of `BestEpoch.to_json`; "" if the checkpoint has none.
        has_weights: Whether the checkpoint has the weights of its best epoch.
        epoch: Number of finished epochs in the checkpoint.

    Returns:
        The best epoch; None if there is none that this training can use. The line is "" if there is nothing to say.
    """
    if not choice.is_followed or not epoch:
        return None, ""
    best = BestEpoch(**json.loads(saved)) if saved else None
    if best is None:
        cause = "the checkpoint does not say which epoch is the best"
    elif best.metric != choice.metric:
        cause = f"the checkpoint has the best epoch by {best.metric}, not by {choice.metric}"
    elif choice.keeps_best and not has_weights:
        cause = 'the checkpoint has no weights of its best epoch, because it was made with keep "last"'
    else:
        return best, ""
    return None, f"{cause}; only epochs after {epoch} count"


def describe_end(choice: EpochChoice, best: BestEpoch | None, epochs: int) -> str:
    """Return a line that says why a training has ended before its last epoch; "" if it has not."""
    if best is None or best.last >= epochs or not choice.ends_after(best):
        return ""
    return (
        f"the training ends after epoch {best.last} of {epochs}: {best.metric} has not improved for {best.waited} "
        f"epochs, and patience is {choice.patience}"
    )


def describe_model(choice: EpochChoice, best: BestEpoch | None) -> str:
    """Return a line that says which epoch the model is of; "" if no epoch was compared."""
    if best is None:
        return ""
    rank = "the highest" if best.metric in _HIGHER_IS_BETTER else "the lowest"
    value = f"{best.metric} {best.value:.4g}" + ("" if math.isnan(best.value) else f", {rank}")
    if choice.keeps_best:
        return f"the model is that of epoch {best.epoch} of {best.last} ({value})"
    return f"the model is that of epoch {best.last}, the last; the best was epoch {best.epoch} ({value})"
