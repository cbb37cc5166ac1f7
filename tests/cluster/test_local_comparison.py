"""The same training in pods and in processes of this machine: one model, one set of metrics, as good."""

import uuid
from dataclasses import replace

import pytest
from cluster.jobs import left_behind
from mirrored_classifier import mirrored_classifier

from kfp_distributed.components.train.launch import Request, launch, plan_job
from kfp_distributed.components.train.runners.local.runner import LocalRunner
from kfp_distributed.storage import credentials_from_environment, open_store
from kfp_distributed.storage.model import verify_model_folder
from kfp_distributed.trainers import train_specification

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.takes(30)]

KERAS, MIRRORED = {"trainer": "keras_classifier"}, train_specification(mirrored_classifier)
PARAMETERS = {"epochs": 8, "seed": 1, "learning_rate": 3e-3}
ALL_REDUCE = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}
SERVED = {
    "distribution_type": "TF",
    "number_of_workers": 2,
    "number_of_parameter_servers": 2,
    "evaluator": True,
}


@pytest.fixture
def fetch(store_environment, tmp_path):
    """Brings a folder of the object store to this machine."""

    def get(uri, name):
        open_store(uri, credentials_from_environment(store_environment)).download_folder(tmp_path / name)
        return tmp_path / name

    return get


# Of one process the tolerance is less than two of the validation rows. Workers that wait for no one take the rows in an
# order of their own.
@pytest.mark.parametrize(
    ("program", "distribution", "leader", "tolerance"),
    [
        pytest.param(MIRRORED, {}, "worker-0", 0.01, id="two devices"),
        pytest.param(KERAS, ALL_REDUCE, "worker-0", 0.01, id="all-reduce"),
        pytest.param(KERAS, SERVED, "chief-0", 0.05, id="parameter servers", marks=pytest.mark.takes(85)),
    ],
)
def test_pods_train_as_processes_do(start, fetch, bucket, tmp_path, program, distribution, leader, tolerance):
    uri = f"s3://{bucket}/models/{uuid.uuid4().hex}"
    step = start(program, distribution, PARAMETERS, model_uri=uri)
    there = step.verdict(500)
    assert there["succeeded"], step.log
    request = Request(
        train_uri=str(fetch(f"s3://{bucket}/train_dataset", "train")),
        validation_uri=str(fetch(f"s3://{bucket}/validation_dataset", "validation")),
        model_uri=str(tmp_path / "local" / "model"),
        train_specification=program,
        train_parameters=PARAMETERS,
        distribution_specification=distribution,
        identity=tuple(step.request["identity"]),
    )
    said: list[str] = []
    here = launch(request, LocalRunner(), said.append)
    if program is MIRRORED:
        assert all("[worker-0] trained on 2 CPU devices" in lines for lines in (step.log.splitlines(), said))
    assert there["metrics"].keys() == here.metrics.keys()
    replicas = [each.name for each in plan_job(request).topology.replicas]
    assert {text[1:].partition("]")[0] for _, text in step.lines if text.startswith("[")} == set(replicas), step.log
    for metrics in (there["metrics"], here.metrics):
        assert [each["epoch"] for each in metrics[leader]] == list(range(1, PARAMETERS["epochs"] + 1))
        # An evaluator leaves out a checkpoint that another one has followed before it came to it.
        assert {epochs[-1]["epoch"] for epochs in metrics.values()} == {PARAMETERS["epochs"]}
    reached = there["metrics"][leader][-1]
    assert reached.keys() == here.metrics[leader][-1].keys()
    assert reached["val_accuracy"] == pytest.approx(here.metrics[leader][-1]["val_accuracy"], abs=tolerance)
    assert reached["val_accuracy"] >= 0.9
    # Each file as the manifest has it, by its SHA-256.
    model = verify_model_folder(fetch(uri, "model"))
    assert model.metrics == {name: value for name, value in reached.items() if name != "epoch"}
    assert replace(model, files=(), metrics={}) == replace(here.model, files=(), metrics={})
    assert {each.path for each in model.files} == {each.path for each in here.model.files}
    assert left_behind(step) == []
