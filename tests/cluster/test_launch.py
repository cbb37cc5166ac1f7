"""Train steps on a real cluster that succeed, are retried, queued or cancelled."""

import json
import signal
import subprocess
import threading
import time
import uuid
from contextlib import suppress

import pytest
from cluster.api_proxy import ApiProxy
from cluster.jobs import SECONDS, delete_job, left_behind
from kubernetes import client

from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ALONE = {"distribution_type": "TF", "number_of_workers": 1, "number_of_parameter_servers": 0}

on_trainer = pytest.mark.parametrize("operator", [pytest.param("trainer", marks=pytest.mark.trainer)], indirect=True)
"""Mark of a test that runs with Kubeflow Trainer alone, whose jobs consist of the most objects."""


def suspend_policy(value: bool) -> dict:
    """Return the patch that suspends or resumes a job of the training operator."""
    return {"spec": {"runPolicy": {"suspend": value}}}


SAVE = 'from pathlib import Path; Path(model_dir, "weights").write_text("1")'


def function(body: str) -> dict:
    """Return a program that needs no TensorFlow and saves a model."""
    lines = [f"    {line}" for line in (*body.splitlines(), SAVE)]
    return {"function": "fit", "source": "def fit(model_dir: str, rows: int = 0):\n" + "\n".join(lines) + "\n"}


@pytest.fixture
def model_of(store_environment):
    """A function that returns the objects of a model by key."""

    def read(uri: str) -> dict:
        store = open_store(uri, credentials_from_environment(store_environment))
        return {entry.key: store.read(entry.key) for entry in store.list()}

    return read


def test_a_job_with_one_pod_saves_its_model(start, bucket, model_of):
    uri = f"s3://{bucket}/models/{uuid.uuid4().hex}"
    step = start(function("for row in range(rows): print('row', row)"), parameters={"rows": 500}, model_uri=uri)
    verdict = step.verdict()
    assert verdict["succeeded"], step.log
    lines = [text for _, text in step.lines if text.startswith("[worker-0] row ")]
    assert lines == [f"[worker-0] row {row}" for row in range(500)]
    model = model_of(uri)
    assert model["weights"] == b"1"
    assert json.loads(model["model.json"])["job"] == step.name
    assert left_behind(step) == []


@pytest.mark.takes(30)
@on_trainer
def test_a_killed_and_retried_step_adopts_its_job(start, open_namespace, api):
    identity = [f"run-{uuid.uuid4().hex[:8]}", "train", "1"]
    program = function("import time\nprint('begun', flush=True)\ntime.sleep(25)\nprint('done')")
    first = start(program, ALONE, identity=identity, namespace=open_namespace)
    first.wait_for(r"\[worker-0\] begun")
    first.process.kill()
    first.process.wait()
    # The job has used up the quota. The API server checks quotas before names.
    count = len(api.list_namespaced_config_map(open_namespace).items)
    kinds = [f"count/{kind}.trainer.kubeflow.org" for kind in ("trainjobs", "trainingruntimes")]
    hard = {"count/configmaps": str(count), **dict.fromkeys(kinds, "1")}
    api.create_namespaced_resource_quota(open_namespace, {"metadata": {"name": "full"}, "spec": {"hard": hard}})
    # The same request, so it is the same step.
    second = start(program, ALONE, identity=identity, namespace=open_namespace, **_uris(first))
    verdict = second.verdict()
    assert verdict["succeeded"], second.log
    assert "adopted the existing TrainJob" in second.log
    # The log is read from its beginning, once.
    assert [text for _, text in second.lines if "begun" in text] == ["[worker-0] begun"]
    assert left_behind(second) == []


def _uris(step) -> dict:
    return {"model_uri": step.request["model_uri"]}


