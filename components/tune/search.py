"""The flow of a search: starts trials, reports their epochs, and ends those that are pruned."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple, Protocol

from optuna.trial import FrozenTrial

from kfp_distributed.components.tune.study import Study, TrialValues

_LOST_STARTS = 3
"""A trial that is lost so often without a newer epoch is not started again: what loses it will not pass."""


class TrialEnd(NamedTuple):
    """How the training of a trial has ended.

    Attributes:
        state: "complete", "failed" (these values do not train), or "lost" (something else ended it).
        value: Value of the metric of the model, if the trial is complete. Default: None.
        cause: Why it has failed or is lost. Default: "".
    """

    state: Literal["complete", "failed", "lost"]
    value: float | None = None
    cause: str = ""


class RunningTrial(Protocol):
    """The training of a trial that has started."""

    def epochs(self) -> Sequence[tuple[int, float]]:
        """Return the epochs that are known by now, in their order, each with the value of the metric."""

    def ended(self) -> TrialEnd | None:
        """Return how it has ended; None if it runs."""


class Trainings(Protocol):
    """What runs the trainings of trials."""

    def start(self, trial: TrialValues) -> RunningTrial:
        """Start or continue the training of a trial."""

    def wait(self, trials: Collection[RunningTrial]) -> None:
        """Wait until one of these trials may have an epoch or have ended."""

    def stop(self, trials: Collection[RunningTrial]) -> None:
        """End these trials at the same time, and wait until nothing of them runs. Their `ended` says how they ended."""


class Limits(NamedTuple):
    """How many trials there are.

    Attributes:
        trials: Trials of the search.
        parallel: Trials that run at once, at most.
        failures: Trials that may fail.
    """

    trials: int
    parallel: int
    failures: int


class SearchFailed(Exception):
    """A search has no best trial. The text has the cause."""


def run_search(study: Study, limits: Limits, trainings: Trainings, say: Callable[[str], object]) -> FrozenTrial:
    """Run a search to its end, and return its best trial. No trial runs when it returns or raises.

    Trials of the study that have not ended are started first. They continue what an earlier attempt has left of them.

    Args:
        study: The study.
        limits: How many trials there are.
        trainings: Runs the trials.
        say: Receives lines about the trials.

    Raises:
        SearchFailed: Too many trials have failed, one is lost again and again, or none is complete.
    """
    running, flow = dict[int, RunningTrial](), _Flow(study, limits, trainings, say)
    flow.check_failures()
    waiting = [*study.running]
    try:
        while True:
            while len(running) < limits.parallel:
                if not waiting and len(study.ended) + len(running) >= limits.trials:
                    break
                trial = waiting.pop(0) if waiting else study.next_trial()
                running[trial.number] = flow.start(trial)
            if not running:
                break
            trainings.wait(running.values())
            for number, training in [*running.items()]:
                if not (follower := flow.follow(number, training)):
                    del running[number]
                elif follower is not training:
                    running[number] = follower
    finally:
        trainings.stop(running.values())
    if not study.best:
        raise SearchFailed(f"none of the {limits.trials} trials is complete{flow.first_cause}")
    return study.best


class _Flow:
    """What happens to one trial of a search at a time."""

    def __init__(self, study: Study, limits: Limits, trainings: Trainings, say: Callable[[str], object]) -> None:
        self._study, self._limits, self._trainings, self._say = study, limits, trainings, say
        self._lost: dict[int, tuple[int, int]] = {}

    def start(self, trial: TrialValues) -> RunningTrial:
        values = ", ".join(f"{name}={value}" for name, value in trial.values.items())
        self._say(f"trial {trial.number} starts: {values}")
        return self._trainings.start(trial)

    def follow(self, number: int, training: RunningTrial) -> RunningTrial | None:
        """Report what is new of a trial. Return its training, or that which takes its place; None if it has ended."""
        end, epochs = training.ended(), training.epochs()  # In this order: an ended trial has no other epochs.
        pruned_after = 0
        for epoch, value in epochs:
            if self._study.report(number, epoch, value) and not pruned_after and self._study.should_prune(number):
                pruned_after = epoch
        if not end and pruned_after:
            self._trainings.stop([training])
            end = training.ended() or TrialEnd("lost")
        if not end:
            return training
        if pruned_after and end.state == "lost":
            self._study.end(number, "pruned")
            self._say(f"trial {number} is pruned after epoch {pruned_after}")
            return None
        if end.state == "complete" and (end.value is None or not math.isfinite(end.value)):
            end = TrialEnd("failed", cause=f"the metric is {end.value}")
        if end.state == "lost":
            return self._again(number, end, epochs[-1][0] if epochs else 0)
        self._study.end(number, end.state, end.value, end.cause)
        how = f"has failed: {end.cause}" if end.value is None else f"is complete: {end.value:.6g}"
        self._say(f"trial {number} {how}")
        self.check_failures()
        return None

    def check_failures(self) -> None:
        """Check that not too many trials have failed, in all attempts of the step.

        Raises:
            SearchFailed: It is so.
        """
        if len(self._study.causes) > self._limits.failures:
            raise SearchFailed(f"{len(self._study.causes)} trials have failed{self.first_cause}")

    def _again(self, number: int, end: TrialEnd, epoch: int) -> RunningTrial:
        known, times = self._lost.get(number, (epoch, 0))
        self._lost[number] = (max(epoch, known), 1 if epoch > known else times + 1)
        if self._lost[number][1] == _LOST_STARTS:
            raise SearchFailed(f"trial {number} was lost {_LOST_STARTS} times without a newer epoch: {end.cause}")
        self._say(f"trial {number} is lost, and continues: {end.cause}")
        return self._trainings.start(next(trial for trial in self._study.running if trial.number == number))

    @property
    def first_cause(self) -> str:
        """The cause of the first trial that has failed, for an error; "" if none has."""
        for number, cause in self._study.causes.items():
            return f"; trial {number}: {cause}"
        return ""
