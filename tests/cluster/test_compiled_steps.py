"""The compiled steps in a pod of a stock Python image, with the rights that deploy/ gives and no others."""

import json
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from cluster.jobs import left_behind
from cluster.test_launch import function
from compiled import Run, step_command, whole_job
from kubernetes import client, watch
from kubernetes.stream import stream

from kfp_distributed.components.train.identity import identify_training
from kfp_distributed.components.train.launch import job_name
from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = pytest.mark.cluster

# The commands of steps one after another, each as a process of its own.
_RUN = """\
import json, os, subprocess, sys
for step, command in json.load(open("/job/commands.json")).items():
    os.makedirs("/steps/" + step)
    print("===", step, flush=True)
    code = subprocess.run(command, cwd="/steps/" + step).returncode
    if code:
        sys.exit(f"=== {step} ended with exit code {code}")
print("=== all have ended", flush=True)
"""

_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_NOBODY = {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.fixture(scope="module")
def pipeline_runner(api, training_namespace):
    """A service account that has only what deploy/rbac.yaml gives."""
    api.create_namespaced_service_account(training_namespace, {"metadata": {"name": "pipeline-runner"}})
    rbac = client.RbacAuthorizationV1Api()
    role, binding = yaml.safe_load_all((Path(__file__).parents[2] / "deploy" / "rbac.yaml").read_text())
    binding["subjects"][0]["namespace"] = training_namespace
    rbac.create_namespaced_role(training_namespace, role)
    rbac.create_namespaced_role_binding(training_namespace, binding)
    return "pipeline-runner"


@pytest.fixture
def run_in_pod(api, training_namespace, pipeline_runner):
    """Starts a pod that runs the commands of steps, by name, in turn; returns the pod."""

    def run(name: str, commands: dict[str, list[str]], annotations: dict[str, str] | None = None):
        data = {"run.py": _RUN, "commands.json": json.dumps(commands)}
        api.create_namespaced_config_map(training_namespace, {"metadata": {"name": name}, "data": data})
        metadata = {"name": name, "annotations": annotations or {}}
        return api.create_namespaced_pod(training_namespace, {"metadata": metadata, "spec": spec_of(name)})

    def spec_of(name: str) -> dict:
        container = {
            "name": "steps",
            "image": "python:3.11",
            "command": ["python3", "/job/run.py"],
            "env": [
                # As KFP has it in its steps. Where the object store is, they find by themselves.
                {"name": "KFP_POD_NAME", **field("metadata.name")},
                {"name": "KFP_POD_UID", **field("metadata.uid")},
                {"name": "HOME", "value": "/steps"},
                {"name": "PIP_DEFAULT_TIMEOUT", "value": "60"},
            ],
            "volumeMounts": [
                {"name": "job", "mountPath": "/job"},
                {"name": "work", "mountPath": "/steps"},
                # Where kfp has the outputs of a pipeline root s3://.
                {"name": "work", "mountPath": "/s3", "subPath": "s3"},
            ],
            "securityContext": _RESTRICTED,
        }
        volumes = [{"name": "job", "configMap": {"name": name}}, {"name": "work", "emptyDir": {}}]
        return {
            "serviceAccountName": pipeline_runner,
            "restartPolicy": "Never",
            "securityContext": _NOBODY,
            "containers": [container],
            "volumes": volumes,
        }

    def field(path: str) -> dict:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

    return run


@pytest.mark.timeout(900)
def test_every_step_runs_in_a_pod_of_a_stock_image(
    api, training_namespace, run_in_pod, bucket, store_environment, trainer_image
):
    namespace = training_namespace
    run = Run("/steps", str(uuid.uuid4()))
    commands = whole_job(run, f"{bucket}/{run.run_id}", f"{bucket}/exported", trainer_image)
    failing_run = Run("/steps", str(uuid.uuid4()))
    fails = train_command(function("raise RuntimeError('no such column: price')"), trainer_image, bucket, failing_run)
    run_in_pod("steps", {**commands, "fails": fails})
    phase = _end_of(api, namespace, "steps")
    log = api.read_namespaced_pod_log("steps", namespace) if phase != "Pending" else "the pod did not start"
    assert log.endswith("=== fails ended with exit code 1\n"), log[-6000:]
    assert f"Job {namespace}/train-" in log
    assert "[worker-0] epoch 8/8" in log
    assert store_environment["AWS_SECRET_ACCESS_KEY"] not in log
    store = open_store(f"s3://{bucket}", credentials_from_environment(store_environment))
    assert store.exists("exported/digits/1/saved_model.pb")
    # What replicas could not see of the steps' own disk went through the store, and is gone from it. A killed step of
    # another test leaves its own.
    for run_id in (run.run_id, failing_run.run_id):
        keys = [entry.key for entry in store.list(f"{run_id}/checkpoints/")]
        assert not [key for key in keys if "/staged/" in key]
    assert store.list(f"{run.run_id}/checkpoints/")
    # KFP shows nowhere but at the end of its log why a step failed.
    error, cause, _, report, _ = log.splitlines()[-5:]
    assert report.startswith("Report: ")
    assert error == "[worker-0] RuntimeError: no such column: price"
    assert cause.startswith("worker-0 failed with exit code 1, "), cause


def train_command(program: dict, image: str, bucket: str, run: Run) -> list[str]:
    """The command of a train step of one worker, whose data are in the store."""
    return step_command(
        "train",
        run,
        {
            "train_specification": {**program, "image": image},
            "distribution_specification": ONE_WORKER,
            "checkpoint_uri": f"s3://{bucket}/{run.run_id}/checkpoints",
        },
        {"train_dataset": f"s3://{bucket}/train_dataset"},
    )


ONE_WORKER = {"distribution_type": "TF", "number_of_workers": 1, "number_of_parameter_servers": 0}


@pytest.mark.timeout(600)
def test_a_job_is_of_the_pod_that_follows_it(api, training_namespace, run_in_pod, bucket, trainer_image):
    """Another pod goes on with the job of a killed one. When that is gone too, Kubernetes alone deletes the job."""
    namespace, run = training_namespace, Run("/steps", str(uuid.uuid4()))
    identity = identify_training(run.uri("train/model"), {})
    step = SimpleNamespace(name=job_name("train", (run.run_id, *identity.distinction)), namespace=namespace)
    sleeps = function("import time\nprint('begun', flush=True)\ntime.sleep(600)")
    command = train_command(sleeps, trainer_image, bucket, run)

    first = run_in_pod("step-1", {"train": command})
    wait_for_log(api, first, "[worker-0] begun")
    job = job_of(step)
    assert owners(job) == [("Pod", first.metadata.uid)]
    kill_step(api, first)
    assert _end_of(api, namespace, "step-1") == "Failed"

    second = run_in_pod("step-2", {"train": command})
    wait_for_log(api, second, "[worker-0] begun")
    assert (job_of(step)["metadata"]["uid"], owners(job_of(step))) == (
        job["metadata"]["uid"],
        [("Pod", second.metadata.uid)],
    )
    delete_pod(api, first)
    time.sleep(5)
    assert job_of(step)["metadata"]["uid"] == job["metadata"]["uid"]

    kill_step(api, second)
    assert _end_of(api, namespace, "step-2") == "Failed"
    assert left_behind(step, 3) != []
    delete_pod(api, second)
    assert left_behind(step) == []


@pytest.mark.timeout(600)
def test_iterations_on_a_backend_before_kfp_2_4_have_jobs_of_their_own(
    api, training_namespace, run_in_pod, bucket, trainer_image
):
    """Their output folder is the same, so each step reads its own pod, with the rights that deploy/ gives."""
    run = Run(f"s3://{bucket}", str(uuid.uuid4()), has_uuids=False)
    sleeps = function("import time\nprint('begun', flush=True)\ntime.sleep(600)")
    command = train_command(sleeps, trainer_image, bucket, run)
    pods, expected = [], set()
    for iteration in (0, 1):
        node = f"digits-h9hh4(0).root(0).iteration-iterations({iteration}:{iteration})(0).train(0).executor(0)"
        annotations = {"workflows.argoproj.io/node-name": node}
        pods.append(run_in_pod(f"iteration-{iteration}", {"train": command}, annotations))
        identity = identify_training(run.uri("train/model"), {}, lambda node=node: node)
        expected.add(job_name("train", (run.run_id, *identity.distinction)))
    for pod in pods:
        wait_for_log(api, pod, "[worker-0] begun")
    jobs = client.CustomObjectsApi().list_namespaced_custom_object(
        "kubeflow.org", "v1", training_namespace, "tfjobs", label_selector=f"kfp-distributed/run={run.run_id}"
    )
    assert {job["metadata"]["name"] for job in jobs["items"]} == expected
    assert len(expected) == 2
    for pod in pods:
        delete_pod(api, pod)
    assert [left_behind(SimpleNamespace(name=name, namespace=training_namespace)) for name in expected] == [[], []]


def job_of(step) -> dict:
    jobs = client.CustomObjectsApi()
    return jobs.get_namespaced_custom_object("kubeflow.org", "v1", step.namespace, "tfjobs", step.name)


def owners(job: dict) -> list[tuple[str, str]]:
    return [(each["kind"], each["uid"]) for each in job["metadata"].get("ownerReferences", ())]


def kill_step(api, pod) -> None:
    """SIGKILL for all but the pod's first process: the step can do nothing more."""
    name, namespace, command = pod.metadata.name, pod.metadata.namespace, ["sh", "-c", "kill -9 -1"]
    # The connection ends with the container.
    stream(api.connect_get_namespaced_pod_exec, name, namespace, command=command, stdout=True, _request_timeout=60)


def delete_pod(api, pod) -> None:
    api.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace, grace_period_seconds=0)


def wait_for_log(api, pod, text: str, seconds: float = 240) -> None:
    until, log = time.monotonic() + seconds, ""
    while text not in log:
        assert time.monotonic() < until, f"no {text!r} after {seconds} s:\n{log[-6000:]}"
        time.sleep(0.5)
        try:
            log = api.read_namespaced_pod_log(pod.metadata.name, pod.metadata.namespace)
        except client.ApiException as error:
            if error.status != 400:  # Its container has not started.
                raise


def _end_of(api, namespace: str, name: str) -> str:
    """Waits for a pod's end, also where the watch ends first; returns its phase."""
    phase, until = "Pending", time.monotonic() + 800
    while phase not in ("Succeeded", "Failed") and time.monotonic() < until:
        selector = f"metadata.name={name}"
        for event in watch.Watch().stream(
            api.list_namespaced_pod, namespace, field_selector=selector, timeout_seconds=60
        ):
            phase = event["object"].status.phase
            if phase in ("Succeeded", "Failed"):
                break
    return phase
