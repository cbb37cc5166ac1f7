"""Common failures on a real cluster: the verdict of the step, the reported cause, and that no object is left behind.

docs/reference/failures.md lists them.
"""

import base64
import json
import re
import time
import uuid
from pathlib import Path

import pytest
from cluster.jobs import SECONDS, both_operators, delete_job, left_behind
from cluster.test_launch import ALONE, function
from kubernetes import client

from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TF = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}


def failed(step, *parts: str, since: str | float = "", within: float = SECONDS) -> str:
    """Wait for a failed step; assert that its cause has all parts and no object is left behind. Return the cause.

    Args:
        step: The step.
        parts: Parts of the cause.
        since: Time of the failure, or a pattern of the last line before the failure.
        within: Maximum seconds from the failure to the verdict.
    """
    verdict = step.verdict(400)
    if since:
        # Without the last line, which is the verdict and contains the cause.
        stamps = [stamp for stamp, text in step.lines[:-1] if isinstance(since, str) and re.search(since, text)]
        assert stamps or isinstance(since, float), f"no line contains {since!r}:\n{step.log}"
        delay = step.lines[-1][0] - (since if isinstance(since, float) else stamps[-1])
        assert delay < within, f"{delay:.1f} s after {since!r}:\n{step.log}"
    assert not verdict["succeeded"], step.log
    for part in parts:
        assert part in verdict["cause"], step.log
    assert left_behind(step) == []
    return verdict["cause"]


def refused(step, *parts: str, within: float = SECONDS) -> str:
    """Wait for a step that is refused before anything is created, within so many seconds. Return the cause."""
    verdict = step.verdict()
    assert left_behind(step, 0) == []
    assert verdict["seconds"] < within, step.log
    cause = failed(step, *parts)
    assert cause.startswith("refused: "), step.log
    return cause


@pytest.mark.takes(30)
def test_an_image_that_cannot_be_pulled_ends_the_job(start):
    program = {**function(""), "image": "registry.invalid/absent:1"}
    step = start(program, {"image_pull_timeout": 25})
    reported = step.wait_for("ErrImagePull|ImagePullBackOff")
    assert reported - step.wait_for("created Job") < 20
    failed(step, "image_pull_timeout ran out after 25 s", "worker-0 not started", "registry.invalid/absent:1")


@pytest.mark.takes(25)
def test_an_unschedulable_pod_ends_the_job(start):
    step = start(function(""), {**TF, "worker_cpus": 64, "scheduling_timeout": 20})
    assert step.wait_for("worker-1: waiting .*Unschedulable") - step.wait_for("created TFJob") < 15
    failed(step, "scheduling_timeout ran out after 20 s", "Unschedulable", "Insufficient cpu")


@both_operators
@pytest.mark.takes(25)
def test_an_exceeded_quota_ends_the_job(start, open_namespace, api):
    api.create_namespaced_resource_quota(
        open_namespace, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    )
    step = start(function(""), {**TF, "scheduling_timeout": 20}, namespace=open_namespace)
    assert step.wait_for("exceeded quota") - step.wait_for(f"created {step.kind}") < 15
    failed(step, "scheduling_timeout ran out after 20 s", "exceeded quota", "FailedCreate")


def test_a_missing_namespace_is_refused(start):
    refused(start(function(""), namespace="kfp-distributed-absent"), "kfp-distributed-absent")


