"""Prepares data in the pods of a job."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.kfp_interface.delivery import IMAGE_VARIABLE
from kfp_distributed.components.kfp_interface.step_packages import PREPARATION
from kfp_distributed.components.prepare_data.preparation_pods.preparation_request import MODULE, PreparationRequest
from kfp_distributed.components.prepare_data.preparation_pods.preparation_results import take_results
from kfp_distributed.components.prepare_data.sources.fetch import refuse_downloads
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.run.identity import identify_training, own_task_path
from kfp_distributed.components.train.run.runners.protocol import Runner
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.components.worker_pool.worker_job import WorkerProgram, plan_worker_job
from kfp_distributed.components.worker_pool.worker_run import run_in_pods


def prepare_in_pods(
    request: PreparationRequest,
    settings: DistributionSpecification,
    runner: Runner,
    datasets: Mapping[str, Artifact],
    overview: Path,
    step_log: StepLog,
) -> None:
    """Prepare data in pods, and write the output artifacts, see `run_in_pods`.

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
        WorkersFailed: The job failed, or the data or the options are wrong.
        ClusterError: The cluster refused the job.
        StorageError: The results cannot be read.
        SystemExit: The process received SIGTERM or SIGHUP.
    """
    _require_reachable(request)
    identity = identify_training(request.uris["train"], asdict(request), step_log.log)
    job = plan_worker_job(
        request,
        WorkerProgram(MODULE, PREPARATION, os.environ.get(IMAGE_VARIABLE, "")),
        settings,
        identity.task_name,
        (identity.run_id, *identity.distinction),
        own_task_path(step_log.log),
    )
    run_in_pods(job, runner, lambda store, result: take_results(store, result, datasets, overview), step_log)


def _require_reachable(request: PreparationRequest) -> None:
    """Check that all pods can reach the source and the outputs.

    Raises:
        ValueError: They cannot.
    """
    if "://" not in request.uris["train"]:
        raise ValueError(
            f"number_of_workers is {request.workers}, and the output {request.uris['train']} is on the disk of this "
            "machine, which pods cannot write: run the pipeline with an object store, or set KFP_DISTRIBUTED_RUNNER to "
            "local"
        )
    refuse_downloads(
        [request.source, *request.sources_of_splits.values()],
        "other pods do not see: set number_of_workers to 0, or",
    )