def test_a_job_with_another_specification_is_refused(start):
    identity = [f"run-{uuid.uuid4().hex[:8]}", "train", "1"]
    program = function("import time\nprint('begun', flush=True)\ntime.sleep(60)")
    first = start(program, identity=identity)
    first.wait_for(r"\[worker-0\] begun")
    second = start(function("print('other')"), identity=identity, **_uris(first))
    verdict = second.verdict()
    cause = verdict["cause"]
    assert "another specification" in cause
    assert verdict["seconds"] < SECONDS
    assert f"kubectl delete jobs {first.name}" in cause
    # The refused step has not changed the job of the first one.
    assert first.process.poll() is None
    assert left_behind(first, 1) != []
    cancel(first)
    assert left_behind(first) == []


@on_trainer
@pytest.mark.takes(40)
def test_a_job_that_failed_and_was_kept_is_replaced_by_the_next_attempt(start, api):
    """The pod that failed stays with its log until then. JobSet deletes those that run."""
    body = """\
import os, time
name = os.environ["KFP_DISTRIBUTED_REPLICA"]
print("last words", name, flush=True)
if name == "worker-1":
    os._exit(3)
time.sleep(300)"""
    keys = {**ALONE, "number_of_workers": 2, "keep_job": True, "termination_grace_seconds": 5}
    first = start(function(body), keys)
    assert "failed with exit code 3" in first.verdict()["cause"], first.log
    assert f"kept {first.kind} {first.namespace}/{first.name} (keep_job)" in first.log
    pod = api.read_namespaced_pod(first.pod_of("worker-1"), first.namespace).metadata
    assert "last words worker-1" in api.read_namespaced_pod_log(pod.name, first.namespace)
    second = start(function(body), keys, identity=first.request["identity"], **_uris(first))
    assert "failed with exit code 3" in second.verdict()["cause"], second.log
    assert f"created {second.kind}" in second.log
    selector = f"kfp-distributed/job={second.name}"
    pods = {pod.metadata.uid for pod in api.list_namespaced_pod(second.namespace, label_selector=selector).items}
    assert pods
    assert pod.uid not in pods
    delete_job(second)
    assert left_behind(second) == []


@pytest.mark.takes(23)
def test_names_that_are_not_valid_in_kubernetes_are_converted(start, api):
    """Task and run have dots, capitals, special characters and too many characters for names and labels."""
    task = "7.Train.My_Very Long-Pipeline's Größte " + "Component" * 20
    identity = [f"Run.{uuid.uuid4().hex}_Ünï-" + "x" * 300, task, "1"]
    program = function("import time\nprint('begun', flush=True)\ntime.sleep(15)")
    steps = [start(program, ALONE, task_name=task, identity=identity), start(program, task_name=task)]
    for step in steps:
        step.wait_for("begun")
        (pod, *_) = api.list_namespaced_pod(step.namespace, label_selector=f"kfp-distributed/job={step.name}").items
        assert pod.metadata.labels["kfp-distributed/task"].startswith("7.Train.My_Very-Long-Pipeline-s-Gr-")
    for step in steps:
        assert step.verdict()["succeeded"], step.log
        assert left_behind(step) == []


@pytest.mark.parametrize(
    ("operator", "plural", "suspend"),
    [
        ("training-operator", ("kubeflow.org", "v1", "tfjobs"), suspend_policy),
        pytest.param(
            "trainer",
            ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
            lambda value: {"spec": {"suspend": value}},
            marks=pytest.mark.trainer,
        ),
    ],
    indirect=["operator"],
    ids=["TFJob", "trainer"],
)
def test_a_suspended_job_is_queued_until_it_is_resumed(start, plural, suspend):
    step = start(function("import time; time.sleep(5)"), {**ALONE, "queue_name": "team-queue"})
    assert_queued_and_resumed(step, plural, suspend)


