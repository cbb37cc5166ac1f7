"""Built-in trainers whose replica is evicted: they continue after the step at which the leader saved a checkpoint."""

import re
import time

import pytest
from cluster.jobs import left_behind

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(800)]

PYTORCH = {"distribution_type": "PyTorch", "number_of_workers": 1}
MPI = {"distribution_type": "MPI", "number_of_workers": 2}
TF = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 1}


@pytest.mark.takes(60)
@pytest.mark.parametrize(
    ("trainer", "image", "distribution", "evicted", "epochs"),
    [
        ("keras_classifier", "tensorflow", {}, "worker-0", 40),
        ("keras_classifier", "tensorflow", TF, "ps-0", 4),
        ("torch_classifier", "pytorch", PYTORCH, "worker-0", 12),
        # A cluster serves one version of MPIJob.
        pytest.param("keras_horovod", "horovod", MPI, "worker-1", 6, marks=pytest.mark.mpi("v1")),
        pytest.param("torch_horovod", "horovod-pytorch", MPI, "worker-1", 12, marks=pytest.mark.mpi("v2beta1")),
    ],
    ids=["Job", "TFJob", "PyTorchJob", "MPIJob of Keras", "MPIJob of PyTorch"],
)
def test_no_finished_step_is_lost_by_an_eviction(
    start, api, open_namespace, image_name, trainer, image, distribution, evicted, epochs
):
    program = {"trainer": trainer, "image": image_name(image)}
    parameters = {"epochs": epochs, "batch_size": 4}
    step = start(program, {**distribution, "restart_limit": 0}, parameters, namespace=open_namespace)
    step.wait_for(rf"epoch 1/{epochs} ", 200)
    time.sleep(4)  # The leader looks for notices every three seconds.
    label = f"kfp-distributed/job={step.name}"
    pods = [pod.metadata.name for pod in api.list_namespaced_pod(step.namespace, label_selector=label).items]
    (pod,) = (name for name in pods if not distribution or evicted in name)
    api.create_namespaced_pod_eviction(pod, step.namespace, {"metadata": {"name": pod}})
    assert step.verdict(400)["succeeded"], step.log
    saved = re.findall(r"saved a checkpoint in epoch (\d+) after step (\d+)", step.log)
    assert len(saved) == 1, step.log
    continued = re.findall(r"continues epoch (\d+) after step (\d+) of \d+", step.log)
    assert set(continued) == {*saved}, step.log
    assert re.search(r"^preemption 1: ", step.log, re.MULTILINE), step.log
    assert sorted({int(epoch) for epoch in re.findall(r"\] epoch (\d+)/\d+ ", step.log)}) == list(range(1, epochs + 1))
    assert left_behind(step) == []
