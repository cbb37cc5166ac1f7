"""What a search is to do: its settings, its trials, and the request of each trial (pure but for the datasets)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args, get_type_hints

from kfp_distributed.components.acceptance.threshold import DIRECTIONS, OF_TEXTS
from kfp_distributed.components.train.describe.task_path import TaskPath
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.describe.value_kinds import MAPPING, is_blank, read_entry
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.components.train.run.training_request.resume import CHECKPOINTS, METRICS
from kfp_distributed.components.tune.search import Limits
from kfp_distributed.components.tune.search_space import Space, corners, parse_search_space, trial_arguments
from kfp_distributed.components.tune.study import Search, TrialValues, grid_points
from kfp_distributed.storage.uri import join_uri, uri_beside
from kfp_distributed.trainers.programs.program import Program, parse_program

_FAILURES, _KEEPS = "trial_failures", "keep_models"
_DEFAULT_FAILURES = 3
_KEPT = ("best", "all")
_SEEDS = 1 << 32


@dataclass(frozen=True)
class SearchPlan:
    """A search whose parameters are checked.

    Attributes:
        template: Request of a trial, but for what distinguishes trials.
        space: The search space.
        metric: Name of the metric.
        search: How values are searched.
        limits: How many trials there are.
        keeps_models: Whether the models of all trials are kept.
    """

    template: Request
    space: Space
    metric: str
    search: Search
    limits: Limits
    keeps_models: bool

    def request(self, trial: TrialValues) -> Request:
        """Return the request of a trial. Its model is beside the template's model, in a folder named like its job.

        In a folder below, it would be an output of no task of KFP, and `jobs` would not list it.
        """
        parameters, distribution = trial_arguments(
            trial.values, self.template.train_parameters, self.template.distribution_specification
        )
        number, path = str(trial.number), self.template.task_path
        request = replace(
            self.template,
            train_parameters=parameters,
            distribution_specification=distribution,
            identity=(*self.template.identity, number),
            task_name=number,
            task_path=TaskPath((*path.sub_pipelines, self.template.task_name), path.iterations),
        )
        return replace(request, model_uri=uri_beside(self.template.model_uri, request.job_name))

    def job(self) -> TrainingJob:
        """Return a job that stands for the search in its MLflow run: that of a trial, with what all trials have.

        A request without the searched values may be none that can be planned.
        """
        job = plan_job(self.request(TrialValues(0, next(corners(self.space)))))
        description = replace(
            job.description,
            name=self.template.job_name,
            parameters=self.template.train_parameters,
            model_uri=self.template.model_uri,
            checkpoint_uri=join_uri(self.template.folder, CHECKPOINTS),
            metrics_uri=join_uri(self.template.folder, METRICS),
        )
        return replace(job, name=description.name, description=description)


def plan_search(
    template: Request,
    search_space: Mapping[str, Any] | str,
    metric: str,
    trials: int,
    parallel_trials: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> SearchPlan:
    """Check the parameters of a search, also whether the trials at the corners of its space can be planned.

    Args:
        template: Request with what all trials have.
        search_space: See `parse_search_space`.
        metric: Name of the metric of an epoch that decides, such as "val_loss".
        trials: Number of trials.
        parallel_trials: Trials that run at once, at most. Default: 1.
        settings: The attributes of `Search`, "trial_failures", the number of trials that may fail (default 3), and
            "keep_models", "best" or "all" (default "best"). Without "direction", it is that of the metric, if that is
            known. Default: {}.

    Raises:
        ValueError: A value is wrong. Nothing was started.
        StorageError: A dataset cannot be read.
    """
    for name, value, most in (("trials", trials, None), ("parallel_trials", parallel_trials, trials)):
        if value < 1 or (most and value > most):
            raise ValueError(f"{name} is {value}; allowed is {'1 or more' if most is None else f'1 to {most}, trials'}")
    if metric.startswith("val_") and not template.validation_uri:
        raise ValueError(f"metric is {metric!r}, of validation rows, and there is no validation_dataset: set it")
    program = parse_program(template.train_specification, template.trainers)
    fixed, distribution = (
        {} if is_blank(value) else read_entry(name, MAPPING, value)
        for name, value in (
            ("train_parameters", template.train_parameters),
            ("distribution_specification", template.distribution_specification),
        )
    )
    template = replace(template, train_parameters=fixed, distribution_specification=distribution)
    search, failures, keeps_models = _parse_settings(settings or {}, metric)
    space = parse_search_space(search_space, program, fixed, distribution)
    if search.pruner == "hyperband" and not search.epochs:
        search = replace(search, epochs=_epochs(program, fixed, space))
    if search.sampler == "grid" and trials > (points := grid_points(space)):
        raise ValueError(
            f'trials is {trials}, and the grid of the sampler "grid" has {points} points: set trials to it'
        )
    plan = SearchPlan(template, space, metric, search, Limits(trials, parallel_trials, failures), keeps_models)
    for number, values in enumerate(corners(space)):
        try:
            plan_job(plan.request(TrialValues(number, values)))
        except ValueError as error:
            shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
            raise ValueError(f"search_space has {shown}, with which no trial can run: {error}") from None
    return plan


def _epochs(program: Program, fixed: Mapping[str, Any], space: Space) -> int:
    """Return the number of epochs of a trial, the largest if it is searched.

    Raises:
        ValueError: It is not known.
    """
    defaults = (parameter.default for parameter in program.parameters if parameter.name == "epochs")
    searched = space["epochs"].corners if "epochs" in space else (fixed.get("epochs", next(defaults, None)),)
    if not all(map(_is_count, searched)) or not max(searched):
        raise ValueError('search: the pruner is "hyperband", which needs "epochs", the epochs of a trial: set it')
    return int(max(searched))


def _parse_settings(settings: Mapping[str, Any], metric: str) -> tuple[Search, int, bool]:
    """Return how values are searched, how many trials may fail, and whether the models of all are kept."""
    choices = {name: get_args(hint) for name, hint in get_type_hints(Search).items()}
    choices |= {_FAILURES: (), _KEEPS: _KEPT}
    values = {"direction": _direction(metric), _FAILURES: _DEFAULT_FAILURES, _KEEPS: _KEPT[0], **settings}
    for name, value in values.items():
        if name not in choices:
            raise ValueError(f"search has {name!r}; allowed are {', '.join(choices)}")
        if choices[name]:
            if value not in choices[name]:
                reason = (
                    f"the direction of {metric!r} is not known: set it" if value is None else f"{name} is {value!r}"
                )
                raise ValueError(f"search: {reason}; allowed are {', '.join(choices[name])}")
        elif not _is_count(value):
            raise ValueError(f"search: {name} is {value!r}; allowed is a whole number from 0 to {_SEEDS - 1}")
        else:
            values[name] = int(value)
    failures, keeps = values.pop(_FAILURES), values.pop(_KEEPS)
    return Search(**values), failures, keeps == "all"


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < _SEEDS and value == int(value)


def _direction(metric: str) -> str | None:
    """Return the direction of a metric of training or validation rows; None if it is not known."""
    known = dict[str, str](pair for names in (*DIRECTIONS.values(), OF_TEXTS) for pair in names.items())
    found = known.get(metric.removeprefix("val_"))
    return None if found is None else {"at least": "maximize", "at most": "minimize"}[found]
