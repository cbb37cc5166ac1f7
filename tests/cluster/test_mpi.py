"""MPIJobs of the version that the API server serves: their ranks, and launchers and workers that fail."""

import re
import time
import uuid

import pytest
from cluster.conftest import served_mpi_versions
from cluster.jobs import SECONDS, left_behind
from cluster.test_failures import failed
from cluster.test_launch import assert_queued_and_resumed, function, suspend_policy
from cluster.test_replica_faults import end

pytestmark = [pytest.mark.cluster, pytest.mark.mpi, pytest.mark.timeout(600)]

MPI = {"distribution_type": "MPI", "number_of_workers": 2}

RANK = """\
import os, time
rank, size = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["OMPI_COMM_WORLD_SIZE"]
print("rank", rank, "of", size, flush=True)
"""


@pytest.fixture
def start_ranks(start, open_namespace, image_name):
    """A function that starts a step whose ranks run a program, in a namespace that accepts all pods."""

    def start_one(body: str, packages=(), **keys):
        program = {**function(RANK + body), "image": image_name("horovod"), "packages": list(packages)}
        return start(program, {**MPI, **keys}, namespace=open_namespace)

    return start_one


@pytest.mark.mpi("v1")
@pytest.mark.takes(46)
def test_packages_that_cannot_be_installed_end_the_job(start_ranks):
    """The kubelet would retry forever, because containers of an MPIJob are restarted in place."""
    step = start_ranks("", ["no-such-package-of-anybody"])
    cause = failed(step, "exit code 1, package installation failed", since="pip failed with exit code 1: check")
    assert "No matching distribution found for no-such-package-of-anybody" in cause
    assert cause.endswith("cannot start: package installation failed.")


def test_an_mpijob_runs_its_ranks(start_ranks):
    """Each line of each rank is logged once with the name of its worker, and one rank saves the model."""
    step = start_ranks("print('done', flush=True)", slots_per_worker=2)
    assert step.verdict()["succeeded"], step.log
    lines = [text for _, text in step.lines if re.match(r"\[.*\] (rank|done)", text)]
    ranks = {f"[worker-{rank // 2}] rank {rank} of 4" for rank in range(4)}
    assert set(lines) == {*ranks, "[worker-0] done", "[worker-1] done"}, step.log
    assert len(lines) == 8, step.log
    assert step.log.count(" saved to ") == 1
    assert left_behind(step) == []


@pytest.fixture
def device(api):
    """A function that sets the number of devices of a node, an extended resource like GPUs that no node has at first.

    Call it once. A kubelet may learn of a change later than the scheduler, and would then refuse a pod.
    """
    name, node = f"kfp-distributed.test/{uuid.uuid4().hex[:8]}", api.list_node().items[0].metadata.name

    def set_count(count: str | None):
        api.patch_node_status(node, {"status": {"capacity": {name: count}, "allocatable": {name: count}}})

    set_count.name = name
    yield set_count
    set_count(None)


@pytest.mark.mpi("v1")  # v2beta1 starts the launcher when the workers are ready.
def test_a_launcher_waits_for_its_workers(start_ranks, device):
    """The workers have no node at first. The launcher starts nevertheless, and must not fail meanwhile."""
    step = start_ranks("", restart_limit=0, worker_gpus=1, gpu_resource=device.name)
    for worker in (0, 1):
        step.wait_for(f"worker-{worker}: waiting .*Insufficient")
    time.sleep(10)  # The launcher would fail within seconds.
    assert "launcher-0: failed" not in step.log
    device("2")
    assert step.verdict()["succeeded"], step.log
    assert left_behind(step) == []


def test_the_exit_code_of_a_rank_is_permanent_and_its_worker_is_named(start_ranks):
    step = start_ranks("if rank == '1':\n    raise SystemExit(3)\ntime.sleep(300)", restart_limit=3)
    cause = failed(step, "launcher-0 failed with exit code 3", "worker-1", since=r"\[worker-1\] rank 1 of 2")
    assert "pod deleted" not in cause
    assert cause.endswith(
        "as a process of worker-1 did. Exit codes 1 to 127 are permanent failures and are not retried."
    )


@pytest.mark.takes(50)
def test_a_launcher_that_dies_restarts(start_ranks, api):
    step = start_ranks("time.sleep(30)", restart_limit=2)
    step.wait_for("rank 1 of 2")
    ended = time.time()
    end(api, step.namespace, pod_of(api, step, "launcher"))
    step.assert_logged_within(SECONDS, ended, "^launcher-0: failed")
    assert step.verdict()["succeeded"], step.log
    assert len([text for _, text in step.lines if "rank 1 of 2" in text]) == 2, step.log
    assert left_behind(step) == []


def test_a_suspended_mpijob_is_queued_until_it_is_resumed(start_ranks):
    step = start_ranks("time.sleep(5)", queue_name="team-queue")
    (version,) = served_mpi_versions()
    assert_queued_and_resumed(step, ("kubeflow.org", version, "mpijobs"), suspend_policy)


# A worker ends with its process `sleep`. Its work folder remains when its container is restarted.
KILLED_ONCE = """
from pathlib import Path
mark = Path("/kfp-distributed/work/killed")
time.sleep(5)
if rank == "1" and not mark.exists():
    mark.touch()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        if file.read_bytes() == b"sleep\\0infinity\\0":
            os.kill(int(file.parent.name), 9)
time.sleep(10)
"""


@pytest.mark.mpi("v1")  # The workers of v2beta1 run sshd.
@pytest.mark.takes(50)
def test_a_worker_that_is_killed_costs_one_restart(start_ranks):
    """The operator counts two: those of the worker and of the launcher."""
    step = start_ranks(KILLED_ONCE, restart_limit=1)
    step.wait_for("^worker-1: failed")
    assert step.verdict()["succeeded"], step.log
    assert len([text for _, text in step.lines if "rank 1 of 2" in text]) == 2, step.log
    assert left_behind(step) == []


# A worker with a grace period exits with 0.
@pytest.mark.parametrize(
    ("replica", "grace"), [pytest.param("launcher-0", 0, marks=pytest.mark.mpi("v1")), ("worker-1", 30)]
)
def test_a_deleted_pod_of_an_mpijob_is_the_cause_of_the_failure(start_ranks, api, replica, grace):
    step = start_ranks("time.sleep(300)", restart_limit=0)
    for rank in (0, 1):
        step.wait_for(f"rank {rank} of 2")
    pod, deleted = step.pod_of(replica), time.time()
    api.delete_namespaced_pod(pod, step.namespace, grace_period_seconds=grace)
    failed(step, f"{replica} failed", "pod deleted", since=deleted)


def pod_of(api, step, replica: str) -> str:
    """Return the name of a replica's pod. The name of a launcher ends without an index or with a random suffix."""
    pods = api.list_namespaced_pod(step.namespace, label_selector=f"kfp-distributed/job={step.name}").items
    (name,) = (pod.metadata.name for pod in pods if replica.removesuffix("-0") in pod.metadata.name)
    return name
