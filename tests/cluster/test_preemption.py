"""Pods that are evicted through the API, as by draining a node. That is no failure: restart_limit is 0 in each test."""

import re
import time

import pytest
from cluster.jobs import SECONDS, left_behind
from cluster.test_failures import TF
from cluster.test_launch import function
from cluster.test_mpi import MPI

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PYTORCH = {"distribution_type": "PyTorch", "number_of_workers": 1}
PREEMPTED = "preempted: EvictionByEvictionAPI"

# Long enough to be evicted at the first start. A later start finds the file and ends at once. No replica stores it
# before all have started, because one that starts late would restore it.
TRAINS = """\
import json, os, socket, time
from pathlib import Path
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.sync import flush
store = open_store(json.loads(Path(os.environ["KFP_DISTRIBUTED_JOB"]).read_text())["metrics_uri"] + "/starts")
store.write(socket.gethostname(), b"")
begun = Path(os.environ["KFP_DISTRIBUTED_CHECKPOINT_DIR"], "begun")
print("resumes" if begun.exists() else "starts", os.environ["KFP_DISTRIBUTED_GRACE_SECONDS"], flush=True)
if not begun.exists():
    while len(list(store.list())) < PODS:
        time.sleep(0.5)
    begun.write_text("")
    flush()
    print("has stored its checkpoint", flush=True)
    time.sleep(300)"""


def evict(api, step, pod: str) -> float:
    """Evict a pod; return when."""
    evicted = time.time()
    api.create_namespaced_pod_eviction(pod, step.namespace, {"metadata": {"name": pod}})
    return evicted


def assert_resumed(step, replica: str, evicted: float):
    """Assert that the step reports a preemption, that the training goes on, and that no restart counts as a failure."""
    step.assert_logged_within(SECONDS + 10, evicted, rf"^{replica}: failed \(.*{PREEMPTED}")
    assert step.verdict()["succeeded"], step.log
    assert re.search(r"^preemption 1: ", step.log, re.MULTILINE), step.log
    assert not re.search(r"^(restart \d|preemption 2)", step.log, re.MULTILINE), step.log
    assert left_behind(step) == []


@pytest.mark.takes(40)
@pytest.mark.parametrize(
    ("operator", "distribution", "replica"),
    [
        ("training-operator", {}, "worker-0"),
        ("training-operator", TF, "worker-1"),
        pytest.param("trainer", PYTORCH, "worker-0", marks=pytest.mark.trainer),
    ],
    indirect=["operator"],
    ids=["Job", "TFJob", "trainer"],
)
def test_a_preempted_replica_is_no_failure(start, api, open_namespace, distribution, replica):
    keys = {**distribution, "restart_limit": 0, "termination_grace_seconds": 10}
    pods = "2" if "distribution_type" in keys else "1"
    step = start(function(TRAINS.replace("PODS", pods)), keys, namespace=open_namespace)
    leader = {"PyTorch": "master-0"}.get(keys.get("distribution_type"), "worker-0")
    for name in {leader, replica}:
        step.wait_for(rf"\[{name}\] starts 10$")
    step.wait_for(rf"\[{leader}\] has stored its checkpoint$")
    assert_resumed(step, replica, evict(api, step, step.pod_of(replica)))
    assert re.search(rf"^\[{leader}\] resumes 10$", step.log, re.MULTILINE), step.log


@pytest.mark.takes(60)
@pytest.mark.parametrize(
    "replica",
    [pytest.param("launcher-0", marks=pytest.mark.mpi("v1")), pytest.param("worker-1", marks=pytest.mark.mpi)],
)
def test_a_preempted_replica_of_an_mpijob_is_no_failure(start, api, open_namespace, image_name, replica):
    keys = {**MPI, "restart_limit": 0, "termination_grace_seconds": 10}
    program = {**function(TRAINS.replace("PODS", "2")), "image": image_name("horovod")}
    step = start(program, keys, namespace=open_namespace)
    for name in ("worker-0", "worker-1"):
        step.wait_for(rf"\[{name}\] starts 10$")
    step.wait_for(r"\[worker-0\] has stored its checkpoint$")
    assert_resumed(step, replica, evict(api, step, step.pod_of(replica)))
    assert re.search(r"^\[worker-0\] resumes 10$", step.log, re.MULTILINE), step.log
