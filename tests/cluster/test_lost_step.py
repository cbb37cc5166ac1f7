"""A train step that is lost: its job ends by itself, but not where the step comes back. These take minutes."""

import time
import uuid

import pytest
from cluster.jobs import left_behind
from cluster.test_failures import TF
from cluster.test_launch import function
from kubernetes import client

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LOST = {"launcher_lost_timeout": 120}
DISTRIBUTIONS = {"TF": TF, "PyTorch": {"distribution_type": "PyTorch"}, "MPI": {"distribution_type": "MPI"}, "Job": {}}
KINDS = {
    "TF": [("kubeflow.org", "v1", "tfjobs")],
    "PyTorch": [("kubeflow.org", "v1", "pytorchjobs")],
    "MPI": [("kubeflow.org", "v1", "mpijobs"), ("kubeflow.org", "v2beta1", "mpijobs")],
    "Job": [("batch", "v1", "jobs")],
}


@pytest.mark.parametrize(
    "kinds", [("TF", "PyTorch", "Job"), pytest.param(("MPI",), marks=pytest.mark.mpi)], ids=["replicas", "launcher"]
)
def test_jobs_whose_steps_are_lost_end(start, open_namespace, api, image_name, kinds):
    """Each for good, and a step that comes back later starts anew. The namespace takes the operators' own pods."""
    program = {**waits(900), "image": image_name("horovod" if "MPI" in kinds else "tensorflow")}
    steps = {kind: start(program, {**LOST, **DISTRIBUTIONS[kind]}, namespace=open_namespace) for kind in kinds}
    for step in steps.values():
        step.wait_for(r"\] begun")
    for step in steps.values():
        step.process.kill()
        step.process.wait()
    killed, left = time.monotonic(), dict(steps)
    while left and time.monotonic() < killed + 400:
        for kind in [kind for kind, step in left.items() if has_ended(api, step, kind)]:
            left.pop(kind)
            took = time.monotonic() - killed
            print(f"the job of type {kind} whose step was lost had ended after {took:.0f} s")
            assert 100 < took < 300
        time.sleep(1)
    assert not left, "these go on without their steps"
    lost = {kind: job_of(step, kind)["metadata"]["uid"] for kind, step in steps.items()}
    again = {
        kind: start(
            program,
            step.request["distribution_specification"],
            namespace=open_namespace,
            identity=step.request["identity"],
            model_uri=step.request["model_uri"],
        )
        for kind, step in steps.items()
    }
    for kind, step in again.items():
        step.wait_for(r"\] begun")
        assert job_of(step, kind)["metadata"]["uid"] != lost[kind]
        step.process.terminate()
    for step in again.values():
        step.process.wait(60)
        # A launcher that its operator makes once more in that moment goes when the garbage collector comes by.
        assert left_behind(step, 120) == []


def has_ended(api, step, kind: str) -> bool:
    """Whether a job has ended for good, and its pods."""
    job = job_of(step, kind)
    holding = {each["type"] for each in job["status"].get("conditions", []) if each["status"] == "True"}
    pods = api.list_namespaced_pod(step.namespace, label_selector=f"kfp-distributed/job={step.name}").items
    return bool(holding & {"Failed", "Succeeded", "Complete"}) and "Running" not in {each.status.phase for each in pods}


def job_of(step, kind: str) -> dict:
    """A job as it is: of MPIJob the cluster has one of two versions."""
    for group, version, plural in KINDS[kind]:
        where = (group, version, step.namespace, plural, step.name)
        try:
            return client.CustomObjectsApi().get_namespaced_custom_object(*where)
        except client.ApiException as error:
            if error.status != 404:
                raise
    raise AssertionError(f"no job {step.name}")


def test_a_job_whose_step_comes_back_lives_on(start):
    identity = [f"run-{uuid.uuid4().hex[:8]}", "train", "1"]
    first = start(waits(270), {**TF, **LOST}, identity=identity)
    kill(first)
    time.sleep(30)
    again = start(waits(270), {**TF, **LOST}, identity=identity, model_uri=first.request["model_uri"])
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
