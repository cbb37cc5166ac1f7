"""The report of a search."""

import math
from datetime import datetime, timedelta

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial
from pages import Page

from kfp_distributed.components.tune.report import MAX_ROWS, search_page
from kfp_distributed.components.tune.search_space import Choices, Range
from kfp_distributed.components.tune.study import Search
from kfp_distributed.reports.page import render_page

SPACE = {"rate": Range(1e-4, 1.0, is_whole=False, log=True), "units": Choices(([8], [8, 4]))}
STORED = {"rate": FloatDistribution(1e-4, 1, log=True), "units": CategoricalDistribution(["[8]", "[8, 4]"])}
BEGIN = datetime(2026, 1, 1)


def trial(number, state, rate, epochs, value=None, units="[8]", cause=""):
    found = create_trial(
        state=state,
        value=value,
        params={"rate": rate, "units": units},
        distributions=STORED,
        intermediate_values=epochs,
        user_attrs={"cause": cause} if cause else {},
    )
    found.number, found.datetime_start = number, BEGIN
    found.datetime_complete = None if state == TrialState.RUNNING else BEGIN + timedelta(seconds=90)
    return found


TRIALS = [
    trial(0, TrialState.COMPLETE, 0.1, {1: 3.0, 2: 2.0}, 2.0),
    trial(1, TrialState.PRUNED, 1.0, {1: 9.0}),
    trial(2, TrialState.FAIL, 0.5, {1: math.nan}, cause="ValueError: <b>bad</b>"),
    trial(3, TrialState.COMPLETE, 0.01, {1: 2.0, 2: 1.0}, 1.0, "[8, 4]"),
    trial(4, TrialState.RUNNING, 0.02, {}),
]


def page_of(trials, direction="minimize", cause=""):
    reports = {0: "s3://b/tune-0/report.html"}
    return search_page("tune-1", "loss", Search(direction, "tpe", "median"), SPACE, trials, reports, cause)


def test_the_trials_are_shown_by_their_states():
    page = page_of(TRIALS)
    assert (page.title, page.succeeded, page.outcome) == ("tune-1", True, "best loss 1")
    assert page.facts == (
        ("metric", "loss (minimize)"),
        ("sampler", "tpe"),
        ("pruner", "median"),
        ("trials", "2 complete, 1 pruned, 1 failed, 1 running"),
        ("best trial", "3"),
        ("best value", "1"),
        ("rate", "0.01"),
        ("units", "[8, 4]"),
    )
    assert page.trials.columns == (
        *("trial", "state", "loss", "epochs", "duration", "rate", "units", "cause", "report"),
    )
    assert page.trials.rows == (
        ("3", "complete", "1", "2", "1 min 30 s", "0.01", "[8, 4]", "", ""),
        ("0", "complete", "2", "2", "1 min 30 s", "0.1", "[8]", "", "s3://b/tune-0/report.html"),
        ("1", "pruned", "9", "1", "1 min 30 s", "1", "[8]", "", ""),
        ("2", "failed", "nan", "1", "1 min 30 s", "0.5", "[8]", "ValueError: <b>bad</b>", ""),
        ("4", "running", "", "0", "", "0.02", "[8]", "", ""),
    )
    assert page.history.table.rows == (("0", "2", "2"), ("3", "1", "1"))
    assert page.curves.table.rows[0][:2] == ("1", "2")
    assert [entry.label for entry in page.curves.legend] == ["complete", "pruned", "best trial"]
    assert page.curves.remarks == ("trial 2: nan at epoch 1",)
    assert page.parallel.table.rows == (("3", "0.01", "[8, 4]", "1"), ("0", "0.1", "[8]", "2"))
    assert page.importance is None, "two trials say nothing about it"
    assert "ValueError: <b>bad</b>" in Page(render_page("tune.html", page)).texts


@pytest.mark.parametrize("trials", [[], TRIALS[4:], TRIALS[1:3], TRIALS[:1]], ids=["none", "running", "bad", "one"])
def test_a_search_without_a_best_trial_or_others_has_a_page(trials):
    page = page_of(trials, cause="SearchFailed: none")
    assert (page.succeeded, page.outcome, page.cause) == (False, "failed", "SearchFailed: none")
    assert len(page.trials.rows) == len(trials)
    assert "SearchFailed: none" in Page(render_page("tune.html", page)).texts


def test_the_importance_of_parameters_and_the_size_of_a_large_search():
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(1000):
        asked = study.ask(STORED)
        for epoch in range(1, 11):
            asked.report(epoch * asked.params["rate"], epoch)
        study.tell(asked, 10 * asked.params["rate"])
    page = page_of(study.get_trials(), "maximize")
    (rate, value), _ = page.importance.table.rows
    assert (rate, float(value) > 0.9) == ("rate", True)
    assert (len(page.trials.rows), page.trials.total) == (MAX_ROWS, 1000)
    assert page.trials.rows[0][0] == str(study.best_trial.number)
    assert len(render_page("tune.html", page)) < 2_000_000
