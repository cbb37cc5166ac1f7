"""Runs the `train` step: reads KFP's input artifacts, runs the training, and writes the output artifacts."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.describe.task_path import TaskPath
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.conclusions.status import JobStatus
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.identity import (
    TrainingIdentity,
    identify_training,
    own_task_path,
    record_success,
)
from kfp_distributed.components.train.run.launch import Outcome, TrainingFailed, launch
from kfp_distributed.components.train.run.runners.protocol import Runner
from kfp_distributed.components.train.run.runners.runner_choice import choose_runner
from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry
from kfp_distributed.components.train.run.staging import staged
from kfp_distributed.components.train.run.stored_metrics import Metrics
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.components.train.tell.choose_tracker import choose_tracker
from kfp_distributed.components.train.tell.experiment_tracker import ExperimentTracker, RunStatus
from kfp_distributed.components.train.tell.failed_report import store_report
from kfp_distributed.components.train.tell.log_format import error_lines, log, print_entry
from kfp_distributed.components.train.tell.records import Records
from kfp_distributed.components.train.tell.report import job_page
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.reports.page import render_page
from kfp_distributed.storage.dataset import DATASET_MANIFEST
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.placeholders import refuse_placeholders
from kfp_distributed.trainers.runtime.outputs.fine_tuning_file import FineTuning

_PROGRAM_TEXTS = ("train_specification.source", "train_specification.command")


class Trained(NamedTuple):
    """Address of the trained model, and ID of the MLflow run or ""."""

    model_uri: str
    mlflow_run_id: str


def run_step(
    *,
    train_dataset: Any,  # noqa: ANN401  (kfp's artifacts, which this module must not import)
    validation_dataset: Any,  # noqa: ANN401
    model: Any,  # noqa: ANN401
    metrics: Any,  # noqa: ANN401
    report: Any,  # noqa: ANN401
    runner: str,
    cluster_configuration_secret: str = "",
    task_config: Any = None,  # noqa: ANN401
    **fields: Any,  # noqa: ANN401
) -> Trained:
    """Run a training and write the outputs of the step.

    Args:
        train_dataset: Training dataset, an artifact of KFP.
        validation_dataset: Validation dataset, or None.
        model: Model artifact, whose files the leader of the replicas writes.
        metrics: Metrics artifact for the values of the last epoch.
        report: HTML artifact. It is also written if the training fails.
        runner: "auto", "kubernetes" or "local".
        cluster_configuration_secret: Name of the Secret of another cluster. Default: "", the step's own cluster.
        task_config: TaskConfig of the KFP task, which is applied to pods. Default: None.
        fields: The other fields of `Request`.

    Returns:
        The outputs that are texts.

    Raises:
        SystemExit: See `run_job`.
    """
    tracker = choose_tracker(os.environ, log)
    outcome = run_job(
        train_dataset=train_dataset,
        validation_dataset=validation_dataset,
        model=model,
        report=report,
        runner=runner,
        cluster_configuration_secret=cluster_configuration_secret,
        task_config=task_config,
        tracker=tracker,
        **fields,
    )
    model.metadata.update(framework=outcome.model.format, job=outcome.status.job)
    if tracker.run_id:
        model.metadata["mlflow_run_id"] = tracker.run_id  # `export_model` adds a link to this run.
    log_metrics(metrics, outcome.model.metrics)
    return Trained(model.uri, tracker.run_id)


def run_job(
    *,
    train_dataset: Any,  # noqa: ANN401
    model: Any,  # noqa: ANN401
    report: Any,  # noqa: ANN401
    runner: str,
    tracker: ExperimentTracker,
    validation_dataset: Any = None,  # noqa: ANN401
    cluster_configuration_secret: str = "",
    task_config: Any = None,  # noqa: ANN401
    **fields: Any,  # noqa: ANN401
) -> Outcome:
    """Run the job of a step and write its report, also if it fails.

    Args:
        train_dataset: Dataset of the job, an artifact of KFP.
        model: Artifact whose files the leader of the replicas writes.
        report: HTML artifact.
        runner: "auto", "kubernetes" or "local".
        tracker: Gets the start and the end of the job.
        validation_dataset: Validation dataset. Default: None.
        cluster_configuration_secret: Name of the Secret of another cluster. Default: "", the step's own cluster.
        task_config: TaskConfig of the KFP task, which is applied to pods. Default: None.
        fields: The other fields of `Request`.

    Raises:
        SystemExit: The job failed. The text has the last lines of the step's log: the cause and, if a job was
            started, the location of its report. KFP shows nothing else of a failed step.
    """
    # A replica may print characters that the encoding of our output lacks. That must not end the training.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    records = Records(log)
    step_log = StepLog(print_entry, records.add)

    def finish(status: RunStatus, values: Metrics, page: str = "", cause: str = "") -> None:
        tracker.finish(status, values, page, report.uri if page else "")
        reason = cause.rpartition("\n")[2]
        if reason:  # The lines before it are lines of replicas, which the stored log has.
            records.add(LogEntry(time.time(), "ERROR", JOB, reason))
        records.finish(status, reason, page)

    try:
        parameters = {**fields, "runner": runner, "cluster_configuration_secret": cluster_configuration_secret}
        refuse_placeholders(parameters, _PROGRAM_TEXTS)
        inputs = {**parameters, "manifests": [_manifest(dataset) for dataset in (train_dataset, validation_dataset)]}
        identity = identify_training(model.uri, inputs, step_log.log)
        job_runner = choose_runner(
            runner, step_log.log, model.uri, cluster_configuration_secret, task_config and vars(task_config)
        )
        request = _request(identity, job_runner, train_dataset, validation_dataset, model, fields, step_log.log)
        outcome, page = _run_job(request, job_runner, report, tracker, records, step_log)
        record_success(model.uri, inputs)
        finish("FINISHED", outcome.metrics, page)
    except TrainingFailed as failure:
        page = _render_report(failure.status, failure.metrics, job_runner, failure.cause)
        last_lines = _last_lines(str(failure), report, page)
        finish("FAILED", failure.metrics, page, str(failure))
        raise SystemExit(last_lines) from None
    except (ValueError, OSError, StorageError, ClusterError) as error:
        cause = f"{type(error).__name__}: {error}"
        finish("FAILED", {}, cause=cause)
        raise SystemExit(error_lines(cause)) from None
    except (SystemExit, KeyboardInterrupt):  # Raised by a signal.
        finish("KILLED", {})
        raise
    finally:
        finish("FAILED", {})  # Only the first call counts.
    return outcome


def _request(
    identity: TrainingIdentity,
    runner: Runner,
    train_dataset: Any,  # noqa: ANN401
    validation_dataset: Any,  # noqa: ANN401
    model: Any,  # noqa: ANN401
    parameters: Mapping[str, Any],
    say: Log,
) -> Request:
    # Replicas on the disk of this step read and write the artifacts there, without credentials of a store.
    train_uri, validation_uri, model_uri = (
        (artifact.path if runner.shares_disk else artifact.uri) if artifact else ""
        for artifact in (train_dataset, validation_dataset, model)
    )
    return Request(
        train_uri=train_uri,
        validation_uri=validation_uri,
        model_uri=model_uri,
        task_name=identity.task_name,
        identity=(identity.run_id, *identity.distinction),
        # Replicas on this machine have no names that others see.
        task_path=TaskPath() if runner.shares_disk else own_task_path(say),
        **parameters,
    )


def _run_job(
    request: Request,
    runner: Runner,
    report: Any,  # noqa: ANN401
    tracker: ExperimentTracker,
    records: Records,
    step_log: StepLog,
) -> tuple[Outcome, str]:
    """Run the job and write its report; return the result and the page of the report."""

    def begin(job: TrainingJob) -> None:
        tracker.start(job)
        records.start(job, runner.namespace, request.model_uri, str(runner.manifest.get("kind", "")))

    is_staged = not runner.shares_disk and "://" not in request.model_uri
    request_of_replicas = staged(request, step_log.log) if is_staged else nullcontext(request)
    with request_of_replicas as visible_request:
        outcome = launch(visible_request, runner, step_log, begin)
        # Inside the context: if the staged model cannot be downloaded, the step fails, and its report exists.
        model_epoch = outcome.model.metrics.get("epoch")
        page = _render_report(
            outcome.status, outcome.metrics, runner, model_epoch=model_epoch, fine_tuning=outcome.fine_tuning
        )
        _write(report, page)
    return outcome, page


def _render_report(
    status: JobStatus,
    metrics: Metrics,
    runner: Runner,
    cause: str = "",
    model_epoch: float | None = None,
    fine_tuning: FineTuning = FineTuning(),  # noqa: B008  (a tuple)
) -> str:
    try:
        return render_page("train.html", job_page(status, metrics, runner.manifest, cause, model_epoch, fine_tuning))
    except Exception as error:  # noqa: BLE001  (a bug in the report must neither fail a training nor hide the cause)
        log("WARNING", f"the report cannot be rendered: {error!r}")
        return f"<!DOCTYPE html><title>{escape(status.job)}</title><pre>{escape(cause or repr(error))}</pre>"


def log_metrics(metrics: Any, values: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Log the metrics of a step that are finite numbers, and a warning for each of the others.

    Args:
        metrics: Metrics artifact.
        values: The metrics by name.
    """
    for measure, value in values.items():
        # KFP stores metrics as JSON, which has no NaN. An integer may be too large for a float.
        if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
            metrics.log_metric(measure, value)
        else:
            log("WARNING", f"{measure} = {value!r} is left out of the metrics of the step: it is not a finite number")


def _last_lines(cause: str, report: Any, page: str) -> str:  # noqa: ANN401
    """Save the report of a failed training; return the lines with the cause and with the location of the report."""
    # A full disk must not hide the cause.
    with suppress(OSError):
        _write(report, page)
    return f"{error_lines(cause)}\n{LogEntry(time.time(), 'INFO', JOB, store_report(report.uri, page))}"


def _manifest(dataset: Any) -> str:  # noqa: ANN401
    """Return the manifest of a dataset on this machine's disk, or "" if there is none."""
    file = Path(dataset.path, DATASET_MANIFEST) if dataset else None
    return file.read_text(encoding="utf-8") if file and file.exists() else ""


def _write(artifact: Any, page: str) -> None:  # noqa: ANN401
    file = Path(artifact.path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
