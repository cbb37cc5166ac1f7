"""The compiled steps in a pod of a stock Python image, with the rights that deploy/ gives and no others."""

import json
import time
from pathlib import Path

import pytest
import yaml
from compiled import whole_job
from kubernetes import client, watch

from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = pytest.mark.cluster

# The four commands one after another, each as a process of its own. Exit code 2 is pip's for a download that broke off:
# an index that does not answer says nothing about our steps.
_RUN = """\
import json, os, subprocess, sys
for step, command in json.load(open("/job/commands.json")).items():
    os.makedirs("/steps/" + step)
    for attempt in range(3):
        print("===", step, flush=True)
        code = subprocess.run(command, cwd="/steps/" + step).returncode
        if code != 2:
            break
    if code:
        sys.exit(f"=== {step} ended with exit code {code}")
print("=== all four ended", flush=True)
"""

_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_NOBODY = {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.fixture
def pipeline_runner(api, training_namespace):
    """A service account that has only what deploy/rbac.yaml gives."""
    api.create_namespaced_service_account(training_namespace, {"metadata": {"name": "pipeline-runner"}})
    rbac = client.RbacAuthorizationV1Api()
    role, binding = yaml.safe_load_all((Path(__file__).parents[2] / "deploy" / "rbac.yaml").read_text())
    binding["subjects"][0]["namespace"] = training_namespace
    rbac.create_namespaced_role(training_namespace, role)
    rbac.create_namespaced_role_binding(training_namespace, binding)
    return "pipeline-runner"


@pytest.mark.timeout(900)
def test_every_step_runs_in_a_pod_of_a_stock_image(
    api, training_namespace, pipeline_runner, bucket, store_environment, trainer_image
):
    namespace = training_namespace
    commands = whole_job("/steps", bucket, f"{bucket}/exported", trainer_image)
    data = {"run.py": _RUN, "commands.json": json.dumps(commands)}
    api.create_namespaced_config_map(namespace, {"metadata": {"name": "job"}, "data": data})

    def field(path: str) -> dict:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

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
        "volumeMounts": [{"name": "job", "mountPath": "/job"}, {"name": "work", "mountPath": "/steps"}],
        "securityContext": _RESTRICTED,
    }
    volumes = [{"name": "job", "configMap": {"name": "job"}}, {"name": "work", "emptyDir": {}}]
    pod = {
        "serviceAccountName": pipeline_runner,
        "restartPolicy": "Never",
        "securityContext": _NOBODY,
        "containers": [container],
        "volumes": volumes,
    }
    api.create_namespaced_pod(namespace, {"metadata": {"name": "steps"}, "spec": pod})
    phase = _end_of(api, namespace, "steps")
    log = api.read_namespaced_pod_log("steps", namespace) if phase != "Pending" else "the pod did not start"
    assert phase == "Succeeded", log[-6000:]
    assert f"Job {namespace}/train-" in log
    assert "[worker-0] epoch 8/8" in log
    assert store_environment["AWS_SECRET_ACCESS_KEY"] not in log
    keys = {entry.key for entry in open_store(f"s3://{bucket}", credentials_from_environment(store_environment)).list()}
    assert "exported/digits/1/saved_model.pb" in keys
    # What replicas could not see of the steps' own disk went through the store, and is gone from it.
    assert not [key for key in keys if "/staged/" in key]


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
