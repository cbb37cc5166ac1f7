"""Every kind of manifest against a real API server, its CRDs, webhooks and admission: all by dry-run."""

import base64
import json
import uuid
from dataclasses import replace

import pytest
from kubernetes import client
from train.programs.jobs import make_job

from kfp_distributed.components.train.manifests import (
    code_config_map,
    job_kind,
    job_manifest,
    object_store_secret,
    volume_claims,
)
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, TaskSettings

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
            {"name": "there", "path": "/mnt/there", "read_only": True},
            {"name": "made", "path": "/made", "size": "1.5Gi"},
            {"name": "made.fast", "path": "/fast", "size": "1G", "access_mode": "ReadWriteOnce", "storage_class": "s"},
        ]
    },
    "scheduler and logs": {"scheduler_name": "packing", "tensorboard": True},
    "no restarts": {"restart_limit": 0},
    "kept, with a deadline": {"keep_job": True, "total_timeout": "2h"},
    "unlimited": {"launcher_lost_timeout": "unlimited", "silence_timeout": "unlimited"},
}
_OF_TYPE = {
    "Job": {},
    "TF": {
        "chief and evaluator": {
            "number_of_workers": 3,
            "number_of_parameter_servers": 2,
            "evaluator": True,
            "ps_memory": "1Gi",
            "launcher_cpus": 1,
        },
        "workers alone": {"number_of_workers": 3, "number_of_parameter_servers": 0},
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
for _keys in _OF_TYPE.values():
    # Of one key's values the first case's.
    _keys["everything"] = {
        key: value for each in (*_KEYS.values(), *reversed(_keys.values())) for key, value in each.items()
    }
_CASES = [
    pytest.param(
        chosen,
        mpi_version,
        keys,
        id=f"{chosen} {mpi_version} {name}" if mpi_version else f"{chosen} {name}",
        marks=pytest.mark.mpi(mpi_version) if mpi_version else (),
    )
    for chosen, of_type in _OF_TYPE.items()
    for mpi_version in (("v1", "v2beta1") if chosen == "MPI" else (None,))
    for name, keys in {**_KEYS, **of_type}.items()
    # v2beta1 has no elastic training.
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


def _settings(namespace, full, mpi_version=None):
    """Settings with nothing in them, or with all that there can be."""
    settings = ClusterSettings(
        namespace, "python:3.11", library={"kfp_distributed/trainers/__init__.py": b""}, mpi_version=mpi_version
    )
    if not full:
        return settings
    return replace(
        settings,
        environment=(_SECRET,),
        object_store={"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "no secret"},
        packages=("numpy>=1.26,<3",),
        packages_alone=("tf_keras",),
        library={**settings.library, "kfp_distributed/trainers/runtime/entry.py": b"print('hello')\n"},
        owner={"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": str(uuid.uuid4())},
        task=_TASK,
    )


@pytest.fixture(scope="module")
def restricted(api):
    """A namespace that takes pods of the "restricted" Pod Security Standard alone, and warns of jobs that make others.

    Cluster-wide there is a PriorityClass of the same name.
    """
    name = f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    labels = {f"{_STANDARD}/enforce": "restricted", f"{_STANDARD}/warn": "restricted"}
    api.create_namespace({"metadata": {"name": name, "labels": labels}})
    classes = client.SchedulingV1Api()
    classes.create_priority_class({"metadata": {"name": name}, "value": 1})
    # A pod is refused until the namespace has its service account.
    api.create_namespaced_service_account(name, {"metadata": {"name": "tests"}})
    yield name
    classes.delete_priority_class(name)
    api.delete_namespace(name)


def _dry_run(plural, namespace, made):
    """Sends an object strictly and for nothing; returns what the API server warns of."""
    root = f"/apis/{made['apiVersion']}" if "/" in made["apiVersion"] else f"/api/{made['apiVersion']}"
    _, _, headers = client.ApiClient().call_api(
        f"{root}/namespaces/{namespace}/{plural}",
        "POST",
        query_params=[("dryRun", "All"), ("fieldValidation", "Strict")],
        header_params={"Content-Type": "application/json"},
        body=made,
        auth_settings=["BearerToken"],
        _preload_content=False,
    )
    return headers.get("Warning")


def _templates(found):
    """The pod templates that are anywhere in a manifest."""
    if isinstance(found, dict):
        yield from (found["template"],) if "template" in found else ()
        found = list(found.values())
    if isinstance(found, list):
        for each in found:
            yield from _templates(each)


def _as_pod(template, namespace):
    """A pod as an operator makes it of a template."""
    about = {**template["metadata"], "name": "a-pod", "namespace": namespace}
    spec = {**template["spec"], "serviceAccountName": "tests"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


@pytest.mark.parametrize("full", [False, True], ids=["bare", "full"])
@pytest.mark.parametrize(("chosen", "mpi_version", "keys"), _CASES)
def test_the_api_server_takes_it_without_a_warning(restricted, chosen, mpi_version, keys, full):
    keys = json.loads(json.dumps(keys).replace("PRIORITY", restricted))
    job = replace(
        make_job(["unused"], {"distribution_type": chosen, **keys}, name="digits-0123456789ab"),
        labels={"run": str(uuid.uuid4()), "task": "train"},
    )
    settings = _settings(restricted, full, mpi_version)
    made = job_manifest(job, settings)
    assert _dry_run(job_kind(chosen, mpi_version).plural, restricted, made) is None
    assert _dry_run("configmaps", restricted, code_config_map(job, settings)) is None
    if secret := object_store_secret(job, settings):
        assert _dry_run("secrets", restricted, secret) is None
    for claim in volume_claims(job, settings):
        assert _dry_run("persistentvolumeclaims", restricted, claim) is None
    templates = list(_templates(made))
    assert templates
    if mpi_version == "v2beta1":  # sshd wants more than "restricted" allows.
        return
    for template in templates:
        assert _dry_run("pods", restricted, _as_pod(template, restricted)) is None


def test_a_field_that_is_not_there_is_refused(restricted):
    for chosen in ("Job", "TF", "PyTorch"):
        made = job_manifest(make_job(["unused"], {"distribution_type": chosen}), _settings(restricted, False))
        next(_templates(made))["spec"]["nonsense"] = 1
        with pytest.raises(client.ApiException, match="nonsense"):
            _dry_run(job_kind(chosen).plural, restricted, made)


def test_a_pod_that_may_do_more_is_refused_and_a_job_of_it_warned_of(restricted):
    made = job_manifest(make_job(["unused"]), _settings(restricted, False))
    template = next(_templates(made))
    del template["spec"]["containers"][0]["securityContext"]
    assert "restricted" in _dry_run("jobs", restricted, made)
    with pytest.raises(client.ApiException, match="restricted"):
        _dry_run("pods", restricted, _as_pod(template, restricted))


def test_the_largest_program_that_we_send_is_the_largest_that_it_takes(restricted):
    settings = _settings(restricted, False)
    made = code_config_map(make_job(["unused"]), settings)
    used = len(made["data"]["job.json"]) + len(base64.b64decode(made["binaryData"]["library.zip"]))
    made["data"]["job.json"] += " " * (1024 * 1024 - used)
    _dry_run("configmaps", restricted, made)
    made["data"]["job.json"] += " "
    with pytest.raises(client.ApiException, match="more than 1048576 bytes"):
        _dry_run("configmaps", restricted, made)
