"""Run the train step on `StubApi`: `python log_follower.py PORT WORKERS` prints the lines of all workers of a job."""

import sys
import tempfile
from pathlib import Path

from kubernetes import client

from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.kubernetes.runner import KubernetesRunner
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.components.train.tell.log_format import log, print_entry
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest


def follow(configuration: client.Configuration, workers: int, folder: Path) -> None:
    """Run the train step with a minimal dataset manifest and an existing model."""
    train, model = folder / "train", folder / "model"
    train.mkdir()
    model.mkdir()
    (model / "weights").write_text("1")
    column, label = Column("x", "number", "float32"), Label("y", ("a", "b"))
    dataset = DatasetManifest("train", (column,), label, (Shard("0.parquet", 1000, 1, ""),), (500, 500), 0, "")
    (train / DATASET_MANIFEST).write_text(dataset.to_json())
    distribution = {"distribution_type": "TF", "number_of_workers": workers, "number_of_parameter_servers": 0}
    request = Request(
        train_uri=str(train),
        model_uri=str(model),
        train_specification={"function": "fit", "source": "def fit(model_dir: str): pass"},
        distribution_specification=distribution,
        identity=("benchmark",),
    )
    job = plan_job(request)
    manifest = ModelManifest("files", describe_folder(model), job=job.name, request=job.description.request)
    runner = KubernetesRunner(ClusterApi(configuration, "default"), ClusterSettings("default"), log)

    def write_model(_: object) -> None:
        # Before the job starts, it would make the job unnecessary.
        (model / MODEL_MANIFEST).write_text(manifest.to_json())

    launch(request, runner, StepLog(print_entry), on_start=write_model)


if __name__ == "__main__":
    stub = client.Configuration()
    stub.host = f"http://127.0.0.1:{sys.argv[1]}"
    with tempfile.TemporaryDirectory() as name:
        follow(stub, int(sys.argv[2]), Path(name))
