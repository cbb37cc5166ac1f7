"""The programs that `benchmarks/logs.py` measures: each starts a job of N workers and prints all of their lines.

`python followers.py step|sdk PORT N` runs the `launch` of the train step, or the TrainingClient of kubeflow-training,
which is installed in a separate environment. Both connect to `StubApi`.
"""

import sys
import tempfile
from pathlib import Path

from kubernetes import client


def step(configuration: client.Configuration, workers: int) -> None:
    """Run the train step with a minimal dataset manifest and an existing model."""
    from kfp_distributed.cluster_api.client import ClusterApi
    from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
    from kfp_distributed.components.train.describe.training_job import TrainingJob
    from kfp_distributed.components.train.run.launch import launch
    from kfp_distributed.components.train.run.request import Request, plan_job
    from kfp_distributed.components.train.run.runners.kubernetes.runner import KubernetesRunner
    from kfp_distributed.components.train.tell.log_format import log, print_entry
    from kfp_distributed.components.train.tell.step_log import StepLog
    from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
    from kfp_distributed.storage.files import describe_folder
    from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest

    with tempfile.TemporaryDirectory() as name:
        train, model = Path(name, "train"), Path(name, "model")
        train.mkdir()
        model.mkdir()
        (model / "weights").write_text("1")
        column, label = Column("x", "number", "float32"), Label("y", ("a", "b"))
        dataset = DatasetManifest("train", (column,), label, (Shard("0.parquet", 1000, 1, ""),), (500, 500), 0, "")
        (train / DATASET_MANIFEST).write_text(dataset.to_json())
        request = Request(
            train_uri=str(train),
            model_uri=str(model),
            train_specification={"function": "fit", "source": "def fit(model_dir: str): pass"},
            distribution_specification={
                "distribution_type": "TF",
                "number_of_workers": workers,
                "number_of_parameter_servers": 0,
            },
            identity=("benchmark",),
        )
        job = plan_job(request)
        files = describe_folder(model)
        manifest = ModelManifest("files", files, job=job.name, request=job.description.request)
        runner = KubernetesRunner(ClusterApi(configuration, "default"), ClusterSettings("default"), log)

        def write_model(_: TrainingJob) -> None:
            # Before the job starts, it would make the job unnecessary.
            (model / MODEL_MANIFEST).write_text(manifest.to_json())

        launch(request, runner, StepLog(print_entry), on_start=write_model)


def sdk(configuration: client.Configuration, workers: int) -> None:
    """Run a launcher that uses the public SDK: create the job, follow the logs, wait for the end."""
    from kubeflow.training import TrainingClient
    from kubeflow.training.constants.constants import JOB_PARAMETERS

    kind = "TFJob"
    training = TrainingClient(client_configuration=configuration, job_kind=kind, namespace="default")
    replicas = {"Worker": {"replicas": workers, "template": {"spec": {"containers": [{"name": "tensorflow"}]}}}}
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": "benchmark"},
        "spec": {"runPolicy": {}, "tfReplicaSpecs": replicas},
    }
    training.custom_api.create_namespaced_custom_object(
        "kubeflow.org", "v1", "default", JOB_PARAMETERS[kind]["plural"], body
    )
    training.get_job_logs("benchmark", is_master=False, follow=True)
    training.wait_for_job_conditions("benchmark", job_kind=kind)


if __name__ == "__main__":
    stub = client.Configuration()
    stub.host = f"http://127.0.0.1:{sys.argv[2]}"
    {"step": step, "sdk": sdk}[sys.argv[1]](stub, int(sys.argv[3]))
