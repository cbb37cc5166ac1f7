"""Built-in trainers whose replica is evicted: they continue after the step at which the leader saved a checkpoint."""

import re

import pytest
from cluster.jobs import left_behind
from cluster.test_failures import TF

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(800)]

PYTORCH = {"distribution_type": "PyTorch", "number_of_workers": 1}
MPI = {"distribution_type": "MPI", "number_of_workers": 2}


@pytest.mark.takes(60)
@pytest.mark.parametrize(
    ("trainer", "image", "distribution", "evicted", "pause"),
    [
        ("keras_classifier", "tensorflow", TF, "worker-1", 3.0),
        ("torch_classifier", "pytorch", PYTORCH, "worker-0", 0.1),
        pytest.param("keras_horovod", "horovod", MPI, "worker-1", 0.1, marks=pytest.mark.mpi("v1")),
    ],
    ids=["TFJob", "PyTorchJob", "MPIJob"],
)
def test_no_finished_step_is_lost_by_an_eviction(
    start, api, open_namespace, image_name, trainer, image, distribution, evicted, pause
):
    program = {"trainer": trainer, "image": image_name(image)}
    # An epoch has 72 steps. Without parameter servers or Horovod, Keras asks only after 50 and 72 of them.
    epochs, parameters = 3, {"epochs": 3, "batch_size": 20}
    step = start(program, {**distribution, "restart_limit": 0}, parameters, namespace=open_namespace, pause=pause)
    step.wait_for(rf"epoch 1/{epochs} ", 200)
    pod = step.pod_of(evicted)
    api.create_namespaced_pod_eviction(pod, step.namespace, {"metadata": {"name": pod}})
    assert step.verdict(400)["succeeded"], step.log
    saved = re.findall(r"saved a checkpoint in epoch (\d+) after step (\d+)", step.log)
    assert len(saved) == 1, step.log
    continued = re.findall(r"continues epoch (\d+) after step (\d+) of \d+", step.log)
    assert set(continued) == {*saved}, step.log
    assert re.search(r"^preemption 1: ", step.log, re.MULTILINE), step.log
    assert sorted({int(epoch) for epoch in re.findall(r"\] epoch (\d+)/\d+ ", step.log)}) == list(range(1, epochs + 1))
    assert left_behind(step) == []
