"""The flow of searches over simulated trials: what is started, pruned, repeated, and kept when the step is killed."""

import math
import random

import pytest

from kfp_distributed.components.tune.search import Limits, SearchFailed, TrialEnd, run_search
from kfp_distributed.components.tune.search_space import Range
from kfp_distributed.components.tune.study import Search, Study
from kfp_distributed.storage import open_store

SPACE = {"rate": Range(0.0, 1.0, False)}
EPOCHS = 6


class Killed(Exception):
    """The step has been killed. Its trials have been, too."""


class World:
    """Trainings of one epoch per round, whose checkpoints outlive them, and what happens to them.

    Attributes:
        epochs: Epochs that each trial has trained, in all its starts.
        most: Trials that ran at once, at most.
    """

    def __init__(self, folder, search, faults=None, *, fails=lambda number: False, loses=lambda number, epoch: False):
        self.folder, self.search, self.faults, self.fails, self.loses = folder, search, faults, fails, loses
        self.epochs, self.started, self.running, self.most, self.lines = {}, [], set(), 0, []

    def run(self, limits):
        study = Study(self, self.search, SPACE)
        return study, run_search(study, limits, self, self.lines.append)

    def exists(self, key):
        return open_store(str(self.folder)).exists(key)

    def read(self, key):
        return open_store(str(self.folder)).read(key)

    def write(self, key, content):
        self.fault()
        open_store(str(self.folder)).write(key, content)
        self.fault()

    def start(self, trial):
        self.fault()
        assert trial.number not in self.running, "no trial runs twice"
        self.running.add(trial.number)
        self.most = max(self.most, len(self.running))
        self.started.append(trial.number)
        self.epochs.setdefault(trial.number, 0)
        return Simulated(self, trial)

    def wait(self, trials):
        self.fault()
        for trial in trials:
            trial.train()

    def stop(self, trials):
        for trial in trials:
            if trial.end is None:
                trial.finish(TrialEnd("lost", cause="stopped"))

    def fault(self):
        if self.faults and self.faults.random() < 0.08:
            raise Killed


class Simulated:
    def __init__(self, world, trial):
        self.world, self.number, self.rate, self.end = world, trial.number, trial.values["rate"], None
        if world.epochs[trial.number] == EPOCHS:  # An attempt before has trained it, and was killed before it knew.
            self.finish(TrialEnd("complete", self.rate))

    def train(self):
        if self.end is None:
            self.world.epochs[self.number] += 1
            done = self.world.epochs[self.number]
            if self.world.loses(self.number, done):
                self.finish(TrialEnd("lost", cause="evicted"))
            elif self.world.fails(self.number):
                self.finish(TrialEnd("failed", cause=f"out of memory in {self.number}"))
            elif done >= EPOCHS:
                self.finish(TrialEnd("complete", self.rate))

    def finish(self, end):
        self.end = end
        self.world.running.discard(self.number)

    def epochs(self):
        return [(epoch, self.rate + 1 / epoch) for epoch in range(1, self.world.epochs[self.number] + 1)]

    def ended(self):
        return self.end


@pytest.mark.parametrize("pruner", ["none", "median", "hyperband", "successive_halving"])
def test_a_search_returns_the_best_of_its_trials(tmp_path, pruner):
    world = World(tmp_path, Search("minimize", pruner=pruner, epochs=EPOCHS))
    study, best = world.run(Limits(20, 3, 0))
    states = [trial.state.name for trial in study.ended]
    assert len(states) == 20
    assert ("PRUNED" in states) == (pruner != "none")
    complete = [trial for trial in study.ended if trial.state.name == "COMPLETE"]
    assert best.value == min(trial.params["rate"] for trial in complete)
    assert (world.most, world.running, world.started) == (3, set(), [*range(20)])
    for trial in study.ended:
        assert (world.epochs[trial.number] == EPOCHS) == (trial.state.name == "COMPLETE")


@pytest.mark.parametrize("seed", range(20))
def test_no_trial_is_lost_or_run_twice_whenever_the_step_is_killed(tmp_path, seed):
    world = World(tmp_path, Search("minimize", pruner="median", seed=seed), random.Random(seed))
    for _ in range(200):
        try:
            study, best = world.run(Limits(8, 2, 0))
            break
        except Killed:
            assert world.running == set()
    assert [trial.number for trial in study.ended] == [*range(8)]
    assert best.value == min(trial.value for trial in study.ended if trial.value is not None)
    assert max(world.epochs.values()) == EPOCHS, "none trains on after its end"
    assert world.most == 2


def test_failed_trials_are_bounded_and_the_first_cause_is_named(tmp_path):
    world = World(tmp_path, Search("minimize"), fails=lambda number: number in (1, 3, 4))
    with pytest.raises(SearchFailed, match=r"3 trials have failed; trial 1: out of memory in 1$"):
        world.run(Limits(10, 2, 2))
    assert world.running == set()
    with pytest.raises(SearchFailed, match="3 trials have failed"):
        world.run(Limits(10, 2, 2))
    assert len(world.started) == len(set(world.started)), "a further attempt starts nothing"
    # One with a higher limit counts those before it.
    study, _ = world.run(Limits(10, 2, 3))
    assert [number for number in range(10) if study.ended[number].state.name == "FAIL"] == [1, 3, 4]


def test_a_further_attempt_runs_no_more_trials_at_once(tmp_path):
    world = World(tmp_path, Search("minimize"))
    study = Study(open_store(str(tmp_path)), world.search, SPACE)
    for _ in range(6):
        study.next_trial()
    study, _ = world.run(Limits(8, 2, 0))
    assert (world.most, len(study.ended)) == (2, 8)


def test_a_trial_without_a_finite_value_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(Simulated, "ended", lambda trial: trial.end and trial.end._replace(value=math.nan))
    with pytest.raises(SearchFailed, match="none of the 2 trials is complete; trial 0: the metric is nan"):
        World(tmp_path, Search("minimize")).run(Limits(2, 1, 2))


def test_a_search_without_a_complete_trial_has_no_best_one(tmp_path):
    world = World(tmp_path, Search("minimize"), fails=lambda number: True)
    with pytest.raises(SearchFailed, match="none of the 2 trials is complete; trial 0: out of memory in 0"):
        world.run(Limits(2, 1, 5))


def test_a_lost_trial_continues_while_it_gets_on(tmp_path):
    """At each epoch it is lost twice, and trains this epoch then."""
    seen = []

    def loses(number, epoch):
        seen.append(epoch)
        if number == 0 and seen.count(epoch) <= 2:
            world.epochs[0] -= 1
            return True
        return False

    world = World(tmp_path, Search("minimize"), loses=loses)
    study, _ = world.run(Limits(1, 1, 0))
    assert study.ended[0].state.name == "COMPLETE"
    assert world.started == [0] * (2 * EPOCHS + 1)


def test_a_trial_that_is_lost_again_and_again_ends_the_search(tmp_path):
    def loses(number, epoch):
        world.epochs[number] -= 1
        return True

    world = World(tmp_path, Search("minimize"), loses=loses)
    with pytest.raises(SearchFailed, match="trial 0 was lost 3 times without a newer epoch: evicted"):
        world.run(Limits(3, 1, 0))
    assert world.running == set()
