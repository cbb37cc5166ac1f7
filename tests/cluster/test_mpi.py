"""MPIJobs that run, of whichever version the API server has: ranks, and a launcher and a worker that die."""

import re
import time
import uuid

import pytest
from cluster.jobs import SECONDS, left_behind
from cluster.test_failures import failed
from cluster.test_launch import function
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
    """Starts a step whose ranks run a function; in a namespace that takes the operators' own pods."""

    def start_one(body: str, packages=(), **keys):
        program = {**function(RANK + body), "image": image_name("horovod"), "packages": list(packages)}
        return start(program, {**MPI, **keys}, namespace=open_namespace)

    return start_one


@pytest.mark.takes(46)
def test_packages_that_cannot_be_installed(start_ranks):
    """The kubelet would try them again for ever, for pods of an MPIJob are started again in place."""
    step = start_ranks("", ["no-such-package-of-anybody"])
    cause = failed(step, "exit code 1, its packages cannot be installed", since="pip failed with exit code 1: check")
    assert "No matching distribution found for no-such-package-of-anybody" in cause
    assert cause.endswith("cannot start: its packages cannot be installed.")


def test_an_mpijob_runs_its_ranks(start_ranks):
    """Each line of each rank is told once, as the worker's that runs it; one rank saves the model."""
    step = start_ranks("print('done', flush=True)", slots_per_worker=2)
    assert step.verdict()["succeeded"], step.log
    told = [text for _, text in step.lines if re.match(r"\[.*\] (rank|done)", text)]
    ranks = {f"[worker-{rank // 2}] rank {rank} of 4" for rank in range(4)}
    assert set(told) == {*ranks, "[worker-0] done", "[worker-1] done"}, step.log
    assert len(told) == 8, step.log
    assert step.log.count("model saved to") == 1
    assert left_behind(step) == []


@pytest.fixture
def device(api):
    """A resource that no node has until it is called with how many one node has of it, as if they were GPUs.

    Call it once: a kubelet may hear of more later than the scheduler does, and then refuses the pod that it is sent.
    """
    name, node = f"kfp-distributed.test/{uuid.uuid4().hex[:8]}", api.list_node().items[0].metadata.name

    def have(count: str | None):
        api.patch_node_status(node, {"status": {"capacity": {name: count}, "allocatable": {name: count}}})

    have.name = name
    yield have
    have(None)


def test_a_launcher_waits_for_its_workers(start_ranks, device):
    """They have no node at first; v1 starts the launcher all the same, and no start of it is left to be spent."""
    step = start_ranks("", restart_limit=0, worker_gpus=1, gpu_resource=device.name)
    for worker in (0, 1):
        step.wait_for(f"worker-{worker}: waiting .*Insufficient")
    time.sleep(10)
    assert "launcher-0: failed" not in step.log
    device("2")
    assert step.verdict()["succeeded"], step.log
    assert left_behind(step) == []


@pytest.mark.parametrize("restart_limit", [0, 3])
def test_a_rank_that_exits_with_3(start_ranks, restart_limit):
    """The launcher ends as its rank does, for good, and the worker that had it is named."""
    body = "if rank == '1':\n    raise SystemExit(3)\ntime.sleep(300)"
    step = start_ranks(body, restart_limit=restart_limit)
    cause = failed(step, "launcher-0 failed with exit code 3", "worker-1", since=r"\[worker-1\] rank 1 of 2")
    assert "pod deleted" not in cause
    if restart_limit:
        assert cause.endswith("as a process of worker-1 did. Exit codes from 1 to 127 are not tried again.")


@pytest.mark.takes(50)
def test_a_launcher_that_dies_is_started_again(start_ranks, api):
    step = start_ranks("time.sleep(30)", restart_limit=2)
    step.wait_for("rank 1 of 2")
    ended = time.time()
    end(api, step.namespace, pod_of(api, step, "launcher"))
    step.assert_logged_within(SECONDS, ended, "^launcher-0: failed")
    assert step.verdict()["succeeded"], step.log
    assert len([text for _, text in step.lines if "rank 1 of 2" in text]) == 2, step.log
    assert left_behind(step) == []


# A worker that has time to end does so with 0.
@pytest.mark.parametrize(("replica", "grace"), [("launcher-0", 0), ("worker-1", 0), ("worker-1", 30)])
def test_a_pod_of_an_mpijob_that_goes_away(start_ranks, api, replica, grace):
    step = start_ranks("time.sleep(300)", restart_limit=0)
    for rank in (0, 1):
        step.wait_for(f"rank {rank} of 2")
    pod, deleted = pod_of(api, step, replica), time.time()
    api.delete_namespaced_pod(pod, step.namespace, grace_period_seconds=grace)
    failed(step, f"{replica} failed with pod deleted", since=deleted)


def pod_of(api, step, replica: str) -> str:
    """The name of a replica's pod; a launcher's has no number, or one that nobody knows beforehand."""
    pods = api.list_namespaced_pod(step.namespace, label_selector=f"kfp-distributed/job={step.name}").items
    (name,) = (each.metadata.name for each in pods if replica.removesuffix("-0") in each.metadata.name)
    return name
