"""The same training in pods and in processes of this machine gives equally good models and the same metrics."""

import uuid
from dataclasses import replace

import pytest
from cluster.jobs import left_behind
from step_lines import into

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.storage import credentials_from_environment, open_store
from kfp_distributed.storage.model import verify_model_folder

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.takes(85)]

KERAS = {"trainer": "keras_classifier"}
PARAMETERS = {"epochs": 8, "seed": 1, "batch_size": 130, "learning_rate": 0.01}
DISTRIBUTION = {
    "distribution_type": "TF",
    "number_of_workers": 1,
    "number_of_parameter_servers": 1,
    "evaluator": True,
}


@pytest.fixture
def fetch(store_environment, tmp_path):
    """A function that downloads a folder of the object store."""

    def download(uri, name):
        open_store(uri, credentials_from_environment(store_environment)).download_folder(tmp_path / name)
        return tmp_path / name

    return download


def test_pods_train_like_local_processes(start, fetch, bucket, tmp_path):
    uri = f"s3://{bucket}/models/{uuid.uuid4().hex}"
    step = start(KERAS, DISTRIBUTION, PARAMETERS, model_uri=uri)
    remote = step.verdict(500)
    assert remote["succeeded"], step.log
    request = Request(
        train_uri=str(fetch(f"s3://{bucket}/train_dataset", "train")),
        validation_uri=str(fetch(f"s3://{bucket}/validation_dataset", "validation")),
        model_uri=str(tmp_path / "local" / "model"),
        train_specification=KERAS,
        train_parameters=PARAMETERS,
        distribution_specification=DISTRIBUTION,
        identity=tuple(step.request["identity"]),
    )
    local = launch(request, LocalRunner(), into([]))
    assert remote["metrics"].keys() == local.metrics.keys()
    replicas = [replica.name for replica in plan_job(request).topology.replicas]
    assert {text[1:].partition("]")[0] for _, text in step.lines if text.startswith("[")} == set(replicas), step.log
    for metrics in (remote["metrics"], local.metrics):
        assert [epoch["epoch"] for epoch in metrics["chief-0"]] == list(range(1, PARAMETERS["epochs"] + 1))
        # An evaluator skips checkpoints that are outdated before it reads them.
        assert {epochs[-1]["epoch"] for epochs in metrics.values()} == {PARAMETERS["epochs"]}
    last_epoch = remote["metrics"]["chief-0"][-1]
    assert last_epoch.keys() == local.metrics["chief-0"][-1].keys()
    # Asynchronous workers process rows in a random order.
    assert last_epoch["val_accuracy"] == pytest.approx(local.metrics["chief-0"][-1]["val_accuracy"], abs=0.05)
    assert last_epoch["val_accuracy"] >= 0.9
    # Verifies the SHA-256 of each file.
    model = verify_model_folder(fetch(uri, "model"))
    assert model.metrics == last_epoch
    # The requests have other folders.
    other = {"files": (), "metrics": {}, "request": ""}
    assert replace(model, **other) == replace(local.model, **other)
    assert {file.path for file in model.files} == {file.path for file in local.model.files}
    assert left_behind(step) == []
