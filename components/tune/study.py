"""The study of a search: an Optuna study in an object store, which chooses the values of trials and whom to prune."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, GridSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from kfp_distributed.components.tune.search_space import Choices, Space

JOURNAL = "study.journal"
"""Name of the journal in the folder of a search. Optuna reads it as it is: see `JournalFileBackend`."""

_NAME = "tune"

_BEGUN_WITH = "begun with"
"""User attribute of the study: its Search and its search space."""

CAUSE = "cause"
"""User attribute of a trial that has failed."""

MOST_POINTS = 10_000
"""Points of a grid, at most. Optuna has all of them in its memory, and the values of each parameter in each trial."""

_PACKAGES = {"cma_es": ("cmaes",), "gp": ("torch", "scipy")}
"""Packages of samplers that not every image has."""

End = Literal["complete", "pruned", "failed"]
"""How a trial has ended."""

_STATES: Mapping[End, TrialState] = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


@dataclass(frozen=True)
class Search:
    """How values are searched.

    Attributes:
        direction: Whether low or high values of the metric are good.
        sampler: What chooses the values of a trial.
        pruner: What ends trials early that are worse than others. Default: "none".
        seed: Seed of the sampler. Default: 0.
        epochs: Epochs of a trial that is not pruned, which "hyperband" needs. Default: 0, not known.
    """

    direction: Literal["minimize", "maximize"]
    sampler: Literal["tpe", "random", "grid", "cma_es", "gp"] = "tpe"
    pruner: Literal["none", "median", "hyperband", "successive_halving"] = "none"
    seed: int = 0
    epochs: int = 0


class TrialValues(NamedTuple):
    """A trial that is to run.

    Attributes:
        number: Its number, from 0.
        values: The values of the search space, by name.
    """

    number: int
    values: Mapping[str, Any]


class _Store(Protocol):
    def exists(self, key: str) -> bool: ...
    def read(self, key: str) -> bytes: ...
    def write(self, key: str, content: bytes) -> Any: ...  # noqa: ANN401


class _Journal(BaseJournalBackend):
    """The journal of a study as one object. Nobody else writes it."""

    def __init__(self, store: _Store) -> None:
        self._store = store
        content = store.read(JOURNAL) if store.exists(JOURNAL) else b""
        self._logs = [json.loads(line) for line in content.splitlines()]
        self._stored = len(self._logs)

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self._logs += json.loads(json.dumps(logs))  # As another process will read them.

    def save(self) -> None:
        """Store what has been added."""
        if len(self._logs) > self._stored:
            lines = "".join(f"{json.dumps(log, separators=(',', ':'))}\n" for log in self._logs)
            self._store.write(JOURNAL, lines.encode())
            self._stored = len(self._logs)


class _Grid(GridSampler):
    def after_trial(self, *_: Any) -> None:  # noqa: ANN401
        """Do nothing. That of Optuna stops its own loop, which does not run."""


class Study:
    """The trials of a search. What it has answered is stored before it returns, but for reported values."""

    def __init__(self, store: _Store, search: Search, space: Space) -> None:
        """Open the study of a folder, or begin one.

        Args:
            store: The folder.
            search: How values are searched. It and the space must be those with which the study began.
            space: The search space.

        Raises:
            ValueError: The sampler lacks a package, its search space has no grid, or the study began with others.
            StorageError: The store fails.
        """
        for package in _PACKAGES.get(search.sampler, ()):
            if not find_spec(package):
                raise ValueError(f'sampler is "{search.sampler}", and the image of the step has no {package}')
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._search, self._space, self._journal = search, space, _Journal(store)
        # In one order, because a sampler draws in theirs, and JSON that says the same may have another.
        self._distributions = {name: _distribution(entry) for name, entry in sorted(space.items())}
        if search.sampler == "grid":
            grid_points(space)
        self._study = optuna.create_study(
            study_name=_NAME,
            storage=JournalStorage(self._journal),
            direction=search.direction,
            pruner=_pruner(search),
            load_if_exists=True,
        )
        begun_with, now = self._study.user_attrs.get(_BEGUN_WITH), repr((search, sorted(space.items())))
        if begun_with is None:
            self._study.set_user_attr(_BEGUN_WITH, now)
        elif begun_with != now:
            raise ValueError(f"the study began with {begun_with}, and is to go on with {now}: begin another one")
        self._journal.save()

    def next_trial(self) -> TrialValues:
        """Return a trial with new values, which is running from now on."""
        # The state of a sampler is not in the journal. So it begins anew with each trial, whoever asks for it.
        self._study.sampler = self._sampler(len(self._study.get_trials(deepcopy=False)))
        trial = self._study.ask(fixed_distributions=self._distributions)
        self._journal.save()
        return self.values(trial)

    @property
    def running(self) -> list[TrialValues]:
        """The trials that have not ended, in the order of their numbers."""
        return [self.values(trial) for trial in self._of_states(TrialState.RUNNING)]

    @property
    def ended(self) -> list[FrozenTrial]:
        """The trials that have ended, in the order of their numbers."""
        return self._of_states(*_STATES.values())

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials, in the order of their numbers."""
        return self._of_states(*TrialState)

    @property
    def complete(self) -> list[FrozenTrial]:
        """The trials that are complete, in the order of their numbers."""
        return self._of_states(TrialState.COMPLETE)

    @property
    def best(self) -> FrozenTrial | None:
        """The best of the complete trials; None if there is none."""
        sign = 1 if self._search.direction == "minimize" else -1
        return min(self.complete, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)

    def values(self, trial: Trial | FrozenTrial) -> TrialValues:
        """Return the values of a trial, by the names of the search space."""
        stored = trial.params.items()
        return TrialValues(trial.number, {name: _value(self._space[name], value) for name, value in stored})

    def report(self, number: int, epoch: int, value: float) -> bool:
        """Record the value of the metric after an epoch, and return whether it was not known before."""
        if epoch in self._study.get_trials(deepcopy=False)[number].intermediate_values:
            return False
        self._trial(number).report(value, epoch)
        return True

    def should_prune(self, number: int) -> bool:
        """Return whether a trial is so much worse than others that it is to end."""
        return self._trial(number).should_prune()

    def end(self, number: int, end: End, value: float | None = None, cause: str = "") -> None:
        """Record the end of a trial.

        Args:
            number: Its number.
            end: How it has ended.
            value: Value of the metric, if it is complete. Default: None.
            cause: Why it has failed. Default: "".
        """
        if cause:
            self._trial(number).set_user_attr(CAUSE, cause)
        self._study.tell(number, value, state=_STATES[end])
        self._journal.save()

    @property
    def causes(self) -> dict[int, str]:
        """Why trials have failed, by number, in the order of their ends."""
        failed = sorted(self._of_states(TrialState.FAIL), key=lambda trial: str(trial.datetime_complete))
        return {trial.number: str(trial.user_attrs.get(CAUSE, "")) for trial in failed}

    def _of_states(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)

    def _trial(self, number: int) -> Trial:
        return Trial(self._study, number)  # The journal has no other study, so that IDs are numbers.

    def _sampler(self, trials: int) -> BaseSampler:
        # Those of two seeds have no numbers in common, unlike seed + trials.
        seed = int(np.random.SeedSequence([self._search.seed, trials]).generate_state(1)[0])
        if self._search.sampler == "random":
            return RandomSampler(seed=seed)
        if self._search.sampler == "grid":
            return _Grid(_grid(self._distributions), seed=self._search.seed)
        if self._search.sampler == "cma_es":
            return CmaEsSampler(seed=seed)
        if self._search.sampler == "gp":
            return GPSampler(seed=seed)
        return TPESampler(seed=seed, multivariate=True, constant_liar=True)


