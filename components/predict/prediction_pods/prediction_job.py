"""What the pods that predict rows are asked for, and their way to the output of the step."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.kfp_interface.delivery import IMAGE_VARIABLE
from kfp_distributed.components.kfp_interface.step_packages import PREDICTION
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.run.identity import identify_training, own_task_path
from kfp_distributed.components.train.run.runners.protocol import Runner
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.components.worker_pool.worker_job import WorkerProgram, WorkerRequest, plan_worker_job
from kfp_distributed.components.worker_pool.worker_results import WorkerResult
from kfp_distributed.components.worker_pool.worker_run import run_in_pods
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import uri_beside

MODULE = "kfp_distributed.components.predict.prediction_pods.prediction_replica"
"""Module that each pod runs."""

PREDICTIONS = "predictions"
"""Folder of the output in the folder of the request."""


@dataclass(frozen=True)
class PredictionJobRequest(WorkerRequest):
    """What the pods are asked for. All values are JSON.

    Attributes:
        model_uri: Address of the model.
        is_artifact: See `PredictionRequest`.
        dataset_uri: Address of the dataset; "" for a source.
        parameters: Parameters of the step as `parse_request` takes them, without the model and the dataset.
    """

    model_uri: str
    is_artifact: bool
    dataset_uri: str
    parameters: Mapping[str, Any]


def prediction_folder(predictions_uri: str) -> str:
    """Return the address for what workers store until the predictions are complete, beside the output of the step."""
    return uri_beside(predictions_uri, "prediction-workers")


def predict_in_pods(
    request: PredictionJobRequest,
    settings: DistributionSpecification,
    runner: Runner,
    predictions: Artifact,
    step_log: StepLog,
) -> int:
    """Predict rows in pods, write the output artifact, and return the number of rows. See `run_in_pods`.

    Raises:
        ValueError: The pods cannot store the predictions, or the cluster refuses the job. Nothing was started.
        WorkersFailed: The job failed, or the model, the rows or a parameter cannot be used.
        ClusterError: The cluster refused the job.
        StorageError: The results cannot be read.
        SystemExit: The process received SIGTERM or SIGHUP.
    """
    if "://" not in predictions.uri:
        raise ValueError(
            f"number_of_workers is {request.workers}, and the output {predictions.uri} is on the disk of this "
            "machine, which pods cannot write: run the pipeline with an object store, or set KFP_DISTRIBUTED_RUNNER to "
            "local"
        )

    def take(store: Store, result: WorkerResult) -> None:
        store.download_folder(predictions.path, PREDICTIONS)
        predictions.metadata.update(result.metadata)

    identity = identify_training(predictions.uri, asdict(request), step_log.log)
    job = plan_worker_job(
        request,
        WorkerProgram(MODULE, PREDICTION, os.environ.get(IMAGE_VARIABLE, "")),
        settings,
        identity.task_name,
        (identity.run_id, *identity.distinction),
        own_task_path(step_log.log),
    )
    run_in_pods(job, runner, take, step_log)
    return int(predictions.metadata["rows"])
