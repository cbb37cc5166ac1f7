"""The failures that people meet, made for real: the verdict, the cause that is named, and what is left behind.

docs/reliability.md has the same as a table.
"""

import base64
import json
import re
import time
import uuid
from pathlib import Path

import pytest
from cluster.jobs import SECONDS, left_behind
from cluster.test_launch import function
from kubernetes import client

from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TF = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}


def failed(step, *parts: str, since: str | float = "", within: float = SECONDS) -> str:
    """Waits for a failed step; its cause has all parts and nothing is left behind.

    Args:
        step: The step.
        parts: Of its cause.
        since: When it failed, or a pattern of the line after which it did; the last line that has it counts.
        within: Seconds that the verdict may take since then.
    """
    verdict = step.verdict(240)
    if since:
        # The last line is the verdict, which has the cause.
        stamps = [stamp for stamp, text in step.lines[:-1] if isinstance(since, str) and re.search(since, text)]
        assert stamps or isinstance(since, float), f"no line has {since!r}:\n{step.log}"
        took = step.lines[-1][0] - (since if isinstance(since, float) else stamps[-1])
        assert took < within, f"{took:.1f} s after {since!r}:\n{step.log}"
    assert not verdict["succeeded"], step.log
    for part in parts:
        assert part in verdict["cause"], step.log
    assert left_behind(step) == []
    return verdict["cause"]


def refused(step, *parts: str, within: float = SECONDS) -> str:
    """Waits for a step that is refused before anything is created, so many seconds after its start."""
    verdict = step.verdict()
    assert left_behind(step, 0) == []
    assert verdict["seconds"] < within, step.log
    cause = failed(step, *parts)
    assert cause.startswith("refused: "), step.log
    return cause


@pytest.mark.takes(30)
def test_an_image_that_cannot_be_pulled(start):
    step = start({**function(""), "image": "registry.invalid/absent:1"}, {"image_pull_timeout": 25})
    told = step.wait_for("ErrImagePull|ImagePullBackOff")
    assert told - step.wait_for("is created") < 20
    failed(step, "image_pull_timeout ran out after 25 s", "worker-0 not started", "registry.invalid/absent:1")


@pytest.mark.takes(25)
def test_a_pod_that_no_node_has_room_for(start):
    step = start(function(""), {**TF, "worker_cpus": 64, "scheduling_timeout": 20})
    assert step.wait_for("worker-1: waiting .*Unschedulable") - step.wait_for("is created") < 15
    failed(step, "scheduling_timeout ran out after 20 s", "Unschedulable", "Insufficient cpu")


@pytest.mark.takes(25)
def test_a_quota_that_is_used_up(start, open_namespace, api):
    api.create_namespaced_resource_quota(
        open_namespace, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    )
    step = start(function(""), {**TF, "scheduling_timeout": 20}, namespace=open_namespace)
    assert step.wait_for("exceeded quota") - step.wait_for("is created") < 15
    failed(step, "scheduling_timeout ran out after 20 s", "exceeded quota", "FailedCreatePod")


def test_a_namespace_that_is_not_there(start):
    refused(start(function(""), namespace="kfp-distributed-absent"), "kfp-distributed-absent")


