"""Horovod in real pods: MPIJob of the version that the cluster serves."""

import uuid

import pytest
from cluster.jobs import left_behind

pytestmark = [pytest.mark.cluster, pytest.mark.mpi, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def mpi_namespace(api, object_store_secret):
    """A namespace with the object store's Secret; the Pod Security Standard "restricted" refuses an MPIJob."""
    name = f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    api.create_namespace({"metadata": {"name": name}})
    secret = {"metadata": {"name": "mlpipeline-minio-artifact"}, "stringData": object_store_secret}
    api.create_namespaced_secret(name, secret)
    yield name
    api.delete_namespace(name)


@pytest.mark.parametrize(("trainer", "image"), [("keras_horovod", "horovod"), ("torch_horovod", "horovod-pytorch")])
def test_ranks_in_slots_of_two_workers_train_one_model(start, mpi_namespace, image_name, trainer, image):
    distribution = {
        "distribution_type": "MPI",
        "number_of_workers": 2,
        "slots_per_worker": 2,
        "launcher_cpus": "500m",
        "launcher_memory": "512Mi",
    }
    program = {"trainer": trainer, "image": image_name(image)}
    step = start(program, distribution, {"epochs": 3, "batch_size": 8}, namespace=mpi_namespace)
    verdict = step.verdict(600)
    assert verdict["succeeded"], step.log
    assert [line.split(" loss")[0] for _, line in step.lines if "] epoch " in line] == [
        f"[worker-0] epoch {epoch}/3" for epoch in (1, 2, 3)
    ]
    assert verdict["metrics"]["worker-0"][-1]["val_accuracy"] > 0.9
    assert left_behind(step) == []