def test_missing_permissions_are_named(start, training_namespace, api, tmp_path):
    """First for an account without permissions, then for one that may read some objects."""
    name = f"account-{uuid.uuid4().hex[:8]}"
    api.create_namespaced_service_account(training_namespace, {"metadata": {"name": name}})
    environment = {"KUBECONFIG": as_account(api, training_namespace, name, tmp_path)}
    refused(start(function(""), TF, environment=environment), 'cannot get resource "configmaps"')
    rules = [{"apiGroups": [""], "resources": ["configmaps", "services", "secrets"], "verbs": ["get"]}]
    rbac, metadata = client.RbacAuthorizationV1Api(), {"metadata": {"name": name}}
    rbac.create_namespaced_role(training_namespace, {**metadata, "rules": rules})
    account = {"kind": "ServiceAccount", "name": name, "namespace": training_namespace}
    role = {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    rbac.create_namespaced_role_binding(training_namespace, {**metadata, "roleRef": role, "subjects": [account]})
    step = start(function(""), TF, environment=environment)
    install = f"run kfp-distributed install --namespace {training_namespace}"
    refused(step, "create tfjobs.kubeflow.org", "get pods/log", install)


def as_account(api, namespace: str, name: str, folder) -> str:
    """Write a kubeconfig file with the token of a service account; return its path."""
    token = api.create_namespaced_service_account_token(name, namespace, {"spec": {}}).status.token
    configuration = api.api_client.configuration
    authority = base64.b64encode(Path(configuration.ssl_ca_cert).read_bytes()).decode()
    file = folder / "kubeconfig"
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
                "clusters": [
                    {"name": "test", "cluster": {"server": configuration.host, "certificate-authority-data": authority}}
                ],
                "users": [{"name": "test", "user": {"token": token}}],
            }
        )
    )
    return str(file)


def test_an_exception_in_user_code_is_the_cause(start):
    step = start(function("raise RuntimeError('no such column: price')"), TF)
    cause = failed(step, "exit code 1", "RuntimeError: no such column: price", since="RuntimeError: no such column")
    assert "failed with exit code 1" in cause.splitlines()[-1]


def test_the_exit_code_of_user_code_is_the_cause(start):
    step = start(function("print('ends', flush=True)\nraise SystemExit(3)"))
    failed(step, "worker-0 failed with exit code 3", since=r"\[worker-0\] ends")


@both_operators
def test_out_of_memory_ends_the_job_at_the_restart_limit(start):
    program = function("print('allocating', flush=True)\ndata = bytearray(2 * 1024 ** 3)\nprint(len(data))")
    step = start(program, {**TF, "worker_memory": "400Mi", "restart_limit": 1})
    failed(step, "exit code 137", "OOMKilled", "restart_limit=1", since=r"\] allocating")


@both_operators
def test_the_deletion_of_a_job_ends_the_step(start):
    step = start(function("import time\nprint('begun', flush=True)\ntime.sleep(300)"), ALONE)
    step.wait_for("begun")
    deleted = time.time()
    delete_job(step)
    failed(step, f"{step.kind} was deleted", since=deleted)


def test_progress_timeout_ends_a_training_that_hangs(start):
    program = function("import time\nprint('begun', flush=True)\ntime.sleep(300)")
    # Samples arrive every ten seconds, so no replica is silent.
    step = start(program, {**TF, "progress_timeout": 25, "silence_timeout": 20})
    failed(step, "progress_timeout ran out after 25 s: worker-", "; worker-", ", last output ")
    assert 25 <= step.lines[-1][0] - step.wait_for("begun") < 200


def test_silence_timeout_ends_a_training_with_a_frozen_replica(start):
    """Worker 1 calls C code that holds Python's lock, so its thread for samples stops too; worker 0 goes on."""
    program = function(
        "import ctypes, os, time\n"
        "time.sleep(15)\n"
        "if os.environ['KFP_DISTRIBUTED_REPLICA'] == 'worker-1':\n"
        "    print('stops', flush=True)\n"
        "    ctypes.PyDLL(None).sleep(300)\n"
        "while True:\n"
        "    print('step', flush=True)\n"
        "    time.sleep(1)"
    )
    step = start(program, {**TF, "silence_timeout": 20})
    failed(step, 'silence_timeout ran out after 20 s: worker-1: printed "stops"', 'worker-0: printed "step"')
    assert 20 <= step.lines[-1][0] - step.wait_for("stops") < 200


@pytest.mark.takes(25)
def test_total_timeout_ends_the_job(start):
    program = function("import time\nwhile True:\n    print('step', flush=True)\n    time.sleep(1)")
    step = start(program, {"total_timeout": 20})
    failed(step, "total_timeout ran out after 20 s")
    assert 18 < step.lines[-1][0] - step.wait_for("created Job") < 200


