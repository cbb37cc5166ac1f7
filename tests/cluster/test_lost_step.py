"""A train step that is lost: its job ends by itself, but not where the step comes back. This takes minutes."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster.jobs import left_behind
from cluster.test_failures import TF
from cluster.test_launch import function
from kubernetes import client

# One test for all, so a cluster without any version of MPIJob leaves it out.
pytestmark = [pytest.mark.cluster, pytest.mark.mpi, pytest.mark.timeout(900), pytest.mark.takes(180)]

LOST = {"launcher_lost_timeout": 60}
DISTRIBUTIONS = {"TF": TF, "PyTorch": {"distribution_type": "PyTorch"}, "MPI": {"distribution_type": "MPI"}, "Job": {}}
KINDS = {
    "TF": [("kubeflow.org", "v1", "tfjobs")],
    "PyTorch": [("kubeflow.org", "v1", "pytorchjobs")],
    "MPI": [("kubeflow.org", "v1", "mpijobs"), ("kubeflow.org", "v2beta1", "mpijobs")],
    "Job": [("batch", "v1", "jobs")],
}


def test_jobs_whose_steps_are_lost_end_and_one_whose_step_comes_back_lives_on(start, open_namespace, api, image_name):
    """Side by side, for all do little but wait. Those that end: in a namespace that takes the operators' own pods."""

    def begin(kind: str, **request):
        program = {**waits(900), "image": image_name("horovod" if kind == "MPI" else "tensorflow")}
        return start(program, {**LOST, **DISTRIBUTIONS[kind]}, namespace=open_namespace, **request)

    def begin_the_other(**request):
        return start(waits(150), {**LOST, **TF}, **request)

    steps = {kind: begin(kind) for kind in DISTRIBUTIONS}
    for step in steps.values():
        step.wait_for(r"\] begun", 240)
    comes_back = begin_the_other()
    for worker in (0, 1):
        comes_back.wait_for(rf"\[worker-{worker}\] begun")
    for step in (*steps.values(), comes_back):
        step.process.kill()
        step.process.wait()
    killed = time.monotonic()
    time.sleep(20)
    with ThreadPoolExecutor(1) as pool:
        lives_on = pool.submit(see_it_live_on, begin_the_other(**of_the_same_run(comes_back)))
        see_them_end(api, steps, killed)
        see_them_start_anew(steps, lambda kind: begin(kind, **of_the_same_run(steps[kind])))
        lives_on.result()
    assert time.monotonic() - killed > 100, "it has not outlived launcher_lost_timeout"


def of_the_same_run(step) -> dict:
    return {key: step.request[key] for key in ("identity", "model_uri")}


def see_it_live_on(step) -> None:
    verdict = step.verdict(400)
    assert verdict["succeeded"], step.log
    assert "this step goes on with it" in step.log
    assert "restart" not in step.log
    assert left_behind(step) == []


def see_them_end(api, steps: dict, killed: float) -> None:
    """Each for good, at the time that was said."""
    left = dict(steps)
    while left and time.monotonic() < killed + 400:
        for kind in [kind for kind, step in left.items() if has_ended(api, step, kind)]:
            left.pop(kind)
            took = time.monotonic() - killed
            print(f"the job of type {kind} whose step was lost had ended after {took:.0f} s")
            # What was read before the kill counts, and a launcher may be started once more.
            assert 40 < took < 200
        time.sleep(1)
    assert not left, "these go on without their steps"


def see_them_start_anew(steps: dict, begin_again) -> None:
    """A step that comes back when its job has ended starts another one."""
    lost = {kind: job_of(step, kind)["metadata"]["uid"] for kind, step in steps.items()}
    again = {kind: begin_again(kind) for kind in steps}
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


def waits(seconds: int) -> dict:
    return function(f"import time\nprint('begun', flush=True)\ntime.sleep({seconds})")
