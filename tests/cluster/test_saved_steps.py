"""Built-in trainers whose replica is evicted: they continue after the step at which the leader saved a checkpoint."""

import re

import pytest
from cluster.jobs import left_behind

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(800)]

PYTORCH = {"distribution_type": "PyTorch", "number_of_workers": 1}
MPI = {"distribution_type": "MPI", "number_of_workers": 2}
TF = {"distribution_type": "TF", "number_of_workers": 1, "number_of_parameter_servers": 1}


@pytest.mark.takes(60)
@pytest.mark.parametrize(
    ("trainer", "image", "distribution", "evicted", "pause"),
    [
        ("keras_classifier", "tensorflow", {}, "worker-0", 3.0),
        ("keras_classifier", "tensorflow", TF, "ps-0", 0.1),
        ("torch_classifier", "pytorch", PYTORCH, "worker-0", 0.1),
        # A cluster serves one version of MPIJob.
        pytest.param("keras_horovod", "horovod", MPI, "worker-1", 0.1, marks=pytest.mark.mpi("v1")),
        pytest.param("torch_horovod", "horovod-pytorch", MPI, "worker-1", 0.1, marks=pytest.mark.mpi("v2beta1")),
    ],
    ids=["Job", "TFJob", "PyTorchJob", "MPIJob of Keras", "MPIJob of PyTorch"],
)
def test_no_finished_step_is_lost_by_an_eviction(
    start, api, open_namespace, image_name, trainer, image, distribution, evicted, pause
):
    program = {"trainer": trainer, "image": image_name(image)}
    # An epoch has 72 steps. Without parameter servers or Horovod, Keras asks only after 50 and 72 of them.
    epochs, parameters = 4, {"epochs": 4, "batch_size": 20}
    step = start(program, {**distribution, "restart_limit": 0}, parameters, namespace=open_namespace, pause=pause)
    step.wait_for(rf"epoch 1/{epochs} ", 200)
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
