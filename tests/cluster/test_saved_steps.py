"""Built-in trainers whose replica is evicted: they continue after the step at which the leader saved a checkpoint."""

import re
import time

import pytest
from cluster.jobs import left_behind
from cluster.test_mpi import pod_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PYTORCH = {"distribution_type": "PyTorch", "number_of_workers": 1}


@pytest.mark.takes(60)
@pytest.mark.parametrize(
    ("trainer", "image", "distribution", "evicted"),
    [
        ("torch_classifier", "pytorch", PYTORCH, "worker-0"),
        pytest.param(
            "torch_horovod",
            "horovod-pytorch",
            {"distribution_type": "MPI", "number_of_workers": 2},
            "worker-1",
            marks=pytest.mark.mpi,
        ),
    ],
)
def test_no_finished_step_is_lost_by_an_eviction(
    start, api, open_namespace, image_name, trainer, image, distribution, evicted
):
    program = {"trainer": trainer, "image": image_name(image)}
    parameters = {"epochs": 12, "batch_size": 4}
    step = start(program, {**distribution, "restart_limit": 0}, parameters, namespace=open_namespace)
    step.wait_for(r"epoch 1/12 ", 200)
    time.sleep(4)  # The leader looks for notices every three seconds.
    pod = pod_of(api, step, evicted)
    api.create_namespaced_pod_eviction(pod, step.namespace, {"metadata": {"name": pod}})
    assert step.verdict(300)["succeeded"], step.log
    (saved,) = re.findall(r"saved a checkpoint in epoch (\d+) after step (\d+)", step.log)
    continued = re.findall(r"continues epoch (\d+) after step (\d+) of \d+", step.log)
    assert set(continued) == {saved}, step.log
    assert re.search(r"^preemption 1: ", step.log, re.MULTILINE), step.log
    assert sorted({int(epoch) for epoch in re.findall(r"\] epoch (\d+)/12 ", step.log)}) == list(range(1, 13))
    assert left_behind(step) == []
