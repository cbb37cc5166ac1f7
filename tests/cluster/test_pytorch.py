"""PyTorchJobs on a real cluster: ranks, a worker that fails, and elastic training with a changing number of workers."""

import re
import time
from itertools import pairwise

import pytest
from cluster.jobs import SECONDS, job_of, left_behind
from cluster.test_failures import failed
from cluster.test_launch import function
from kubernetes import client
from train.programs.jobs import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture
def train(start, open_namespace, image_name):
    """A function that starts a PyTorchJob of torch_classifier in a namespace that accepts the operator's containers."""

    def train_one(parameters, **request):
        distribution = {"distribution_type": "PyTorch", **request.pop("distribution")}
        program = {"trainer": "torch_classifier", "image": image_name("pytorch")}
        return start(program, distribution, parameters, namespace=open_namespace, **request)

    return train_one


def scale(step, workers):
    patch = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}}}
    api = client.CustomObjectsApi()
    api.patch_namespaced_custom_object("kubeflow.org", "v1", step.namespace, "pytorchjobs", step.name, patch)


ONE_WORKER = {"distribution_type": "PyTorch", "number_of_workers": 1}

PRINTS_RANK = """\
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)"""

EXITS = """\
import os, time
print("begun", flush=True)
time.sleep(300 * (os.environ["RANK"] == "0"))
raise SystemExit(3)"""


def test_each_slot_is_a_rank(start, open_namespace, image_name):
    program = {**function(PRINTS_RANK), "image": image_name("pytorch")}
    step = start(program, {**ONE_WORKER, "slots_per_worker": 2}, namespace=open_namespace)
    assert step.verdict(500)["succeeded"], step.log
    ranks = sorted(re.findall(r"^\[(.*?)\] rank (\d of \d)$", step.log, re.MULTILINE))
    assert ranks == [("master-0", "0 of 4"), ("master-0", "1 of 4"), ("worker-0", "2 of 4"), ("worker-0", "3 of 4")]


def test_the_exit_code_of_a_worker_is_the_cause(start, open_namespace):
    step = start(function(EXITS), ONE_WORKER, namespace=open_namespace)
    failed(step, "worker-0 failed with exit code 3", since=r"\[worker-0\] begun")


# The first question tells the worker that the master looks for its notice.
ENDS_FOR_A_WORKER = """\
import time
from kfp_distributed.trainers.sync import is_ending
is_ending()
print("begun", flush=True)
while not is_ending():
    time.sleep(0.5)"""


RECORDS_STEPS = """\
import os, time
from pathlib import Path
from kfp_distributed.trainers.sync import record_step
print("local rank", os.environ["LOCAL_RANK"], "of", os.environ["LOCAL_WORLD_SIZE"], flush=True)
for step in range(1, 301) if os.environ["RANK"] == "0" else ():
    record_step(Path(os.environ["KFP_DISTRIBUTED_METRICS_DIR"], "training.json"), step, 300, {"loss": 1 / step})
    time.sleep(0.2)
time.sleep(600 * (os.environ["RANK"] != "0"))
raise SystemExit(3)"""


