"""Horovod in real pods, as an MPIJob of the version that the cluster serves."""

import re
import time
import uuid
from itertools import pairwise

import pytest
from cluster.jobs import SECONDS, left_behind
from cluster.test_mpi import pod_of
from cluster.test_replica_faults import end

pytestmark = [pytest.mark.cluster, pytest.mark.mpi, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def mpi_namespace(api, object_store_secret):
    """A namespace with the object store's Secret that accepts MPIJobs, unlike a "restricted" namespace."""
    name = f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    api.create_namespace({"metadata": {"name": name}})
    secret = {"metadata": {"name": "mlpipeline-minio-artifact"}, "stringData": object_store_secret}
    api.create_namespaced_secret(name, secret)
    yield name
    api.delete_namespace(name)


@pytest.mark.takes(60)
@pytest.mark.parametrize(
    ("trainer", "image"),
    # test_mpi.py runs with both versions of MPIJob, so one of them is enough for a training with each framework.
    [
        pytest.param("keras_horovod", "horovod", marks=pytest.mark.mpi("v1")),
        pytest.param("torch_horovod", "horovod-pytorch", marks=pytest.mark.mpi("v2beta1")),
    ],
)
def test_ranks_in_the_slots_of_two_workers_train_one_model(start, api, mpi_namespace, image_name, trainer, image):
    distribution = {
        "distribution_type": "MPI",
        "number_of_workers": 2,
        "slots_per_worker": 2,
        "launcher_cpus": "500m",
        "launcher_memory": "512Mi",
    }
    program = {"trainer": trainer, "image": image_name(image)}
    step = start(program, distribution, {"epochs": 3, "batch_size": 65, "learning_rate": 0.02}, namespace=mpi_namespace)
    step.wait_for("epoch 1/3", 500)
    pod = api.read_namespaced_pod(pod_of(api, step, "launcher"), mpi_namespace)
    assert pod.spec.containers[0].resources.limits == {"cpu": "500m", "memory": "512Mi"}
    verdict = step.verdict(600)
    assert verdict["succeeded"], step.log
    assert set(re.findall(r"^(\[worker-\d\] rank \d of 4)(?: on cpu)? has", step.log, re.MULTILINE)) == {
        f"[worker-{rank // 2}] rank {rank} of 4" for rank in range(4)
    }
    assert [line.split(" loss")[0] for _, line in step.lines if "] epoch " in line] == [
        f"[worker-0] epoch {epoch}/3" for epoch in (1, 2, 3)
    ]
    assert verdict["metrics"]["worker-0"][-1]["val_accuracy"] > 0.9
    # Without its option OpenMPI would log an error for each exchange within a pod.
    assert "errno = " not in step.log
    assert left_behind(step) == []


ELASTIC = {"distribution_type": "MPI", "number_of_workers": 3}


@pytest.mark.mpi("v1")
@pytest.mark.takes(60)
def test_an_elastic_training_continues_without_the_worker_of_rank_0(start, api, mpi_namespace, image_name):
    """Another rank saves the model."""
    program, epochs = {"trainer": "keras_horovod", "image": image_name("horovod")}, 12
    keys = {**ELASTIC, "min_workers": 2, "restart_limit": 0}
    parameters = {"epochs": epochs, "batch_size": 130, "learning_rate": 0.01}
    step = start(program, keys, parameters, namespace=mpi_namespace, pause=0.2)
    step.wait_for("rank 0 of 3 has .* after epoch 0", 500)
    step.wait_for(r"\] epoch 3/", 500)
    worker = re.search(r"\[(worker-\d)\] epoch 3/", step.log)[1]
    deleted = time.time()
    api.delete_namespaced_pod(f"{step.name}-{worker}", mpi_namespace, grace_period_seconds=0)
    step.assert_logged_within(SECONDS, deleted, rf"^{worker}: failed \(pod deleted\)")
    step.wait_for("rank 0 of 2 has .* continues after epoch", 500)
    verdict = step.verdict(600)
    assert verdict["succeeded"], step.log
    printed = [int(match[1]) for _, text in step.lines if (match := re.search(r"\] epoch (\d+)/", text))]
    # An epoch that not all ranks had finished is repeated.
    assert sorted(set(printed)) == list(range(1, epochs + 1))
    assert all(after >= before for before, after in pairwise(printed)), printed
    (metrics,) = verdict["metrics"].values()
    assert [epoch["epoch"] for epoch in metrics] == list(range(1, epochs + 1))
    assert metrics[-1]["val_accuracy"] > 0.9
    assert step.log.count(" saved to ") == 1
    assert left_behind(step) == []


@pytest.mark.mpi("v1")
@pytest.mark.takes(75)
def test_a_launcher_of_an_elastic_training_that_dies_restarts(start, api, mpi_namespace, image_name):
    """Ranks can continue without their launcher, but must end before the next ones use their folders."""
    program, epochs = {"trainer": "keras_horovod", "image": image_name("horovod")}, 30
    keys = {**ELASTIC, "number_of_workers": 2, "min_workers": 1, "restart_limit": 1}
    step = start(program, keys, {"epochs": epochs, "batch_size": 130}, namespace=mpi_namespace, pause=0.1)
    step.wait_for(r"\] epoch 3/", 500)
    # While the API server does not answer, the launcher may fail and run again. The ranks tell that they have resumed.
    end(api, mpi_namespace, pod_of(api, step, "launcher"))
    verdict = step.verdict(600)
    assert verdict["succeeded"], step.log
    starts = [
        int(match[1]) for _, text in step.lines if (match := re.search(r"rank 0 of 2 .* after epoch (\d+)", text))
    ]
    assert len(starts) == 2, step.log
    assert starts[0] == 0 < 3 <= starts[1] < epochs, "must resume from the checkpoint"
    (metrics,) = verdict["metrics"].values()
    assert [epoch["epoch"] for epoch in metrics] == list(range(1, epochs + 1))
    assert step.log.count(" saved to ") == 1
    assert left_behind(step) == []


@pytest.mark.mpi("v1")
def test_an_elastic_training_with_fewer_than_min_workers_fails(start, api, mpi_namespace, image_name):
    program = {"trainer": "keras_horovod", "image": image_name("horovod")}
    keys = {**ELASTIC, "number_of_workers": 2, "min_workers": 2, "restart_limit": 0}
    step = start(program, keys, {"epochs": 2000}, namespace=mpi_namespace, pause=0.1)
    step.wait_for(r"\] epoch 3/", 500)
    api.delete_namespaced_pod(f"{step.name}-worker-1", mpi_namespace, grace_period_seconds=0)
    verdict = step.verdict(300)
    assert not verdict["succeeded"], step.log
    assert "1 workers are left, which is fewer than min_workers=2" in verdict["cause"]
    assert "as a process of worker-1 did" in verdict["cause"]
    assert left_behind(step) == []