def test_a_program_without_a_model_fails(start):
    program = {"function": "fit", "source": "def fit(model_dir: str):\n    print('nothing to save')\n"}
    failed(start(program), "model_dir", since=r"\[worker-0\] nothing to save")


@pytest.mark.takes(25)
def test_a_job_that_succeeds_without_a_model_has_failed(start, store_environment):
    # The process only ends when the thread does.
    step = start(function("import threading, time\nthreading.Thread(target=time.sleep, args=(20,)).start()"))
    step.wait_for("model saved")
    model = open_store(step.request["model_uri"], credentials_from_environment(store_environment))
    model.delete([entry.key for entry in model.list()])
    failed(step, "The job succeeded, but ", "model.json", since="worker-0: succeeded")


RESUMES = """\
import time
from pathlib import Path
from kfp_distributed.trainers.sync import flush
begun = Path(checkpoint_dir, "step")
start = int(begun.read_text()) if begun.exists() else 0
print("starts at", start, flush=True)
for step in range(start, STEPS):
    if step % 5 == 0:
        begun.write_text(str(step))
        flush()
    print("step", step, flush=True)
    time.sleep(1)
    if step == 14 and start == 0 and WHO == "all":
        print(len(bytearray(2 * 1024 ** 3)))"""


@pytest.mark.takes(45)
def test_a_leader_out_of_memory_restarts_and_resumes_from_its_checkpoint(start):
    source = function(RESUMES.replace("WHO", "'all'").replace("STEPS", "24"))["source"].replace(
        "rows: int = 0", "checkpoint_dir: str"
    )
    step = start({"function": "fit", "source": source}, {"worker_memory": "400Mi"})
    verdict = step.verdict()
    assert verdict["succeeded"], step.log
    assert (
        "worker-0: failed (exit code 137 (SIGKILL), often a lack of memory, OOMKilled: the limit is 400Mi)" in step.log
    )
    assert [text for _, text in step.lines if " starts at " in text] == [
        "[worker-0] starts at 0",
        "[worker-0] starts at 10",
    ]
    assert left_behind(step) == []


@both_operators
@pytest.mark.takes(55)
def test_an_evicted_worker_restarts(start, api):
    """All replicas start again with it, from the step that the store has."""
    source = function(RESUMES.replace("WHO", "'none'").replace("STEPS", "30"))["source"].replace(
        "rows: int = 0", "checkpoint_dir: str"
    )
    step = start({"function": "fit", "source": source}, TF)
    # The checkpoint of step 5 is uploaded about four seconds later.
    for worker in (0, 1):
        step.wait_for(rf"\[worker-{worker}\] step 14$")
    pod = step.pod_of("worker-1")
    evicted = time.time()
    api.create_namespaced_pod_eviction(pod, step.namespace, {"metadata": {"name": pod}})
    step.assert_logged_within(SECONDS, evicted, r"^worker-1: failed \(")
    verdict = step.verdict()
    assert verdict["succeeded"], step.log
    for worker in (0, 1):
        starts = [int(start) for start in re.findall(rf"^\[worker-{worker}\] starts at (\d+)$", step.log, re.MULTILINE)]
        assert len(starts) == 2, step.log
        assert starts[0] == 0 < starts[1], step.log
    assert left_behind(step) == []


@both_operators
def test_a_deleted_pod_ends_the_job_if_restart_limit_is_0(start, api):
    """The operator fails the job or creates a new pod. Both end the step with the deletion as the cause."""
    step = start(function("import time\nprint('begun', flush=True)\ntime.sleep(60)"), {**TF, "restart_limit": 0})
    step.wait_for(r"\[worker-1\] begun")
    deleted = time.time()
    api.delete_namespaced_pod(step.pod_of("worker-1"), step.namespace, grace_period_seconds=0)
    failed(step, "worker-1 failed", "pod deleted", since=deleted)