@pytest.mark.takes(75)
def test_steps_are_shown_while_a_job_runs_and_kept_of_one_that_fails(start, open_namespace, image_name):
    program = {**function(RECORDS_STEPS), "image": image_name("pytorch")}
    step = start(program, {**ONE_WORKER, "restart_limit": 0}, namespace=open_namespace)
    step.wait_for(r"\[master-0\] step 1/300 loss=1\.0000")

    def shown():
        found = job_of(step)["metadata"].get("annotations", {})
        number, total = found.get("kfp-distributed/step", "1/300").split("/")
        return int(number) > 1 and (int(number), int(total), found["kfp-distributed/percentage"])

    number, total, percentage = wait_until(shown)
    assert (total, percentage) == (300, str(number * 100 // 300))
    assert sorted(re.findall(r"^\[(.*?)\] local rank (.*)$", step.log, re.MULTILINE)) == [
        ("master-0", "0 of 1"),
        ("worker-0", "0 of 1"),
    ]
    verdict = step.verdict(500)
    assert not verdict["succeeded"]
    (rows,) = verdict["metrics"].values()
    assert [row["step"] for row in rows] == list(range(1, 301))


@pytest.mark.takes(30)
def test_a_deleted_worker_is_the_cause_at_the_restart_limit(start, open_namespace, api):
    """It takes its grace period, and the master ends before it."""
    step, before = start(function(ENDS_FOR_A_WORKER), {**ONE_WORKER, "restart_limit": 1}, namespace=open_namespace), 0
    for _ in range(2):
        for name in ("master-0", "worker-0"):
            step.wait_for(rf"\[{name}\] begun", after=before)
        before, deleted = len(step.lines), time.time()
        api.delete_namespaced_pod(step.pod_of("worker-0"), step.namespace)
        step.assert_logged_within(SECONDS, deleted, r"^worker-0: failed \(.*pod deleted\)", after=before)
    cause = failed(step, "Restart limit reached (restart_limit=1).", since=deleted).splitlines()[-1]
    # The worker's own end may be known by then.
    assert re.match(r"worker-0 failed.* pod deleted, .* Then failed master-0 with exit code 145", cause)


@pytest.mark.trainer
@pytest.mark.takes(90)
@pytest.mark.parametrize("operator", ["trainer"], indirect=True)
def test_an_elastic_trainjob_continues_while_a_deleted_worker_is_replaced(train, api):
    """Its Job replaces the pod, and the other replicas keep theirs. The number of workers cannot be changed."""
    distribution = {"number_of_workers": 2, "min_workers": 1, "restart_limit": 1, "termination_grace_seconds": 5}
    step = train({"epochs": 24, "batch_size": 130}, distribution=distribution, pause=0.25)
    step.wait_for(r"\] epoch 3/24", 200)
    before = {name: step.pod_of(name) for name in ("master-0", "worker-0", "worker-1")}
    api.delete_namespaced_pod(before["worker-1"], step.namespace, grace_period_seconds=0)
    step.wait_for(r"^\[worker-1\] rank \d of 3", 450, after=len(step.lines))
    after = {name: step.pod_of(name) for name in before}
    assert {name for name in before if before[name] != after[name]} == {"worker-1"}, step.log
    verdict = step.verdict(500)
    assert verdict["succeeded"], step.log
    assert "the whole job" not in step.log
    assert [entry["epoch"] for entry in verdict["metrics"]["master-0"]] == list(range(1, 25))
    assert left_behind(step) == []


@pytest.mark.takes(150)
def test_workers_can_be_added_and_removed_during_an_elastic_training(train):
    distribution = {"number_of_workers": 1, "min_workers": 1, "max_workers": 2}
    step = train({"epochs": 24, "batch_size": 130, "learning_rate": 0.01}, distribution=distribution, pause=0.25)
    step.wait_for(r"rank 0 of 2 on cpu", 200)
    step.wait_for("epoch 3/24", 200)
    scale(step, 2)
    step.wait_for(r"rank 0 of 3 on cpu", 200)
    before = len(step.lines)
    scale(step, 1)
    # Gloo may miss the end of a peer. The other ranks then wait five minutes for it.
    step.wait_for(r"rank 0 of 2 on cpu", 450, after=before)
    verdict = step.verdict(500)
    assert verdict["succeeded"], step.log
    assert "[worker-1] " in step.log, "lines of the added worker are missing"
    # For each rendezvous: the number of ranks, and the epoch after which they continue.
    # That of as many ranks as had saved the checkpoint continues within an epoch.
    starts = re.findall(r"\] rank 0 of (\d) on cpu has \d+ rows and continues (?:after )?epoch (\d+)", step.log)
    rendezvous = [(int(size), int(epoch)) for size, epoch in starts]
    assert rendezvous[0] == (2, 0)
    sizes = [size for size, _ in rendezvous]
    assert 2 in sizes[sizes.index(3) :], rendezvous
    assert all(epoch >= 3 for _, epoch in rendezvous[sizes.index(3) :]), rendezvous
    printed = [int(epoch) for epoch in re.findall(r"\] epoch (\d+)/24", step.log)]
    assert all(after >= before for before, after in pairwise(printed)), printed
    (epochs,) = verdict["metrics"].values()
    assert [entry["epoch"] for entry in epochs] == list(range(1, 25))
    assert epochs[-1]["val_accuracy"] >= 0.9
    assert left_behind(step) == []
