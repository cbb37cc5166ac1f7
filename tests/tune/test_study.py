"""Studies: what Optuna chooses is the same whoever continues, and the journal is one that Optuna reads."""

import json

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from kfp_distributed.components.tune.search_space import Choices, Range
from kfp_distributed.components.tune.study import JOURNAL, Search, Study
from kfp_distributed.storage import open_store

SPACE = {
    "rate": Range(1e-4, 1.0, False, log=True),
    "width": Range(2, 8, True, step=2),
    "layers": Choices(([8], [8, 8])),
}
STEPS = {"rate": Range(1, 7, True, step=2), "width": Choices((1, 2))}


class Counting:
    """A store that counts what is written."""

    def __init__(self, folder):
        self.store, self.writes = open_store(str(folder)), 0

    def __getattr__(self, name):
        return getattr(self.store, name)

    def write(self, key, content):
        self.writes += 1
        return self.store.write(key, content)


def loss(values):
    return abs(values["rate"] - 0.01) + values["width"] / 100 + len(values["layers"]) / 100


def run(store, search, trials, *, reopens=False, parallel=2):
    """Run trials of four epochs, `parallel` at once. With `reopens`, each action is that of a new process."""
    study, other_order = Study(store, search, SPACE), dict(reversed([*SPACE.items()]))
    while len(study.ended) < trials:
        study = Study(store, search, other_order) if reopens else study
        if len(study.running) < parallel and len(study.ended) + len(study.running) < trials:
            study.next_trial()
            continue
        number, values = study.running[0]
        for epoch in range(1, 5):
            study.report(number, epoch, loss(values) + 1 / epoch)
            if study.should_prune(number):
                study.end(number, "pruned")
                break
        else:
            study.end(number, "complete", loss(values))
    return [(trial.state.name, trial.params, trial.value) for trial in study.ended]


@pytest.mark.parametrize("sampler", ["tpe", "random", "cma_es"])
def test_a_search_goes_on_as_if_nothing_had_happened(tmp_path, sampler):
    """A process that is killed loses reported values at most, which the next one reads where they came from."""
    search = Search("minimize", sampler, "median", seed=3)
    expected = run(store := Counting(tmp_path / "one"), search, 24)
    assert run(open_store(str(tmp_path / "other")), search, 24, reopens=True) == expected
    assert store.writes == 1 + 2 * 24, "the start of the study, and the start and the end of each trial"
    assert {state for state, *_ in expected} == {"COMPLETE", "PRUNED"}
    other = run(open_store(str(tmp_path / "seed")), Search("minimize", sampler, "median", seed=4), 24)
    assert {params["rate"] for _, params, _ in expected}.isdisjoint(params["rate"] for _, params, _ in other)


@pytest.mark.parametrize("pruner", ["hyperband", "successive_halving"])
def test_pruners_decide_the_same_after_a_restart(tmp_path, pruner):
    search = Search("minimize", "random", pruner, epochs=4)
    expected = run(open_store(str(tmp_path / "one")), search, 24)
    assert run(open_store(str(tmp_path / "other")), search, 24, reopens=True) == expected
    assert {state for state, *_ in expected} == {"COMPLETE", "PRUNED"}


def test_a_study_goes_on_with_what_it_began_with(tmp_path):
    Study(open_store(str(tmp_path)), Search("minimize"), SPACE).next_trial()
    for search, space in ((Search("maximize"), SPACE), (Search("minimize"), {**SPACE, "width": Range(2, 10, True)})):
        with pytest.raises(ValueError, match=r"the study began with .*, and is to go on with "):
            Study(open_store(str(tmp_path)), search, space)


def test_optuna_reads_the_journal(tmp_path):
    study = Study(open_store(str(tmp_path)), Search("minimize"), SPACE)
    values = [study.next_trial().values for _ in range(3)]
    study.report(1, 1, 0.7)
    study.report(1, 1, 0.9)
    study.report(1, 2, 0.5)
    study.end(0, "failed")
    study.end(1, "complete", 0.5)
    read = optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(tmp_path / JOURNAL))))
    assert [trial.state.name for trial in read.trials] == ["FAIL", "COMPLETE", "RUNNING"]
    stored = [{**trial.params, "layers": json.loads(trial.params["layers"])} for trial in read.trials]
    assert stored == values
    assert read.trials[1].intermediate_values == {1: 0.7, 2: 0.5}
    assert (read.best_trial.number, read.best_value, study.best.params) == (1, 0.5, read.best_params)
    (running,) = study.running
    assert running.number == 2
    assert running.values["layers"] in ([8], [8, 8])


@pytest.mark.parametrize(("direction", "best"), [("minimize", 2), ("maximize", 1)])
def test_the_best_trial_is_the_first_of_those_with_the_best_value(tmp_path, direction, best):
    study = Study(open_store(str(tmp_path)), Search(direction, "random"), SPACE)
    assert study.best is None
    for value in (2.0, 3.0, 1.0, 1.0, 3.0):
        study.end(study.next_trial().number, "complete", value)
    study.end(study.next_trial().number, "pruned")
    assert study.best.number == best


@pytest.mark.parametrize("reopens", [False, True])
def test_a_grid_has_each_point_once_and_ends(tmp_path, reopens):
    search, points = Search("minimize", "grid"), []
    study = Study(open_store(str(tmp_path)), search, STEPS)
    for _ in range(8):
        study = Study(open_store(str(tmp_path)), search, STEPS) if reopens else study
        number, values = study.next_trial()
        points.append((values["rate"], values["width"]))
        study.end(number, "complete", 1.0)
    assert sorted(points) == [(rate, width) for rate in (1, 3, 5, 7) for width in (1, 2)]


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        (SPACE, "rate in search_space has neither choices"),
        ({"a": Range(1, 10**7, True)}, "has 10000000 points; allowed"),
    ],
)
def test_a_space_without_a_grid_is_refused(tmp_path, space, problem):
    with pytest.raises(ValueError, match=problem):
        Study(open_store(str(tmp_path)), Search("minimize", "grid"), space)


def test_a_sampler_whose_package_is_missing_is_refused(tmp_path):
    with pytest.raises(ValueError, match='sampler is "gp", and the image of the step has no torch'):
        Study(open_store(str(tmp_path)), Search("minimize", "gp"), SPACE)