def _pruner(search: Search) -> BasePruner:
    """Return the pruner. What it would estimate from trials, it would estimate anew in each process."""
    if search.pruner == "median":
        return MedianPruner()
    if search.pruner == "hyperband":
        return HyperbandPruner(min_resource=1, max_resource=search.epochs)
    if search.pruner == "successive_halving":
        return SuccessiveHalvingPruner(min_resource=1)
    return NopPruner()


def _distribution(entry: Any) -> BaseDistribution:  # noqa: ANN401
    if isinstance(entry, Choices):
        return CategoricalDistribution([stored_value(value) for value in entry.values])
    if entry.is_whole:
        return IntDistribution(int(entry.low), int(entry.high), log=entry.log, step=entry.step)
    return FloatDistribution(entry.low, entry.high, log=entry.log)


def stored_value(value: Any) -> Any:  # noqa: ANN401
    """Return a choice as Optuna stores it: lists and dicts as JSON."""
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value


def _value(entry: Any, stored: Any) -> Any:  # noqa: ANN401
    """Return the value that Optuna has stored."""
    if isinstance(entry, Choices):
        return next(value for value in entry.values if stored_value(value) == stored)
    return stored


def grid_points(space: Space) -> int:
    """Return the number of points of the grid of a search space.

    Raises:
        ValueError: A parameter has any number between two ends, or there are more than `MOST_POINTS`.
    """
    sizes = list[int]()
    for name, entry in space.items():
        if isinstance(entry, Choices):
            sizes.append(len(entry.values))
        elif entry.is_whole:
            sizes.append(int(entry.high - entry.low) // entry.step + 1)
        else:
            raise ValueError(f'sampler is "grid", and {name} in search_space has neither choices nor whole numbers')
    if (points := math.prod(sizes)) > MOST_POINTS:
        raise ValueError(f'sampler is "grid", and search_space has {points} points; allowed are up to {MOST_POINTS}')
    return points


def _grid(distributions: Mapping[str, BaseDistribution]) -> dict[str, list[Any]]:
    """Return the values of a grid, for a space that `grid_points` takes."""
    grid = dict[str, list[Any]]()
    for name, distribution in distributions.items():
        if isinstance(distribution, CategoricalDistribution):
            grid[name] = [*distribution.choices]
        elif isinstance(distribution, IntDistribution):
            grid[name] = [*range(distribution.low, distribution.high + 1, distribution.step)]
    return grid
