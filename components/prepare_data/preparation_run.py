"""Prepares data in the pods of a job: starts it, follows it to its end, and takes its results."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.artifacts import Artifact
from kfp_distributed.components.delivery import IMAGE_VARIABLE
from kfp_distributed.components.prepare_data.fetch import refuse_downloads
from kfp_distributed.components.prepare_data.pod_engine import forget_scheduler
from kfp_distributed.components.prepare_data.preparation_job import PreparationRequest, plan_preparation
from kfp_distributed.components.prepare_data.preparation_results import (
    PreparationResult,
    delete_all,
    forget_result,
    read_result,
    take_results,
)
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.identity import identify_training, own_task_path
from kfp_distributed.components.train.run.launch import STORE_AWAY_SECONDS, follow_job
from kfp_distributed.components.train.run.runners.protocol import Runner
from kfp_distributed.components.train.run.signals import ended_by_signals
from kfp_distributed.components.train.run.status import failure_cause
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store


class PreparationFailed(Exception):
    """The pods have left no datasets. The text says why."""


def prepare_in_pods(
    request: PreparationRequest,
    settings: DistributionSpecification,
    runner: Runner,
    datasets: Mapping[str, Artifact],
    overview: Path,
    step_log: StepLog,
) -> None:
    """Prepare data in pods, and write the output artifacts. Call it in the main thread, because it handles signals.

    No pod is left running when it returns or raises. What the pods have stored is deleted, unless the job failed for
    another reason than the data and the options: then the next attempt of the step goes on from it.

    Args:
        request: What the pods are asked for.
        settings: Their settings.
        runner: Where they run.
        datasets: The output artifacts by split.
        overview: Path of the HTML page.
        step_log: Log of the step.

    Raises:
        ValueError: The pods cannot read the source or store the datasets, or the cluster refuses the job. Nothing was
            started.
        PreparationFailed: The job failed, or the data or the options are wrong.
        ClusterError: The cluster refused the job.
        StorageError: The results cannot be read.
        SystemExit: The process received SIGTERM or SIGHUP.
    """
    _require_reachable(request)
    identity = identify_training(request.uris["train"], asdict(request), step_log.log)
    job = plan_preparation(
        request,
        settings,
        identity.task_name,
        (identity.run_id, *identity.distinction),
        own_task_path(step_log.log),
        os.environ.get(IMAGE_VARIABLE, ""),
    )
    store = open_store(job.description.parameters["folder"], retry_seconds=STORE_AWAY_SECONDS)

    def clean_up() -> None:
        runner.stop()
        with suppress(StorageError):  # It has the key of a scheduler that has ended.
            forget_scheduler(store)

    # From here on: a previous attempt of this step may have left the job, which a cancel must delete as well.
    with ended_by_signals(clean_up):
        result = _result_of(job, runner, store, step_log)
    if result.error:
        delete_all(store)
        raise PreparationFailed(result.error)
    take_results(store, result, datasets, overview)
    with suppress(StorageError):  # The outputs are complete.
        delete_all(store)


def _result_of(job: TrainingJob, runner: Runner, store: Store, step_log: StepLog) -> PreparationResult:
    """Run the job, or follow what an earlier attempt of this step has left of it, and return its result.

    Raises:
        PreparationFailed: It has none.
    """
    result = read_result(store, job.description.request)
    if result and not result.error:
        step_log.log("INFO", "an earlier attempt of this step has prepared the data; nothing is prepared again")
        try:
            if runner.adopt(job):
                follow_job(runner, job, step_log)
        except (ClusterError, ValueError) as error:
            step_log.log("WARNING", f"the job of the earlier attempt cannot be found: {error}")
        return result
    if result:
        forget_result(store)
    runner.check(job)
    runner.start(job)
    status = follow_job(runner, job, step_log)
    # The result decides. If there is one, the preparation has succeeded, whatever failed afterwards.
    result = read_result(store, job.description.request)
    if result is None:
        raise PreparationFailed(failure_cause(status))
    return result


def _require_reachable(request: PreparationRequest) -> None:
    """Check that all pods can reach the source and the outputs.

    Raises:
        ValueError: They cannot.
    """
    if "://" not in request.uris["train"]:
        raise ValueError(
            f"workers is {request.workers}, and the output {request.uris['train']} is on the disk of this machine, "
            "which pods cannot write: run the pipeline with an object store, or set KFP_DISTRIBUTED_RUNNER to local"
        )
    refuse_downloads(
        [request.source, *request.sources_of_splits.values()], "other pods do not see: set workers to 0, or"
    )