def test_no_permission(start, training_namespace, api, tmp_path):
    """A service account that may do nothing, then one that may look: the verbs that it lacks are named."""
    name = f"nobody-{uuid.uuid4().hex[:8]}"
    api.create_namespaced_service_account(training_namespace, {"metadata": {"name": name}})
    environment = {"KUBECONFIG": as_account(api, training_namespace, name, tmp_path)}
    refused(start(function(""), TF, environment=environment), 'cannot get resource "configmaps"')
    rules = [{"apiGroups": [""], "resources": ["configmaps", "services", "secrets"], "verbs": ["get"]}]
    rbac, about = client.RbacAuthorizationV1Api(), {"metadata": {"name": name}}
    rbac.create_namespaced_role(training_namespace, {**about, "rules": rules})
    account = {"kind": "ServiceAccount", "name": name, "namespace": training_namespace}
    role = {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    rbac.create_namespaced_role_binding(training_namespace, {**about, "roleRef": role, "subjects": [account]})
    step = start(function(""), TF, environment=environment)
    install = f"run kfp-distributed install --namespace {training_namespace}"
    refused(step, "create tfjobs.kubeflow.org", "get pods/log", install)


def as_account(api, namespace: str, name: str, folder) -> str:
    """A kubeconfig file with the token of a service account."""
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


def test_user_code_that_raises(start):
    step = start(function("raise RuntimeError('no such column: price')"), TF)
    cause = failed(step, "exit code 1", "RuntimeError: no such column: price", since="RuntimeError: no such column")
    assert "failed with exit code 1" in cause.splitlines()[-1]


def test_user_code_that_exits_with_3(start):
    step = start(function("print('ends', flush=True)\nraise SystemExit(3)"))
    failed(step, "worker-0 failed with exit code 3", since=r"\[worker-0\] ends")


def test_out_of_memory(start):
    program = function("print('allocating', flush=True)\ndata = bytearray(2 * 1024 ** 3)\nprint(len(data))")
    step = start(program, {**TF, "worker_memory": "400Mi", "restart_limit": 1})
    failed(step, "exit code 137", "OOMKilled", "restart_limit allows (1) are used up", since=r"\] allocating")


def test_a_job_that_somebody_deletes(start):
    step = start(function("import time\nprint('begun', flush=True)\ntime.sleep(300)"), TF)
    step.wait_for("begun")
    deleted = time.time()
    client.CustomObjectsApi().delete_namespaced_custom_object("kubeflow.org", "v1", step.namespace, "tfjobs", step.name)
    failed(step, "Somebody deleted the TFJob.", since=deleted)


def test_a_training_that_hangs(start):
    step = start(function("import time\nprint('begun', flush=True)\ntime.sleep(300)"), {**TF, "silence_timeout": 10})
    failed(step, "silence_timeout ran out after 10 s", "worker-0 silent for", "worker-1 silent for")
    assert 10 <= step.lines[-1][0] - step.wait_for("begun") < 25


@pytest.mark.takes(25)
def test_a_deadline_that_is_over(start):
    program = function("import time\nwhile True:\n    print('step', flush=True)\n    time.sleep(1)")
    step = start(program, {**TF, "total_timeout": 20})
    failed(step, "total_timeout ran out after 20 s")
    assert 18 < step.lines[-1][0] - step.wait_for("is created") < 35


def test_a_program_that_leaves_no_model(start):
    program = {"function": "fit", "source": "def fit(model_dir: str):\n    print('nothing to save')\n"}
    failed(start(program), "left nothing in model_dir", since=r"\[worker-0\] nothing to save")


@pytest.mark.takes(25)
def test_a_job_that_succeeds_without_a_model(start, store_environment):
    # The process ends well when the thread does.
    step = start(function("import threading, time\nthreading.Thread(target=time.sleep, args=(20,)).start()"))
    step.wait_for("model saved")
    model = open_store(step.request["model_uri"], credentials_from_environment(store_environment))
    model.delete([entry.key for entry in model.list()])
    failed(step, "The job succeeded, but left no whole model: ", "has no model.json", since="worker-0: succeeded")


# What is left at step 10 is stored two to four seconds later, on a busy machine a little more.
RESUMES = """\
import time
from pathlib import Path
begun = Path(checkpoint_dir, "step")
start = int(begun.read_text()) if begun.exists() else 0
print("starts at", start, flush=True)
for step in range(start, STEPS):
    if step % 5 == 0:
        begun.write_text(str(step))
    print("step", step, flush=True)
    time.sleep(1)
    if step == 14 and start == 0 and WHO == "all":
        print(len(bytearray(2 * 1024 ** 3)))"""


@pytest.mark.takes(45)
def test_a_leader_out_of_memory_is_started_again_and_goes_on_from_its_checkpoint(start):
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


@pytest.mark.takes(55)
def test_an_evicted_worker_is_started_again(start, api):
    source = function(RESUMES.replace("WHO", "'none'").replace("STEPS", "40"))["source"].replace(
        "rows: int = 0", "checkpoint_dir: str"
    )
    step = start({"function": "fit", "source": source}, TF)
    # What was left at step 5 is stored four seconds later, or a little more.
    for worker in (0, 1):
        step.wait_for(rf"\[worker-{worker}\] step 14$")
    pod = f"{step.name}-worker-1"
    evicted = time.time()
    api.create_namespaced_pod_eviction(pod, step.namespace, {"metadata": {"name": pod}})
    step.assert_logged_within(SECONDS, evicted, r"^worker-1: failed \(")
    verdict = step.verdict()
    assert verdict["succeeded"], step.log
    begun = [int(found[1]) for _, text in step.lines if (found := re.match(r"\[worker-1\] starts at (\d+)$", text))]
    assert len(begun) == 2, step.log
    assert begun[0] == 0 < begun[1], step.log
    assert left_behind(step) == []


def test_a_worker_whose_pod_is_taken_away_at_once(start, api):
    """The operator gives the job up or makes a new pod; where no restart is allowed it is the end, and it is said."""
    step = start(function("import time\nprint('begun', flush=True)\ntime.sleep(60)"), {**TF, "restart_limit": 0})
    step.wait_for(r"\[worker-1\] begun")
    taken_away = time.time()
    api.delete_namespaced_pod(f"{step.name}-worker-1", step.namespace, grace_period_seconds=0)
    failed(step, "worker-1 failed with ", "pod deleted", since=taken_away)
