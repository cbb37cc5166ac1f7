"""Dry runs of every kind of manifest on a real API server with its CRDs, webhooks and admission plugins."""

import base64
import json
import uuid
from dataclasses import replace

import pytest
from cluster.dry_runs import KEYS, as_pod, dry_run, pod_templates, settings_of
from kubernetes import client
from train.programs.jobs import make_job

from kfp_distributed.components.train.describe.manifests import (
    code_config_map,
    job_kind,
    job_manifest,
    object_store_secret,
    volume_claims,
)

pytestmark = pytest.mark.cluster

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
        key: value for case in (*KEYS.values(), *reversed(_keys.values())) for key, value in case.items()
    }
_CASES = [
    pytest.param(
        distribution_type,
        mpi_version,
        keys,
        has_all_settings,
        id=" ".join(filter(None, (distribution_type, mpi_version, name, "" if has_all_settings else "required"))),
        marks=pytest.mark.mpi(mpi_version) if mpi_version else (),
    )
    for distribution_type, keys_of_type in _KEYS_OF_TYPE.items()
    for mpi_version in (("v1", "v2beta1") if distribution_type == "MPI" else (None,))
    for name, keys in {**KEYS, **keys_of_type}.items()
    # v2beta1 does not support elastic training.
    if mpi_version != "v2beta1" or "min_workers" not in keys
    for has_all_settings in ((False, True) if name in ("defaults", "all keys") else (True,))
]


@pytest.mark.parametrize(("distribution_type", "mpi_version", "keys", "has_all_settings"), _CASES)
def test_the_api_server_accepts_the_manifest_without_a_warning(
    restricted, distribution_type, mpi_version, keys, has_all_settings
):
    keys = json.loads(json.dumps(keys).replace("PRIORITY", restricted))
    job = replace(
        make_job(["unused"], {"distribution_type": distribution_type, **keys}, name="digits-0123456789ab"),
        labels={"run": str(uuid.uuid4()), "task": "train"},
    )
    settings = settings_of(restricted, has_all_settings, mpi_version)
    manifest = job_manifest(job, settings)
    assert dry_run(job_kind(distribution_type, mpi_version).plural, restricted, manifest) is None
    assert dry_run("configmaps", restricted, code_config_map(job, settings)) is None
    if secret := object_store_secret(job, settings):
        assert dry_run("secrets", restricted, secret) is None
    for claim in volume_claims(job, settings):
        assert dry_run("persistentvolumeclaims", restricted, claim) is None
    templates = list(pod_templates(manifest))
    assert templates
    if mpi_version == "v2beta1":  # sshd needs more permissions than "restricted" allows.
        return
    for template in templates:
        assert dry_run("pods", restricted, as_pod(template, restricted)) is None


def test_an_unknown_field_is_refused(restricted):
    for distribution_type in ("Job", "TF", "PyTorch"):
        manifest = job_manifest(
            make_job(["unused"], {"distribution_type": distribution_type}), settings_of(restricted, False)
        )
        next(pod_templates(manifest))["spec"]["nonsense"] = 1
        with pytest.raises(client.ApiException, match="nonsense"):
            dry_run(job_kind(distribution_type).plural, restricted, manifest)


def test_a_privileged_pod_is_refused_and_its_job_gets_a_warning(restricted):
    manifest = job_manifest(make_job(["unused"]), settings_of(restricted, False))
    template = next(pod_templates(manifest))
    del template["spec"]["containers"][0]["securityContext"]
    assert "restricted" in dry_run("jobs", restricted, manifest)
    with pytest.raises(client.ApiException, match="restricted"):
        dry_run("pods", restricted, as_pod(template, restricted))


def test_the_size_limit_of_a_program_is_that_of_the_api_server(restricted):
    settings = settings_of(restricted, False)
    config_map = code_config_map(make_job(["unused"]), settings)
    size = len(config_map["data"]["job.json"]) + len(base64.b64decode(config_map["binaryData"]["library.zip"]))
    config_map["data"]["job.json"] += " " * (1024 * 1024 - size)
    dry_run("configmaps", restricted, config_map)
    config_map["data"]["job.json"] += " "
    with pytest.raises(client.ApiException, match="more than 1048576 bytes"):
        dry_run("configmaps", restricted, config_map)
