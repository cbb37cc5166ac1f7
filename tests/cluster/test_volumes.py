"""Volumes, resources and settings of the task in real pods."""

import uuid

import pytest
from cluster import test_mpi
from cluster.jobs import left_behind
from cluster.test_failures import refused
from cluster.test_launch import function
from kubernetes import client, watch

from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

WRITE = """\
from pathlib import Path
print(Path("/mnt/data/note").write_text("kept"), "written")"""
# The end of worker-0 is the end of the job, so worker-0 waits for worker-1 at the end.
READ = """\
import json, os, socket, time
from pathlib import Path
print("found", Path("/mnt/data/note").read_text(), flush=True)
try:
    Path("/mnt/data/note").write_text("lost")
except OSError as error:
    print("refused:", error.strerror, flush=True)
config = json.loads(os.environ["TF_CONFIG"])
host, _, port = config["cluster"]["worker"][1].rpartition(":")
if config["task"]["index"] == 1:
    with socket.create_server(("", int(port))) as server:
        server.accept()
else:
    while True:
        try:
            socket.create_connection((host, int(port)), 5).close()
            break
        except OSError:
            time.sleep(0.2)"""
COMPARE = """\
import os, time
from pathlib import Path
print(os.environ["MODE"], Path("/keys/token").read_text() == os.environ["TOKEN"] == "a b c", flush=True)
time.sleep(15)"""

REPORT = """\
import os, shutil, sys, time
print("shared memory:", shutil.disk_usage("/dev/shm").total // 1024**2, flush=True)
model_dir, tensorboard_dir = sys.argv[1:]
for folder, name in ((model_dir, "weights"), (tensorboard_dir, "events.out")):
    with open(os.path.join(folder, name), "w") as file:
        file.write("1")
time.sleep(30)"""

device = test_mpi.device


@pytest.fixture
def disk(api, namespace):
    """Storage class of an unclaimed volume of 1Gi on the disk of a node."""
    name = f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    # Writable for all users, because the replicas are not root.
    _run_on_node(api, namespace, f"mkdir -m 777 /host/{name}")
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
        "storageClassName": name,
        "hostPath": {"path": f"/tmp/{name}", "type": "Directory"},
    }
    api.create_persistent_volume({"metadata": {"name": name}, "spec": spec})
    yield name
    api.delete_persistent_volume(name)
    _run_on_node(api, namespace, f"rm -r /host/{name}")


def _run_on_node(api, namespace, script):
    """Run a script as root, with the folder /tmp of the node at /host."""
    container = {
        "name": "main",
        "image": "python:3.11",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    }
    volumes = [{"name": "host", "hostPath": {"path": "/tmp"}}]
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    pod = api.create_namespaced_pod(namespace, {"metadata": {"generateName": "disk-"}, "spec": spec})
    events = watch.Watch()
    for event in events.stream(
        api.list_namespaced_pod, namespace, field_selector=f"metadata.name={pod.metadata.name}", timeout_seconds=120
    ):
        if (phase := event["object"].status.phase) in ("Succeeded", "Failed"):
            events.stop()
    assert phase == "Succeeded"


@pytest.fixture
def claim(api, training_namespace):
    """Name of a PersistentVolumeClaim that is deleted after the test."""
    name = f"data-{uuid.uuid4().hex[:8]}"
    yield name
    api.delete_namespaced_persistent_volume_claim(name, training_namespace)


def test_a_claim_is_created_mounted_and_kept_for_the_next_job(start, api, training_namespace, disk, claim):
    volume = {"name": claim, "path": "/mnt/data"}
    new = {**volume, "size": "1Gi", "storage_class": disk, "access_mode": "ReadWriteOnce"}
    first = start(function(WRITE), {"volumes": [new]})
    assert first.verdict()["succeeded"], first.log
    assert "[worker-0] 4 written" in first.log
    assert left_behind(first) == []
    kept = api.read_namespaced_persistent_volume_claim(claim, training_namespace)
    assert (kept.spec.access_modes, kept.metadata.owner_references) == (["ReadWriteOnce"], None)

    # The next job mounts the existing claim in two replicas, read-only.
    workers = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}
    second = start(function(READ), {**workers, "volumes": [{**volume, "read_only": True}]})
    assert second.verdict()["succeeded"], second.log
    for replica in ("worker-0", "worker-1"):
        assert f"[{replica}] found kept" in second.log
        assert f"[{replica}] refused: Read-only file system" in second.log


