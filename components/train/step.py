"""Between KFP's artifacts and `launch`: what a `train` step reads, writes and says."""

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from kfp_distributed.components.train.failed_report import store_report
from kfp_distributed.components.train.identity import TrainingIdentity, identify_training, record_success
from kfp_distributed.components.train.launch import Metrics, Outcome, Request, TrainingFailed, launch
from kfp_distributed.components.train.report import job_page
from kfp_distributed.components.train.runners.choose import choose_runner
from kfp_distributed.components.train.runners.protocol import ClusterError, Runner
from kfp_distributed.components.train.staging import staged
from kfp_distributed.components.train.status import JobStatus
from kfp_distributed.components.train.tracker import Tracker
from kfp_distributed.components.train.tracking import open_tracker
from kfp_distributed.reports.render import render_page
from kfp_distributed.storage.dataset import DATASET_MANIFEST
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.placeholders import refuse_placeholders

_PROGRAM_TEXTS = ("train_specification.source", "train_specification.command")


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
) -> None:
    """Runs a training and writes the step's outputs.

    Args:
        train_dataset: kfp's Dataset, likewise `validation_dataset`, which may be None.
        validation_dataset: See above.
        model: kfp's Model; the leader of the replicas writes it.
        metrics: kfp's Metrics: the last epoch's.
        report: kfp's HTML, also of a training that failed.
        runner: "auto", "kubernetes" or "local".
        cluster_configuration_secret: Name of the Secret of another cluster; "" means the step's own.
        task_config: kfp's TaskConfig or None, for replicas that are pods: others have the step's environment.
        fields: The other fields of `Request`.

    Raises:
        SystemExit: The training failed. The text ends the step's log, which is all that KFP shows of a failure: the
            cause and, where a job has run, the address of its report.
    """
    # A replica may print what our own output cannot: that line must not end the training.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    tracker = open_tracker(os.environ, lambda level, text: print(f"{level} {text}", flush=True))
    try:
        parameters = {**fields, "runner": runner, "cluster_configuration_secret": cluster_configuration_secret}
        refuse_placeholders(parameters, _PROGRAM_TEXTS)
        inputs = {**parameters, "manifests": [_manifest(dataset) for dataset in (train_dataset, validation_dataset)]}
        identity = identify_training(model.uri, inputs)
        job_runner = choose_runner(runner, model.uri, cluster_configuration_secret, task_config and vars(task_config))
        request = _request(identity, job_runner, train_dataset, validation_dataset, model, fields)
        outcome, page = _run_job(request, job_runner, report, tracker)
        record_success(model.uri, inputs)
        tracker.finish("FINISHED", outcome.metrics, page, report.uri)
    except TrainingFailed as failure:
        page = _render_report(failure.status, failure.metrics, job_runner, str(failure))
        last_lines = _last_lines(str(failure), report, page)
        tracker.finish("FAILED", failure.metrics, page, report.uri)
        raise SystemExit(last_lines) from None
    except (ValueError, OSError, StorageError, ClusterError) as error:
        tracker.finish("FAILED", {})
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
    finally:
        tracker.finish("KILLED", {})  # A signal ended the training.
    model.metadata.update(framework=outcome.model.format, job=outcome.status.job)
    if tracker.run_id:
        model.metadata["mlflow_run_id"] = tracker.run_id  # `export_model` adds a link to this run.
    _log_metrics(metrics, outcome.model.metrics)


def _request(
    identity: TrainingIdentity,
    runner: Runner,
    train_dataset: Any,  # noqa: ANN401
    validation_dataset: Any,  # noqa: ANN401
    model: Any,  # noqa: ANN401
    parameters: Mapping[str, Any],
) -> Request:
    # Replicas that see this step's disk take what KFP has put there, and need no credentials.
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
        **parameters,
    )


def _run_job(
    request: Request,
    runner: Runner,
    report: Any,  # noqa: ANN401
    tracker: Tracker,
) -> tuple[Outcome, str]:
    """Run the job and write its report. Return the result and the report's page."""
    is_staged = not runner.shares_disk and "://" not in request.model_uri
    request_of_replicas = staged(request) if is_staged else nullcontext(request)
    with request_of_replicas as visible_request:
        outcome = launch(visible_request, runner, partial(print, flush=True), tracker.start)
        # Inside the context: if the staged model cannot be downloaded, the step fails but has the job's report.
        page = _render_report(outcome.status, outcome.metrics, runner)
        _write(report, page)
    return outcome, page


def _render_report(status: JobStatus, metrics: Metrics, runner: Runner, cause: str = "") -> str:
    return render_page("train.html", job_page(status, metrics, runner.manifest, cause))


def _log_metrics(metrics: Any, values: Mapping[str, Any]) -> None:  # noqa: ANN401
    for measure, value in values.items():
        # KFP takes metrics as JSON, which has no NaN. An integer may be too large for a float.
        if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
            metrics.log_metric(measure, value)
        else:
            print(f"{measure} = {value!r} is left out of the step's metrics: they are finite numbers", flush=True)


def _last_lines(cause: str, report: Any, page: str) -> str:  # noqa: ANN401
    """Saves the report of a failed training; returns the cause and, after it, where the report is."""
    # A full disk must not hide the cause.
    with suppress(OSError):
        _write(report, page)
    return f"\n{cause}\n\n{store_report(report.uri, page)}"


def _manifest(dataset: Any) -> str:  # noqa: ANN401
    """The manifest of a Dataset on this machine's disk; "" where there is none."""
    file = Path(dataset.path, DATASET_MANIFEST) if dataset else None
    return file.read_text(encoding="utf-8") if file and file.exists() else ""


def _write(artifact: Any, page: str) -> None:  # noqa: ANN401
    file = Path(artifact.path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
