"""Runs a job as a step does: with its log, its records and its report, also if it fails."""

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from html import escape
from pathlib import Path
from typing import Any

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.conclusions.status import JobStatus, program_has_failed
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.launch import Outcome, TrainingFailed, launch
from kfp_distributed.components.train.run.runners.protocol import Runner
from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry
from kfp_distributed.components.train.run.staging import staged
from kfp_distributed.components.train.run.stored_metrics import Metrics
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.components.train.tell.experiment_tracker import ExperimentTracker, RunStatus
from kfp_distributed.components.train.tell.failed_report import store_report
from kfp_distributed.components.train.tell.log_format import error_lines, log, print_entry
from kfp_distributed.components.train.tell.records import Records
from kfp_distributed.components.train.tell.report import job_page
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.reports.page import render_page
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.trainers.runtime.outputs.fine_tuning_file import FineTuning


class JobFailed(SystemExit):
    """A job has failed, or its request is wrong. It ends the step.

    The text has the last lines of the step's log: the cause and, if a job was started, the location of its report. KFP
    shows nothing else of a failed step.

    Attributes:
        cause: The cause alone.
        is_of_program: Whether the program or the request is the cause, so that the same job would fail again. Otherwise
            it is a cluster, a store, or a preemption.
    """

    def __init__(self, text: str, cause: str, is_of_program: bool) -> None:
        super().__init__(text)
        self.cause, self.is_of_program = cause, is_of_program


def run_recorded(
    prepare: Callable[[Log], tuple[Request, Runner]],
    report: Any,  # noqa: ANN401
    tracker: ExperimentTracker,
    on_success: Callable[[], object] = lambda: None,
    show: Callable[[LogEntry], object] = print_entry,
) -> Outcome:
    """Run a job and write its report, also if it fails.

    Args:
        prepare: Returns the request of the job and its runner. Its argument receives lines of the log.
        report: HTML artifact.
        tracker: Gets the start and the end of the job.
        on_success: Called when the job has succeeded. Default: does nothing.
        show: Receives the entries of the log. Default: prints them.

    Raises:
        JobFailed: The job failed, or the request is wrong.
        SystemExit: The process received SIGTERM or SIGHUP.
    """
    # A replica may print characters that the encoding of our output lacks. That must not end the training.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    records = Records(log)
    step_log = StepLog(show, records.add)

    def finish(status: RunStatus, values: Metrics, page: str = "", cause: str = "") -> None:
        tracker.finish(status, values, page, report.uri if page else "")
        reason = cause.rpartition("\n")[2]
        if reason:  # The lines before it are lines of replicas, which the stored log has.
            records.add(LogEntry(time.time(), "ERROR", JOB, reason))
        records.finish(status, reason, page)

    try:
        request, runner = prepare(step_log.log)
        outcome, page = _run_job(request, runner, report, tracker, records, step_log)
        on_success()
        finish("FINISHED", outcome.metrics, page)
    except TrainingFailed as failure:
        page = _render_report(failure.status, failure.metrics, runner, failure.cause)
        lines = last_lines(str(failure), report, page)
        finish("FAILED", failure.metrics, page, str(failure))
        raise JobFailed(lines, str(failure), program_has_failed(failure.status)) from None
    except (ValueError, OSError, StorageError, ClusterError) as error:
        cause = f"{type(error).__name__}: {error}"
        finish("FAILED", {}, cause=cause)
        raise JobFailed(error_lines(cause), cause, isinstance(error, ValueError)) from None
    except (SystemExit, KeyboardInterrupt):  # Raised by a signal.
        finish("KILLED", {})
        raise
    finally:
        finish("FAILED", {})  # Only the first call counts.
    return outcome


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
        write_report(report, page)
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


def last_lines(cause: str, report: Any, page: str) -> str:  # noqa: ANN401
    """Save the report of a failed training; return the lines with the cause and with the location of the report."""
    # A full disk must not hide the cause.
    with suppress(OSError):
        write_report(report, page)
    return f"{error_lines(cause)}\n{LogEntry(time.time(), 'INFO', JOB, store_report(report.uri, page))}"


def write_report(artifact: Any, page: str) -> None:  # noqa: ANN401
    """Write the file of an HTML artifact."""
    file = Path(artifact.path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
