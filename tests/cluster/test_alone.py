"""What takes minutes, or takes something away from the whole cluster: no other training may run beside these."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster.jobs import left_behind
from cluster.test_failures import TF, failed
from cluster.test_launch import function
from kubernetes import client

pytestmark = [pytest.mark.cluster, pytest.mark.alone, pytest.mark.timeout(900)]

OPERATOR = ("training-operator", "kubeflow")
LOST = {**TF, "launcher_lost_timeout": 120}


def scale_operator(replicas: int) -> None:
    """Sets how many pods the training operator has, and waits until that is so."""
    apps = client.AppsV1Api()
    apps.patch_namespaced_deployment_scale(*OPERATOR, {"spec": {"replicas": replicas}})
    until = time.monotonic() + 180
    while time.monotonic() < until:
        status = apps.read_namespaced_deployment_status(*OPERATOR).status
        if (status.replicas or 0) == (status.ready_replicas or 0) == replicas:
            return
        time.sleep(0.5)
    raise AssertionError(f"{OPERATOR[0]} has not come to {replicas} replicas")


@pytest.fixture
def no_operator(api):
    """The training operator does not run; its webhook is away with it."""
    before = client.AppsV1Api().read_namespaced_deployment(*OPERATOR).spec.replicas
    scale_operator(0)
    yield
    scale_operator(before)


def test_no_operator(start, no_operator):
    """Where its webhook must answer, the API server refuses the job; else nobody takes the job up."""
    cause = failed(start(function(""), {**TF, "scheduling_timeout": 15}))
    by_webhook = cause.startswith("refused: the API server would refuse the TFJob") and "webhook" in cause
    assert by_webhook or "no operator has taken up the TFJob" in cause, cause


def test_a_job_whose_step_is_lost_ends_and_one_whose_step_comes_back_lives(start, api):
    with ThreadPoolExecutor() as pool:
        for found in [pool.submit(lost, start, api), pool.submit(lost_and_started_again, start)]:
            found.result()


def lost(start, api) -> None:
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
    assert left_behind(step, 60) == []


def lost_and_started_again(start) -> None:
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
