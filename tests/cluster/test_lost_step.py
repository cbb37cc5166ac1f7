"""A train step that is lost: its job ends by itself, but not where the step comes back. These take minutes."""

import time
import uuid

import pytest
from cluster.jobs import left_behind
from cluster.test_failures import TF
from cluster.test_launch import function
from kubernetes import client

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LOST = {**TF, "launcher_lost_timeout": 120}


def test_a_job_whose_step_is_lost_ends(start, api):
    step = start(waits(600), LOST)
    kill(step)
    killed = time.monotonic()
    while time.monotonic() < killed + 330:
        jobs = client.CustomObjectsApi()
        job = jobs.get_namespaced_custom_object("kubeflow.org", "v1", step.namespace, "tfjobs", step.name)
        holding = {each["type"] for each in job["status"]["conditions"] if each["status"] == "True"}
        selector = f"kfp-distributed/job={step.name}"
        phases = {each.status.phase for each in api.list_namespaced_pod(step.namespace, label_selector=selector).items}
        if "Failed" in holding and "Running" not in phases:
            break
        time.sleep(1)
    took = time.monotonic() - killed
    print(f"the job whose step was lost had ended after {took:.0f} s")
    assert 100 < took < 300
    jobs.delete_namespaced_custom_object("kubeflow.org", "v1", step.namespace, "tfjobs", step.name)
    assert left_behind(step) == []


def test_a_job_whose_step_comes_back_lives_on(start):
    identity = [f"run-{uuid.uuid4().hex[:8]}", "train", "1"]
    first = start(waits(270), LOST, identity=identity)
    kill(first)
    time.sleep(30)
    again = start(waits(270), LOST, identity=identity, model_uri=first.request["model_uri"])
    verdict = again.verdict(400)
    assert verdict["succeeded"], again.log
    assert "this step goes on with it" in again.log
    assert "restart" not in again.log
    assert left_behind(again) == []


def waits(seconds: int) -> dict:
    return function(f"import time\nprint('begun', flush=True)\ntime.sleep({seconds})")


def kill(step) -> None:
    """SIGKILL: the step can do nothing more."""
    for worker in (0, 1):
        step.wait_for(rf"\[worker-{worker}\] begun")
    step.process.kill()
    step.process.wait()