def test_a_claim_that_is_missing_is_named_before_anything_is_created(start, training_namespace):
    claim = f"data-{uuid.uuid4().hex[:8]}"
    step = start(function("pass"), {"volumes": [{"name": claim, "path": "/mnt/data"}]})
    refused(step, "volumes: ", f"PersistentVolumeClaim {training_namespace}/{claim}")


def test_settings_of_the_task_apply_to_the_pods(start, api, training_namespace):
    name = f"keys-{uuid.uuid4().hex[:8]}"
    api.create_namespaced_secret(training_namespace, {"metadata": {"name": name}, "stringData": {"token": "a b c"}})
    config = {
        "env": [
            {"name": "MODE", "value": "fast"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": "token"}}},
        ],
        "resources": {"limits": {"memory": "300Mi"}, "requests": {"memory": "100Mi"}},
        "volumes": [{"name": "keys", "secret": {"secretName": name}}],
        "volume_mounts": [{"name": "keys", "mountPath": "/keys", "readOnly": True}],
        "tolerations": [{"key": "unused", "operator": "Exists"}],
        "node_selector": {"kubernetes.io/os": "linux"},
        "affinity": None,
    }
    step = start(function(COMPARE), task_config=config)
    step.wait_for(r"\[worker-0\] fast True")
    (pod,) = api.list_namespaced_pod(training_namespace, label_selector=f"kfp-distributed/job={step.name}").items
    spec = client.ApiClient().sanitize_for_serialization(pod.spec)
    assert spec["containers"][0]["resources"] == config["resources"]
    assert spec["nodeSelector"] == config["node_selector"]
    assert config["tolerations"][0] in spec["tolerations"]
    assert step.verdict()["succeeded"], step.log
    assert "a b c" not in step.log


@pytest.fixture
def priority():
    """Name of a PriorityClass."""
    classes, name = client.SchedulingV1Api(), f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    classes.create_priority_class({"metadata": {"name": name}, "value": 7})
    yield name
    classes.delete_priority_class(name)


@pytest.mark.takes(35)
def test_settings_of_the_specification_apply_to_the_pods(start, api, bucket, store_environment, device, priority):
    device("2")
    distribution = {
        "distribution_type": "TF",
        "number_of_workers": 1,
        "number_of_parameter_servers": 1,
        "worker_gpus": 1,
        "gpu_resource": device.name,
        "shared_memory": "48Mi",
        "priority_class": priority,
        "tensorboard": True,
    }
    command = ["python3", "-c", REPORT, "{model_dir}", "{tensorboard_dir}"]
    step = start({"command": command}, distribution)
    replicas = ("chief-0", "ps-0", "worker-0")
    for replica in replicas:
        step.wait_for(rf"\[{replica}\] shared memory: 48$")
    pods = api.list_namespaced_pod(step.namespace, label_selector=f"kfp-distributed/job={step.name}").items
    limits = {pod.metadata.name: pod.spec.containers[0].resources.limits for pod in pods}
    gpu = {device.name: "1"}
    assert limits == {f"{step.name}-{replica}": gpu if replica.startswith("worker") else None for replica in replicas}
    assert {(pod.spec.priority_class_name, pod.spec.priority) for pod in pods} == {(priority, 7)}
    assert step.verdict()["succeeded"], step.log
    logs = open_store(
        f"s3://{bucket}/checkpoints/{step.name}/metrics/tensorboard", credentials_from_environment(store_environment)
    )
    assert f"TensorBoard's logs: {logs.uri}" in step.log
    assert {entry.key: logs.read(entry.key) for entry in logs.list()} == {"events.out": b"1"}
    assert left_behind(step) == []
