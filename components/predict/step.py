"""Runs the step `predict` on the artifacts of KFP."""

import signal
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.model_versions.aliases import resolve
from kfp_distributed.components.predict.prediction import run_prediction
from kfp_distributed.components.predict.prediction_pods.prediction_job import (
    PredictionJobRequest,
    predict_in_pods,
    prediction_folder,
)
from kfp_distributed.components.predict.prediction_request import parse_request
from kfp_distributed.components.train.tell.log_format import print_entry
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.components.worker_pool.worker_choice import engine_of, parse_workers, pod_runner
from kfp_distributed.components.worker_pool.worker_run import WorkersFailed
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.placeholders import refuse_placeholders
from kfp_distributed.storage.model import ModelIncomplete

_LOG = StepLog(print_entry)


class Predicted(NamedTuple):
    """Number of predicted rows."""

    rows: int


def run_step(
    *,
    predictions: Artifact,
    model: Artifact | None,
    dataset: Artifact | None,
    model_uri: str = "",
    distribution_specification: Mapping[str, Any] = MappingProxyType({}),
    **parameters: Any,  # noqa: ANN401  (checked by parse_request)
) -> Predicted:
    """Predict rows, and return their number; the parameters are those of the component.

    Raises:
        SystemExit: The rows cannot be predicted. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    # KFP cancels a step by SIGTERM. Without a handler, the folders for downloads and unfinished files would stay.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    try:
        texts = {name: value for name, value in parameters.items() if not isinstance(value, bool)}
        refuse_placeholders({**texts, "model_uri": model_uri, "distribution_specification": distribution_specification})
        request = parse_request(
            model=(model.path, model.uri) if model else None,
            model_uri=model_uri,
            dataset=dataset.path if dataset else None,
            **parameters,
        )
        chosen = parse_workers(distribution_specification)
        folder = prediction_folder(predictions.uri)
        if runner := pod_runner(chosen, predictions.uri, _LOG):
            dataset_uri = dataset.uri if dataset else ""
            address = request.model_uri if request.is_artifact else resolve(request.model_uri)
            asked = PredictionJobRequest(chosen.count, folder, address, request.is_artifact, dataset_uri, parameters)
            return Predicted(predict_in_pods(asked, chosen.settings, runner, predictions, _LOG))
        with engine_of(chosen, predictions.path, predictions.uri, folder) as engine:
            return Predicted(run_prediction(request, predictions, engine))
    except WorkersFailed as error:
        raise SystemExit(f"\n{error}") from None
    except (ValueError, OSError, StorageError, ModelIncomplete, ClusterError) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None


def _end(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
