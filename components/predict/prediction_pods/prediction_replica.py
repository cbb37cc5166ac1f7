"""The program of each pod that predicts rows, which is run with `python -m`."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kfp_distributed.components.predict.prediction import run_prediction
from kfp_distributed.components.predict.prediction_pods.prediction_job import PREDICTIONS, PredictionJobRequest
from kfp_distributed.components.predict.prediction_request import parse_request
from kfp_distributed.components.prepare_data.sources.download_limit import SourceTooLarge
from kfp_distributed.components.worker_pool.worker_replica import PodWork, run_pod
from kfp_distributed.components.worker_pool.worker_results import store_result
from kfp_distributed.storage.dataset import DATASET_MANIFEST
from kfp_distributed.storage.errors import ChecksumMismatch
from kfp_distributed.storage.model import ModelIncomplete
from kfp_distributed.storage.shards import fetch_manifest
from kfp_distributed.trainers.runtime.lifecycle.ending import run_to_end


@dataclass
class _Output:
    """The predictions that the first pod writes, see `Artifact`."""

    path: str
    uri: str
    metadata: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    """Run this pod's part of the prediction; return its exit code."""
    return run_pod(_predict, (ValueError, ChecksumMismatch, ModelIncomplete, SourceTooLarge))


def _predict(work: PodWork) -> None:
    request = PredictionJobRequest(**work.parameters)
    dataset = _dataset(request.dataset_uri) if request.dataset_uri else None
    model, address = (("", request.model_uri), "") if request.is_artifact else (None, request.model_uri)
    parsed = parse_request(model=model, model_uri=address, dataset=dataset, **request.parameters)
    output = _Output(str(Path(PREDICTIONS).absolute()), "")
    run_prediction(parsed, output, work.engine)
    work.store.upload_folder(output.path, PREDICTIONS)
    store_result(work.store, work.request, output.metadata)


def _dataset(uri: str) -> str:
    """Download the manifest of a dataset, and return its folder. The shards of old datasets are beside the manifest."""
    manifest = fetch_manifest(uri)
    folder = Path("dataset").absolute()
    folder.mkdir(exist_ok=True)
    Path(folder, DATASET_MANIFEST).write_text(replace(manifest, shards_uri=manifest.shards_uri or uri).to_json())
    return str(folder)


if __name__ == "__main__":
    run_to_end(main)
