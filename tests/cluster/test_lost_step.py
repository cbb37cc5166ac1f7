"""A job whose train step is lost ends by itself, unless the step is retried in time. This takes minutes."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster.jobs import job_of, left_behind
from cluster.test_launch import ALONE, function

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.takes(180)]

LOST = {"launcher_lost_timeout": 60}
DISTRIBUTIONS = {
    "TF": ALONE,
    "PyTorch": {"distribution_type": "PyTorch"},
    "MPI": {"distribution_type": "MPI"},
    "Job": {},
}


@pytest.mark.parametrize(
    ("operator", "types"),
    [
        # One test for all kinds, so it is deselected on a cluster without MPIJob v1.
        pytest.param("training-operator", ["TF", "PyTorch", "MPI", "Job"], marks=pytest.mark.mpi("v1")),
        pytest.param("trainer", ["MPI"], marks=pytest.mark.trainer),
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
        return start(waits(120), {**LOST, **ALONE}, **request)

    steps = {kind: start_lost_step(kind) for kind in types}
    for step in steps.values():
        step.wait_for(r"\] begun", 240)
    retried = start_retried_step()
    retried.wait_for(r"\[worker-0\] begun")
    for step in (*steps.values(), retried):
        step.process.kill()
        step.process.wait()
    killed = time.monotonic()
    time.sleep(20)  # The retry comes later than the loss, and before launcher_lost_timeout.
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(check_that_its_job_succeeds, start_retried_step(**same_step(retried)))
        check_that_their_jobs_end(api, steps, killed)
        # Of the kind whose operator creates the most objects.
        check_that_a_retry_creates_a_new_job(start_lost_step("MPI", **same_step(steps["MPI"])))
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


def check_that_a_retry_creates_a_new_job(retry) -> None:
    retry.wait_for(r"\] begun")
    assert f"created {retry.kind}" in retry.log
    retry.process.terminate()
    retry.process.wait(120)
    # The garbage collector may have to delete a launcher that its operator has created during the deletion.
    assert left_behind(retry, 120) == []


def has_ended(api, step) -> bool:
    """Return whether a job and its pods have ended."""
    job = job_of(step)
    conditions = job["status"].get("conditions", [])
    true_conditions = {condition["type"] for condition in conditions if condition["status"] == "True"}
    pods = api.list_namespaced_pod(step.namespace, label_selector=f"kfp-distributed/job={step.name}").items
    phases = {pod.status.phase for pod in pods}
    return bool(true_conditions & {"Failed", "Succeeded", "Complete"}) and "Running" not in phases


def waits(seconds: int) -> dict:
    return function(f"import time\nprint('begun', flush=True)\ntime.sleep({seconds})")