def assert_queued_and_resumed(step, plural, suspend):
    """Do what Kueue does: suspend a job with its label, and resume it when there is room."""
    group, version, kind = plural
    step.wait_for(f"created {step.kind}")
    custom = client.CustomObjectsApi()
    job = custom.get_namespaced_custom_object(group, version, step.namespace, kind, step.name)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-queue"
    custom.patch_namespaced_custom_object(group, version, step.namespace, kind, step.name, suspend(True))
    queued = step.wait_for(r"worker-0: queued \(not admitted by the queue\)")
    # Otherwise the operator would count a pod that is still ending as failed.
    core, selector = client.CoreV1Api(), f"kfp-distributed/job={step.name}"
    while core.list_namespaced_pod(step.namespace, label_selector=selector).items:
        time.sleep(1)
    time.sleep(3)  # The job stays queued for at least as long, see below.
    custom.patch_namespaced_custom_object(group, version, step.namespace, kind, step.name, suspend(False))
    verdict = step.verdict()
    assert verdict["succeeded"], step.log
    assert step.wait_for(r"(launcher|worker)-0: succeeded") - queued >= 3
    assert left_behind(step) == []


def cancel(step) -> None:
    """Cancel a step as KFP does: SIGTERM, then SIGKILL. KFP waits 0.07 to 0.3 s; the machine is busy, so 0.3 s."""
    step.process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        step.process.wait(0.3)
    step.process.kill()
    assert step.process.wait() in (128 + signal.SIGTERM, -signal.SIGKILL), step.log


# Jobs that do not end by themselves, the second one after it has saved its model.
ENDLESS = "import threading, time\nprint('begun', flush=True)\n"
WAITS, STAYS = f"{ENDLESS}time.sleep(300)", f"{ENDLESS}threading.Thread(target=time.sleep, args=(300,)).start()"


@pytest.mark.parametrize(
    ("operator", "moment", "body", "distribution"),
    [
        ("training-operator", r"^created Job ", WAITS, {}),
        ("training-operator", "Unschedulable", WAITS, {"worker_cpus": 64}),
        ("training-operator", "model saved", STAYS, {}),
        pytest.param("trainer", "model saved", STAYS, {**ALONE, "number_of_workers": 2}, marks=pytest.mark.trainer),
    ],
    indirect=["operator"],
    ids=["creating", "pending", "finishing", "trainer finishing"],
)
def test_a_cancelled_step_leaves_no_objects(start, moment, body, distribution):
    step = start(function(body), distribution)
    step.wait_for(moment)
    cancel(step)
    # A pod whose program is just starting takes 30 s to end.
    assert left_behind(step, 90) == []


@pytest.fixture
def proxy(api):
    """A proxy of the API server. Request it before `start`, so that it outlives the steps."""
    with ApiProxy(api.api_client.configuration) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("operator", "distribution"),
    [("training-operator", {}), pytest.param("trainer", ALONE, marks=pytest.mark.trainer)],
    indirect=["operator"],
    ids=["Job", "trainer"],
)
def test_a_cancel_is_one_request_over_an_open_connection(proxy, start, tmp_path, distribution):
    """There is no time for other requests or for opening a connection."""
    requests = []
    # The proxy has a thread for each connection.
    proxy.watch = lambda request: requests.append((request, threading.current_thread()))
    step = start(function(WAITS), distribution, environment={"KUBECONFIG": proxy.kubeconfig(tmp_path)})
    step.wait_for(r"\[worker-0\] begun")
    before = len(requests)
    cancel(step)
    assert left_behind(step) == []
    # The request that keeps the connection open may be sent at the same time.
    request, connection = next(item for item in requests[before:] if not item[0].startswith("GET"))
    group = "batch/v1" if step.kind == "Job" else "trainer.kubeflow.org/v1alpha1"
    assert request == f"DELETE /apis/{group}/namespaces/{step.namespace}/{step.kind.lower()}s/{step.name}"
    assert connection in {thread for _, thread in requests[:before]}


def test_the_namespace_of_the_tests_enforces_restricted(training_namespace, api):
    pod = {"metadata": {"name": "root"}, "spec": {"containers": [{"name": "main", "image": "python:3.11"}]}}
    with pytest.raises(client.ApiException) as error:
        api.create_namespaced_pod(training_namespace, pod)
    assert error.value.status == 403
