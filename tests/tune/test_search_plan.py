"""Plans of searches: the request of each trial, and what is refused before anything starts."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import samples

from kfp_distributed.components.train.describe.task_path import TaskPath, format_task
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.components.tune.search import Limits
from kfp_distributed.components.tune.search_plan import plan_search
from kfp_distributed.components.tune.search_space import Choice, Float, Int
from kfp_distributed.components.tune.study import Search, TrialValues
from kfp_distributed.storage.dataset import Column
from kfp_distributed.trainers import train_specification

WORKERS = "distribution_specification.number_of_workers"
SPACE = {"learning_rate": Float(1e-3, 1, log=True), WORKERS: Int(1, 2)}


@pytest.fixture
def template(tmp_path):
    rows = np.arange(8, dtype=np.float32)
    column = Column("x", "number", "float32", (), (), 3.5, 2.3)
    samples.write_dataset(tmp_path / "train", [column], [pa.array(rows)], np.arange(8) % 2, ["a", "b"], [4, 4])
    return Request(
        train_uri=str(tmp_path / "train"),
        validation_uri=str(tmp_path / "train"),
        model_uri="s3://b/root/run/tune/1/model",
        train_specification={"trainer": "keras_classifier"},
        train_parameters={"epochs": 3, "batch_size": 4},
        distribution_specification={"distribution_type": "TF", "number_of_parameter_servers": 0},
        identity=("run", "s3://b/root/run/tune/1"),
        task_name="tune",
        task_path=TaskPath(("search",), (2,)),
    )


@pytest.mark.parametrize("form", [dict, json.dumps])
def test_a_trial_is_a_training_with_its_own_values(template, form):
    plan = plan_search(template, form(SPACE), "val_loss", 8, 2)
    assert plan.search == Search("minimize", "tpe", "none", 0)
    assert plan.limits == Limits(8, 2, 3)
    first, second = (plan.request(TrialValues(number, {"learning_rate": 0.1, WORKERS: 2})) for number in (0, 1))
    assert first.train_parameters == {"epochs": 3, "batch_size": 4, "learning_rate": 0.1}
    assert first.distribution_specification == {**template.distribution_specification, "number_of_workers": 2}
    assert first.model_uri == f"s3://b/root/run/tune/1/{first.job_name}"
    assert first.job_name != second.job_name != template.job_name
    labels = plan_job(second).labels
    assert format_task(labels) == "search/tune/1[2]"
    assert labels["run"] == "run"


def needs_rate(train_dir, model_dir, rate: float, units: int = 1):
    pass


def test_a_searched_parameter_needs_no_default(template):
    template = replace(
        template, train_specification=dict(train_specification(needs_rate)), train_parameters={"units": 2}
    )
    template = replace(template, distribution_specification={})
    plan = plan_search(template, {"rate": Float(0.1, 1)}, "loss", 8)
    job = plan.job()
    assert (job.name, job.description.parameters) == (template.job_name, {"units": 2})
    assert job.description.metrics_uri == f"s3://b/root/run/tune/1/checkpoints/{template.job_name}/metrics"
    with pytest.raises(ValueError, match="needs_rate needs rate"):
        plan_job(template)


@pytest.mark.parametrize(
    ("metric", "direction"),
    [("val_loss", "minimize"), ("val_accuracy", "maximize"), ("rmse", "minimize"), ("val_perplexity", "minimize")],
)
def test_the_direction_is_that_of_the_metric(template, metric, direction):
    assert plan_search(template, SPACE, metric, 1).search.direction == direction
    other = {"minimize": "maximize", "maximize": "minimize"}[direction]
    assert plan_search(template, SPACE, metric, 1, settings={"direction": other}).search.direction == other


def test_settings_come_from_kubeflow_as_floats(template):
    settings = {"seed": 7.0, "trial_failures": 0.0, "sampler": "random", "pruner": "median"}
    plan = plan_search(template, SPACE, "val_loss", 4, settings=settings)
    assert (plan.search, plan.limits) == (Search("minimize", "random", "median", 7), Limits(4, 1, 0))
    assert isinstance(plan.search.seed, int)


def test_hyperband_knows_the_epochs_of_a_trial(template):
    def plan(search_space, parameters, **settings):
        request = replace(template, train_parameters=parameters)
        return plan_search(request, search_space, "val_loss", 4, settings={"pruner": "hyperband", **settings}).search

    epochs = template.train_parameters["epochs"]
    assert plan(SPACE, template.train_parameters).epochs == epochs
    assert plan(SPACE, template.train_parameters, epochs=2).epochs == 2
    assert plan({"epochs": Choice([7, 2])}, {"batch_size": 4}).epochs == 7
    with pytest.raises(ValueError, match='which needs "epochs"'):
        plan(SPACE, {"batch_size": 4})


def test_a_metric_of_validation_rows_needs_them(template):
    with pytest.raises(ValueError, match="metric is 'val_loss', of validation rows, and there is no validation_"):
        plan_search(replace(template, validation_uri=""), SPACE, "val_loss", 4)


@pytest.mark.parametrize("name", ["train_parameters", "distribution_specification"])
@pytest.mark.parametrize("value", ["{", "[1]", 5])
def test_a_wrong_dict_of_all_trials_is_named(template, name, value):
    with pytest.raises(ValueError, match=f"{name} = .* is not a dict"):
        plan_search(replace(template, **{name: value}), SPACE, "val_loss", 4)


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"trials": 0}, "trials is 0; allowed is 1 or more"),
        ({"parallel_trials": 5}, "parallel_trials is 5; allowed is 1 to 4, trials"),
        ({"settings": {"keep_models": "none"}}, "keep_models is 'none'; allowed are best, all"),
        ({"metric": "val_dice"}, "the direction of 'val_dice' is not known: set it; allowed are minimize, maximize"),
        (
            {"settings": {"samplers": "tpe"}},
            "search has 'samplers'; allowed are direction, sampler, pruner, seed, epochs, ",
        ),
        ({"settings": {"sampler": "bayes"}}, "sampler is 'bayes'; allowed are tpe, random, grid, cma_es, gp"),
        ({"settings": {"seed": 0.5}}, "seed is 0.5; allowed is a whole number from 0 to 4294967295"),
        ({"settings": {"trial_failures": True}}, "trial_failures is True; allowed is a whole number"),
        ({"settings": {"sampler": "grid"}}, 'sampler is "grid", and learning_rate in search_space has neither'),
        (
            {"settings": {"sampler": "grid"}, "search_space": {"learning_rate": Choice([0.1, 0.2, 0.3])}},
            'trials is 4, and the grid of the sampler "grid" has 3 points',
        ),
        (
            {"search_space": {"learning_rate": Float(-1, 1)}},
            "learning_rate=-1.0, with which no trial can run: .*learning_rate is -1.0; allowed is more",
        ),
        (
            {"search_space": {WORKERS: Int(1, 5)}},
            "with which no trial can run: .*batch_size is 4, but 5 ranks train together",
        ),
        ({"search_space": {"distribution_specification.workers": Int(1, 2)}}, "with which no trial can run"),
    ],
)
def test_wrong_searches_are_refused(template, changed, refused):
    arguments = {"search_space": SPACE, "metric": "val_loss", "trials": 4, **changed}
    with pytest.raises(ValueError, match=refused):
        plan_search(template, **arguments)
