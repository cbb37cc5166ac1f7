"""Runs the `train` step: reads KFP's input artifacts, runs the training, and writes the output artifacts."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from kfp_distributed.components.train.describe.task_path import TaskPath
from kfp_distributed.components.train.recorded_job import run_recorded
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.identity import (
    TrainingIdentity,
    identify_training,
    own_task_path,
    record_success,
)
from kfp_distributed.components.train.run.launch import Outcome
from kfp_distributed.components.train.run.runners.protocol import Runner
from kfp_distributed.components.train.run.runners.runner_choice import choose_runner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.components.train.tell.choose_tracker import choose_tracker
from kfp_distributed.components.train.tell.experiment_tracker import ExperimentTracker
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.storage.dataset import DATASET_MANIFEST
from kfp_distributed.storage.kubeflow.placeholders import refuse_placeholders

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
        JobFailed: The job failed, or the request is wrong.
    """
    inputs: dict[str, Any] = {}

    def prepare(say: Log) -> tuple[Request, Runner]:
        return prepare_job(
            train_dataset=train_dataset,
            validation_dataset=validation_dataset,
            model=model,
            runner=runner,
            cluster_configuration_secret=cluster_configuration_secret,
            task_config=task_config,
            say=say,
            inputs=inputs,
            **fields,
        )

    return run_recorded(prepare, report, tracker, lambda: record_success(model.uri, inputs))


def prepare_job(
    *,
    train_dataset: Any,  # noqa: ANN401
    validation_dataset: Any,  # noqa: ANN401
    model: Any,  # noqa: ANN401
    runner: str,
    cluster_configuration_secret: str,
    task_config: Any,  # noqa: ANN401
    say: Log,
    inputs: dict[str, Any],
    others: Mapping[str, Any] = MappingProxyType({}),
    **fields: Any,  # noqa: ANN401
) -> tuple[Request, Runner]:
    """Return the request of a step's job and its runner.

    Args:
        train_dataset: As of `run_job`, and so are the next five.
        validation_dataset: See there.
        model: See there.
        runner: See there.
        cluster_configuration_secret: See there.
        task_config: See there.
        say: Receives lines of the step's log.
        inputs: Gets what identifies the job, for `record_success`.
        others: Inputs of the step that also identify the job. Default: {}.
        fields: The other fields of `Request`.

    Raises:
        ValueError: A value is wrong.
        OSError: A dataset cannot be read.
        ClusterError: The API server does not answer.
    """
    inputs.update(fields, **others, runner=runner, cluster_configuration_secret=cluster_configuration_secret)
    refuse_placeholders(inputs, _PROGRAM_TEXTS)
    inputs["manifests"] = [_manifest(dataset) for dataset in (train_dataset, validation_dataset)]
    identity = identify_training(model.uri, inputs, say)
    job_runner = choose_runner(runner, say, model.uri, cluster_configuration_secret, task_config and vars(task_config))
    return _request(identity, job_runner, train_dataset, validation_dataset, model, fields, say), job_runner


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


def _manifest(dataset: Any) -> str:  # noqa: ANN401
    """Return the manifest of a dataset on this machine's disk, or "" if there is none."""
    file = Path(dataset.path, DATASET_MANIFEST) if dataset else None
    return file.read_text(encoding="utf-8") if file and file.exists() else ""
