"""Runs the `tune` step: reads KFP's input artifacts, runs the search, and writes the output artifacts."""

import os
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from optuna.trial import FrozenTrial

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.recorded_job import last_lines, write_report
from kfp_distributed.components.train.run.identity import record_success
from kfp_distributed.components.train.run.signals import ended_by_signals
from kfp_distributed.components.train.step import log_metrics, prepare_job
from kfp_distributed.components.train.tell.choose_tracker import choose_tracker
from kfp_distributed.components.train.tell.experiment_tracker import RunStatus
from kfp_distributed.components.train.tell.log_format import error_lines, log, print_entry
from kfp_distributed.components.tune.best_model import keep_best_model
from kfp_distributed.components.tune.report import search_page
from kfp_distributed.components.tune.search import SearchFailed, run_search
from kfp_distributed.components.tune.search_plan import SearchPlan, plan_search
from kfp_distributed.components.tune.study import Study
from kfp_distributed.components.tune.trial import RunnerChoice, report_of_trial
from kfp_distributed.components.tune.trial_processes import Trials
from kfp_distributed.reports.page import render_page
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import ModelIncomplete
from kfp_distributed.storage.object_stores.buckets import require_bucket
from kfp_distributed.storage.opener import open_store


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
    report: Any,  # noqa: ANN401
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
        report: HTML artifact. It is also written if the search fails.
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
        tuned = _run(plan, choice, model, metrics, report)
        record_success(model.uri, inputs)
    except (ModelIncomplete, ValueError, OSError, StorageError, ClusterError) as error:
        raise SystemExit(error_lines(f"{type(error).__name__}: {error}")) from None
    return tuned


def _run(plan: SearchPlan, choice: RunnerChoice, model: Any, metrics: Any, report: Any) -> Tuned:  # noqa: ANN401
    """Run a search with its MLflow run and its report.

    Raises:
        SystemExit: There is no best trial, or the process received a signal.
    """
    tracker = choose_tracker(os.environ, log)
    study = _open_study(plan)

    def finish(status: RunStatus, cause: str = "") -> str:
        values = {"trials": [{"epoch": trial.number, plan.metric: trial.value or 0.0} for trial in study.complete]}
        page = _render(plan, study, cause)
        tracker.finish(status, values, page, report.uri)
        return page

    tracker.start(plan.job())
    try:
        best = _search(plan, choice, study)
        found, value = study.values(best), float(best.value)  # type: ignore[arg-type]  # It is complete.
        unwanted = () if plan.keeps_models else (plan.request(study.values(trial)).model_uri for trial in study.ended)
        kept = keep_best_model(plan.template.model_uri, plan.request(found).model_uri, unwanted)
        write_report(report, finish("FINISHED"))
    except SearchFailed as error:
        raise SystemExit(last_lines(f"SearchFailed: {error}", report, finish("FAILED", str(error)))) from None
    except (SystemExit, KeyboardInterrupt):  # Raised by a signal.
        tracker.finish("KILLED", {})
        raise
    finally:
        tracker.finish("FAILED", {})  # Only the first call counts.
    log("INFO", f"the best trial is {best.number}: {plan.metric} = {value:.6g}")
    request = plan.request(found)
    model.metadata.update(framework=kept.format, job=kept.job)
    if tracker.run_id:
        model.metadata["mlflow_run_id"] = tracker.run_id  # `export_model` adds a link to this run.
    log_metrics(metrics, kept.metrics)
    return Tuned(dict(request.train_parameters), dict(request.distribution_specification), value, model.uri)


def _open_study(plan: SearchPlan) -> Study:
    template = plan.template
    uri = template.checkpoint_uri
    store = open_store(template.folder)
    require_bucket(store, *(("checkpoint_uri", uri) if uri else ("the pipeline root", template.model_uri)))
    log("INFO", f"the study is stored in {template.folder}")
    return Study(store, plan.search, plan.space)


def _search(plan: SearchPlan, choice: RunnerChoice, study: Study) -> FrozenTrial:
    with (
        TemporaryDirectory() as files,
        Trials(plan, choice, Path(files), print_entry) as trainings,
        ended_by_signals(trainings.stop_all),  # No signal interrupts the end of the trials.
    ):
        return run_search(study, plan.limits, trainings, lambda text: log("INFO", text))


def _render(plan: SearchPlan, study: Study, cause: str) -> str:
    reports = {trial.number: report_of_trial(plan.request(study.values(trial))) for trial in study.trials}
    try:
        page = search_page(plan.template.job_name, plan.metric, plan.search, plan.space, study.trials, reports, cause)
        return render_page("tune.html", page)
    except Exception as error:  # noqa: BLE001  (a bug in the report must neither fail a search nor hide the cause)
        log("WARNING", f"the report cannot be rendered: {error!r}")
        return (
            f"<!DOCTYPE html><title>{escape(plan.template.job_name)}</title><pre>{escape(cause or repr(error))}</pre>"
        )
