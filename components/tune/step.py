"""Runs the `tune` step: reads KFP's input artifacts, runs the search, and writes the output artifacts."""

import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.run.identity import record_success
from kfp_distributed.components.train.run.signals import ended_by_signals
from kfp_distributed.components.train.step import log_metrics, prepare_job
from kfp_distributed.components.train.tell.log_format import error_lines, log, print_entry
from kfp_distributed.components.tune.best_model import keep_best_model
from kfp_distributed.components.tune.search import SearchFailed, run_search
from kfp_distributed.components.tune.search_plan import SearchPlan, plan_search
from kfp_distributed.components.tune.study import Study, TrialValues
from kfp_distributed.components.tune.trial import RunnerChoice
from kfp_distributed.components.tune.trial_processes import Trials
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import ModelIncomplete, ModelManifest
from kfp_distributed.storage.object_stores.buckets import require_bucket
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.uri import join_uri, uri_beside


class Tuned(NamedTuple):
    """What a search has found.

    Attributes:
        best_parameters: train_parameters of the best trial.
        best_distribution: Its distribution_specification.
        best_value: Its value of the metric.
        model_uri: Address of its model.
    """

    best_parameters: dict[str, Any]
    best_distribution: dict[str, Any]
    best_value: float
    model_uri: str


def run_step(
    *,
    train_dataset: Any,  # noqa: ANN401  (kfp's artifacts, which this module must not import)
    validation_dataset: Any,  # noqa: ANN401
    model: Any,  # noqa: ANN401
    metrics: Any,  # noqa: ANN401
    search_space: Mapping[str, Any],
    metric: str,
    trials: int,
    parallel_trials: int,
    search: Mapping[str, Any],
    runner: str,
    cluster_configuration_secret: str = "",
    task_config: Any = None,  # noqa: ANN401
    **fields: Any,  # noqa: ANN401
) -> Tuned:
    """Run a search and write the outputs of the step.

    Args:
        train_dataset: Training dataset, an artifact of KFP.
        validation_dataset: Validation dataset, or None.
        model: Model artifact, which becomes that of the best trial.
        metrics: Metrics artifact for the metrics of this model.
        search_space: See `plan_search`, and so are the next four.
        metric: See there.
        trials: See there.
        parallel_trials: See there.
        search: See there: `settings`.
        runner: "auto", "kubernetes" or "local".
        cluster_configuration_secret: Name of the Secret of another cluster. Default: "", the step's own cluster.
        task_config: TaskConfig of the KFP task, which is applied to pods. Default: None.
        fields: The other fields of `Request`.

    Raises:
        SystemExit: There is no best model. The text has the cause.
    """
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    inputs: dict[str, Any] = {}
    try:
        template, _ = prepare_job(
            train_dataset=train_dataset,
            validation_dataset=validation_dataset,
            model=model,
            runner=runner,
            cluster_configuration_secret=cluster_configuration_secret,
            task_config=task_config,
            say=log,
            inputs=inputs,
            others={"search_space": search_space, "metric": metric, "trials": trials, "search": search},
            **fields,
        )
        plan = plan_search(template, search_space, metric, trials, parallel_trials, search)
        choice = RunnerChoice(runner, cluster_configuration_secret, task_config and vars(task_config))
        best, value, found = _run(plan, choice)
        record_success(model.uri, inputs)
    except (SearchFailed, ModelIncomplete, ValueError, OSError, StorageError, ClusterError) as error:
        raise SystemExit(error_lines(f"{type(error).__name__}: {error}")) from None
    request = plan.request(best)
    model.metadata.update(framework=found.format, job=found.job)
    log_metrics(metrics, found.metrics)
    return Tuned(dict(request.train_parameters), dict(request.distribution_specification), value, model.uri)


def _run(plan: SearchPlan, choice: RunnerChoice) -> tuple[TrialValues, float, ModelManifest]:
    """Run a search; return the values of the best trial, its value of the metric, and its model."""
    template = plan.template
    root = template.checkpoint_uri or uri_beside(template.model_uri, "checkpoints")
    named = ("checkpoint_uri", root) if template.checkpoint_uri else ("the pipeline root", template.model_uri)
    require_bucket(open_store(root), *named)
    folder = join_uri(root, template.job_name)
    log("INFO", f"the study is stored in {folder}")
    study = Study(open_store(folder), plan.search, plan.space)
    with (
        TemporaryDirectory() as files,
        Trials(plan, choice, Path(files), print_entry) as trainings,
        ended_by_signals(trainings.stop_all),  # No signal interrupts the end of the trials.
    ):
        best = run_search(study, plan.limits, trainings, lambda text: log("INFO", text))
    number, value = best.number, float(best.value)  # type: ignore[arg-type]  # It is complete.
    log("INFO", f"the best trial is {number}: {plan.metric} = {value:.6g}")
    return study.values(best), value, keep_best_model(template.model_uri, number, plan.keeps_models)
