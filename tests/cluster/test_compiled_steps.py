"""The compiled steps in a pod of a stock Python image, against the cluster's object store."""

import json

import pytest
from compiled import whole_job
from kubernetes import watch

from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = pytest.mark.cluster

# The four commands one after another, each as a process of its own.
_RUN = """\
import json, os, subprocess
for step, command in json.load(open("/job/commands.json")).items():
    os.makedirs("/steps/" + step)
    print("===", step, flush=True)
    subprocess.run(command, check=True)
print("=== all four ended", flush=True)
"""


@pytest.mark.timeout(900)
def test_every_step_runs_in_a_pod_of_a_stock_image(api, namespace, object_store_secret, store_endpoint):
    bucket = namespace
    commands = json.loads(json.dumps(whole_job("/steps")).replace('\\"models\\"', f'\\"{bucket}\\"'))
    commands["train"] = json.loads(
        json.dumps(commands["train"]).replace("s3://checkpoints", f"s3://{bucket}/checkpoints")
    )
    api.create_namespaced_config_map(
        namespace, {"metadata": {"name": "job"}, "data": {"run.py": _RUN, "commands.json": json.dumps(commands)}}
    )
    api.create_namespaced_secret(namespace, {"metadata": {"name": "store"}, "stringData": object_store_secret})

    def key(name: str) -> dict:
        return {"valueFrom": {"secretKeyRef": {"name": "store", "key": name}}}

    container = {
        "name": "steps",
        "image": "python:3.11",
        "command": ["python3", "/job/run.py"],
        "env": [
            {"name": "AWS_ENDPOINT_URL", "value": "http://minio-service.kubeflow:9000"},
            {"name": "AWS_ACCESS_KEY_ID", **key("accesskey")},
            {"name": "AWS_SECRET_ACCESS_KEY", **key("secretkey")},
        ],
        "volumeMounts": [{"name": "job", "mountPath": "/job"}, {"name": "work", "mountPath": "/steps"}],
    }
    volumes = [{"name": "job", "configMap": {"name": "job"}}, {"name": "work", "emptyDir": {}}]
    api.create_namespaced_pod(
        namespace,
        {
            "metadata": {"name": "steps"},
            "spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes},
        },
    )
    phase = ""
    for event in watch.Watch().stream(api.list_namespaced_pod, namespace, timeout_seconds=800):
        phase = event["object"].status.phase
        if phase in ("Succeeded", "Failed"):
            break
    log = api.read_namespaced_pod_log("steps", namespace) if phase != "Pending" else "the pod did not start"
    assert phase == "Succeeded", log[-6000:]
    assert object_store_secret["secretkey"] not in log
    account = {
        "AWS_ENDPOINT_URL": store_endpoint,
        "AWS_ACCESS_KEY_ID": object_store_secret["accesskey"],
        "AWS_SECRET_ACCESS_KEY": object_store_secret["secretkey"],
    }
    store = open_store(f"s3://{bucket}", credentials_from_environment(account))
    keys = [entry.key for entry in store.list()]
    store.delete(keys)
    assert "digits/1/saved_model.pb" in keys
