"""Dry runs of manifests on the API server, with keys and settings that all types of job have."""

import uuid
from dataclasses import replace

from kubernetes import client

from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings, TaskSettings

KEYS = {
    "defaults": {},
    "resources": {"worker_cpus": "500m", "worker_memory": "1Gi", "worker_gpus": 1, "shared_memory": "64Mi"},
    "nodes": {
        "node_selector": {"pool": "gpu"},
        "tolerations": [
            {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
            {"key": "team", "value": "a"},
        ],
    },
    "queue and priority": {
        "queue_name": "team-a",
        "required_topology": "topology.kubernetes.io/zone",
        "priority_class": "PRIORITY",
    },
    "volumes": {
        "volumes": [
            {"name": "existing", "path": "/existing", "read_only": True},
            {"name": "new", "path": "/new", "size": "1.5Gi"},
            {"name": "new.fast", "path": "/fast", "size": "1G", "access_mode": "ReadWriteOnce", "storage_class": "s"},
        ]
    },
    "scheduler and logs": {"scheduler_name": "packing", "tensorboard": True},
    "no restarts": {"restart_limit": 0},
    "kept, with a deadline": {"keep_job": True, "total_timeout": "2h"},
    "unlimited": {"launcher_lost_timeout": "unlimited", "silence_timeout": "unlimited"},
}
_TASK = TaskSettings(
    resources={"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "100m"}},
    node_selector={"disk": "ssd"},
    tolerations=({"key": "spot", "operator": "Exists"},),
    affinity={
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
            }
        }
    },
    env=({"name": "PIP_INDEX_URL", "value": "https://index.example.com/simple"},),
    volumes=({"name": "data", "persistentVolumeClaim": {"claimName": "data"}},),
    volume_mounts=({"name": "data", "mountPath": "/data"},),
)
_SECRET = {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "store", "key": "secretkey"}}}


def settings_of(namespace, has_all_settings, mpi_version=None):
    """Return the settings of a job: only those that are required, or all."""
    settings = ClusterSettings(
        namespace, "python:3.11", library={"kfp_distributed/trainers/__init__.py": b""}, mpi_version=mpi_version
    )
    if not has_all_settings:
        return settings
    return replace(
        settings,
        environment=(_SECRET,),
        object_store={"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "not-secret"},
        packages=("numpy>=1.26,<3",),
        packages_alone=("tf_keras",),
        library={**settings.library, "kfp_distributed/trainers/runtime/entry.py": b"print('hello')\n"},
        owner={"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": str(uuid.uuid4())},
        task=_TASK,
    )


def dry_run(plural, namespace, manifest):
    """Create an object by a strict dry run; return the warning of the API server, if any."""
    root = f"/apis/{manifest['apiVersion']}" if "/" in manifest["apiVersion"] else f"/api/{manifest['apiVersion']}"
    _, _, headers = client.ApiClient().call_api(
        f"{root}/namespaces/{namespace}/{plural}",
        "POST",
        query_params=[("dryRun", "All"), ("fieldValidation", "Strict")],
        header_params={"Content-Type": "application/json"},
        body=manifest,
        auth_settings=["BearerToken"],
        _preload_content=False,
    )
    return headers.get("Warning")


def pod_templates(value):
    """Yield all pod templates in a manifest."""
    if isinstance(value, dict):
        yield from (value["template"],) if "template" in value else ()
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from pod_templates(item)


def as_pod(template, namespace):
    """Return the pod that an operator creates from a template."""
    metadata = {**template["metadata"], "name": "a-pod", "namespace": namespace}
    spec = {**template["spec"], "serviceAccountName": "tests"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
