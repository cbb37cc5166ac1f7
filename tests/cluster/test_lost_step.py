"""A job whose train step is lost ends by itself, unless the step is retried in time. This takes minutes."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster.jobs import left_behind
from cluster.test_failures import TF
from cluster.test_launch import function
from kubernetes import client

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.takes(180)]

LOST = {"launcher_lost_timeout": 60}
DISTRIBUTIONS = {"TF": TF, "PyTorch": {"distribution_type": "PyTorch"}, "MPI": {"distribution_type": "MPI"}, "Job": {}}
KINDS = {
    "TFJob": [("kubeflow.org", "v1", "tfjobs")],
    "PyTorchJob": [("kubeflow.org", "v1", "pytorchjobs")],
    "MPIJob": [("kubeflow.org", "v1", "mpijobs"), ("kubeflow.org", "v2beta1", "mpijobs")],
    "Job": [("batch", "v1", "jobs")],
    "TrainJob": [("trainer.kubeflow.org", "v1alpha1", "trainjobs")],
}


@pytest.mark.parametrize(
    ("operator", "types"),
    [
        # One test for all kinds, so it is deselected on a cluster without MPIJob.
        pytest.param("training-operator", ["TF", "PyTorch", "MPI", "Job"], marks=pytest.mark.mpi),
        pytest.param("trainer", ["TF", "MPI"], marks=pytest.mark.trainer),
    ],
    indirect=["operator"],
    ids=["training-operator", "trainer"],
)
def test_jobs_of_lost_steps_end_and_the_job_of_a_retried_step_continues(start, open_namespace, api, image_name, types):
    """All run at the same time, because they mostly wait. MPIJobs need a namespace that accepts all pods."""

    def start_lost_step(kind: str, **request):
        program = {**waits(900), "image": image_name("horovod" if kind == "MPI" else "tensorflow")}
        return start(program, {**LOST, **DISTRIBUTIONS[kind]}, namespace=open_namespace, **request)

    def start_retried_step(**request):
        return start(waits(150), {**LOST, **TF}, **request)

    steps = {kind: start_lost_step(kind) for kind in types}
    for step in steps.values():
        step.wait_for(r"\] begun", 240)
    retried = start_retried_step()
    for worker in (0, 1):
        retried.wait_for(rf"\[worker-{worker}\] begun")
    for step in (*steps.values(), retried):
        step.process.kill()
        step.process.wait()
    killed = time.monotonic()
    time.sleep(20)  # The retry comes later than the loss, and before launcher_lost_timeout.
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(check_that_its_job_succeeds, start_retried_step(**same_step(retried)))
        check_that_their_jobs_end(api, steps, killed)
        check_that_retries_create_new_jobs(steps, lambda kind: start_lost_step(kind, **same_step(steps[kind])))
        result.result()
    assert time.monotonic() - killed > 100, "the test was shorter than launcher_lost_timeout"


def same_step(step) -> dict:
    return {key: step.request[key] for key in ("identity", "model_uri")}


def check_that_its_job_succeeds(step) -> None:
    verdict = step.verdict(400)
    assert verdict["succeeded"], step.log
    assert f"adopted the existing {step.kind}" in step.log
    assert "restart" not in step.log
    assert left_behind(step) == []


def check_that_their_jobs_end(api, steps: dict, killed: float) -> None:
    remaining = dict(steps)
    while remaining and time.monotonic() < killed + 400:
        for kind in [kind for kind, step in remaining.items() if has_ended(api, step)]:
            remaining.pop(kind)
            seconds = time.monotonic() - killed
            print(f"the job of type {kind} ended {seconds:.0f} s after the loss of its step")
            # Replicas count from the last heartbeat that they have read, and a launcher may restart once.
            assert 40 < seconds < 200
        time.sleep(1)
    assert not remaining, "jobs continue without their steps"


def check_that_retries_create_new_jobs(steps: dict, start_again) -> None:
    lost = {kind: job_of(step)["metadata"]["uid"] for kind, step in steps.items()}
    retries = {kind: start_again(kind) for kind in steps}
    for kind, step in retries.items():
        step.wait_for(r"\] begun")
        assert job_of(step)["metadata"]["uid"] != lost[kind]
        step.process.terminate()
    for step in retries.values():
        step.process.wait(120)
        # The garbage collector may have to delete a launcher that its operator has created during the deletion.
        assert left_behind(step, 120) == []


def has_ended(api, step) -> bool:
    """Return whether a job and its pods have ended."""
    job = job_of(step)
    conditions = job["status"].get("conditions", [])
    true_conditions = {condition["type"] for condition in conditions if condition["status"] == "True"}
    pods = api.list_namespaced_pod(step.namespace, label_selector=f"kfp-distributed/job={step.name}").items
    phases = {pod.status.phase for pod in pods}
    return bool(true_conditions & {"Failed", "Succeeded", "Complete"}) and "Running" not in phases


def job_of(step) -> dict:
    """Return the job of a step. The cluster serves one of two versions of MPIJob."""
    for group, version, plural in KINDS[step.kind]:
        path = (group, version, step.namespace, plural, step.name)
        try:
            return client.CustomObjectsApi().get_namespaced_custom_object(*path)
        except client.ApiException as error:
            if error.status != 404:
                raise
    raise AssertionError(f"no job {step.name}")


def waits(seconds: int) -> dict:
    return function(f"import time\nprint('begun', flush=True)\ntime.sleep({seconds})")
