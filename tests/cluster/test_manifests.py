"""Dry runs of every kind of manifest on a real API server with its CRDs, webhooks and admission plugins."""

import base64
import json
import uuid
from dataclasses import replace

import pytest
from kubernetes import client
from train.programs.jobs import make_job

from kfp_distributed.components.train.describe.manifests import (
    code_config_map,
    job_kind,
    job_manifest,
    object_store_secret,
    volume_claims,
)
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings, TaskSettings

pytestmark = pytest.mark.cluster

_STANDARD = "pod-security.kubernetes.io"

_KEYS = {
    "defaults": {},
    "resources": {"worker_cpus": "500m", "worker_memory": "1Gi", "worker_gpus": 1, "shared_memory": "64Mi"},
    "nodes": {
        "node_selector": {"pool": "gpu"},
        "tolerations": [
            {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
            {"key": "team", "value": "a"},
        ],
    },
    "queue and priority": {"queue_name": "team-a", "priority_class": "PRIORITY"},
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
_KEYS_OF_TYPE = {
    "Job": {},
    "TF": {
        "chief and evaluator": {
            "number_of_workers": 3,
            "number_of_parameter_servers": 2,
            "evaluator": True,
            "ps_memory": "1Gi",
            "launcher_cpus": 1,
        },
        "only workers": {"number_of_workers": 3, "number_of_parameter_servers": 0},
        "gang": {"gang_scheduling": True, "queue_name": "team-a", "priority_class": "PRIORITY"},
        "workers and evaluator": {"number_of_parameter_servers": 0, "evaluator": True},
    },
    "PyTorch": {
        "slots": {"number_of_workers": 3, "slots_per_worker": 4, "launcher_memory": "1Gi"},
        "elastic": {"min_workers": 1, "max_workers": 4, "slots_per_worker": 2},
        "gang": {"gang_scheduling": True, "min_workers": 1},
    },
    "MPI": {
        "slots": {"number_of_workers": 3, "slots_per_worker": 4, "launcher_cpus": 1},
        "gang": {"gang_scheduling": True, "queue_name": "team-a"},
        "elastic": {"number_of_workers": 3, "min_workers": 1, "max_workers": 4, "slots_per_worker": 2},
    },
}
for _keys in _KEYS_OF_TYPE.values():
    # If several cases have a key, the first case of the type wins.
    _keys["all keys"] = {
        key: value for case in (*_KEYS.values(), *reversed(_keys.values())) for key, value in case.items()
    }
_CASES = [
    pytest.param(
        distribution_type,
        mpi_version,
        keys,
        id=f"{distribution_type} {mpi_version} {name}" if mpi_version else f"{distribution_type} {name}",
        marks=pytest.mark.mpi(mpi_version) if mpi_version else (),
    )
    for distribution_type, keys_of_type in _KEYS_OF_TYPE.items()
    for mpi_version in (("v1", "v2beta1") if distribution_type == "MPI" else (None,))
    for name, keys in {**_KEYS, **keys_of_type}.items()
    # v2beta1 does not support elastic training.
    if mpi_version != "v2beta1" or "min_workers" not in keys
]

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


def _settings(namespace, has_all_settings, mpi_version=None):
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


@pytest.fixture(scope="module")
def restricted(api):
    """A namespace that enforces the Pod Security Standard "restricted", and warns about jobs that violate it.

    A PriorityClass of the cluster has the same name.
    """
    name = f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    labels = {f"{_STANDARD}/enforce": "restricted", f"{_STANDARD}/warn": "restricted"}
    api.create_namespace({"metadata": {"name": name, "labels": labels}})
    classes = client.SchedulingV1Api()
    classes.create_priority_class({"metadata": {"name": name}, "value": 1})
    # Pods are refused until the namespace has their service account.
    api.create_namespaced_service_account(name, {"metadata": {"name": "tests"}})
    yield name
    classes.delete_priority_class(name)
    api.delete_namespace(name)


def _dry_run(plural, namespace, manifest):
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


def _templates(value):
    """Yield all pod templates in a manifest."""
    if isinstance(value, dict):
        yield from (value["template"],) if "template" in value else ()
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _templates(item)


def _as_pod(template, namespace):
    """Return the pod that an operator creates from a template."""
    metadata = {**template["metadata"], "name": "a-pod", "namespace": namespace}
    spec = {**template["spec"], "serviceAccountName": "tests"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("has_all_settings", [False, True], ids=["required settings", "all settings"])
@pytest.mark.parametrize(("distribution_type", "mpi_version", "keys"), _CASES)
def test_the_api_server_accepts_the_manifest_without_a_warning(
    restricted, distribution_type, mpi_version, keys, has_all_settings
):
    keys = json.loads(json.dumps(keys).replace("PRIORITY", restricted))
    job = replace(
        make_job(["unused"], {"distribution_type": distribution_type, **keys}, name="digits-0123456789ab"),
        labels={"run": str(uuid.uuid4()), "task": "train"},
    )
    settings = _settings(restricted, has_all_settings, mpi_version)
    manifest = job_manifest(job, settings)
    assert _dry_run(job_kind(distribution_type, mpi_version).plural, restricted, manifest) is None
    assert _dry_run("configmaps", restricted, code_config_map(job, settings)) is None
    if secret := object_store_secret(job, settings):
        assert _dry_run("secrets", restricted, secret) is None
    for claim in volume_claims(job, settings):
        assert _dry_run("persistentvolumeclaims", restricted, claim) is None
    templates = list(_templates(manifest))
    assert templates
    if mpi_version == "v2beta1":  # sshd needs more permissions than "restricted" allows.
        return
    for template in templates:
        assert _dry_run("pods", restricted, _as_pod(template, restricted)) is None


def test_an_unknown_field_is_refused(restricted):
    for distribution_type in ("Job", "TF", "PyTorch"):
        manifest = job_manifest(
            make_job(["unused"], {"distribution_type": distribution_type}), _settings(restricted, False)
        )
        next(_templates(manifest))["spec"]["nonsense"] = 1
        with pytest.raises(client.ApiException, match="nonsense"):
            _dry_run(job_kind(distribution_type).plural, restricted, manifest)


def test_a_privileged_pod_is_refused_and_its_job_gets_a_warning(restricted):
    manifest = job_manifest(make_job(["unused"]), _settings(restricted, False))
    template = next(_templates(manifest))
    del template["spec"]["containers"][0]["securityContext"]
    assert "restricted" in _dry_run("jobs", restricted, manifest)
    with pytest.raises(client.ApiException, match="restricted"):
        _dry_run("pods", restricted, _as_pod(template, restricted))


def test_the_size_limit_of_a_program_is_that_of_the_api_server(restricted):
    settings = _settings(restricted, False)
    config_map = code_config_map(make_job(["unused"]), settings)
    size = len(config_map["data"]["job.json"]) + len(base64.b64decode(config_map["binaryData"]["library.zip"]))
    config_map["data"]["job.json"] += " " * (1024 * 1024 - size)
    _dry_run("configmaps", restricted, config_map)
    config_map["data"]["job.json"] += " "
    with pytest.raises(client.ApiException, match="more than 1048576 bytes"):
        _dry_run("configmaps", restricted, config_map)
