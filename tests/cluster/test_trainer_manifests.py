"""Dry runs of TrainJobs on a real API server with the webhooks of Kubeflow Trainer and JobSet."""

import json
import uuid
from dataclasses import replace

import pytest
from cluster.dry_runs import KEYS, as_pod, dry_run, pod_templates, settings_of
from kubernetes import client
from train.programs.jobs import make_job, wait_until

from kfp_distributed.components.train.describe.manifests.train_job import (
    TRAIN_JOB,
    TRAINING_RUNTIME,
    train_job_manifest,
    training_runtime_manifest,
)
from kfp_distributed.components.train.describe.manifests.train_job_names import train_job_names

pytestmark = [pytest.mark.cluster, pytest.mark.trainer]

_GANG = {"gang_scheduling": True, "scheduler_name": "volcano", "queue_name": "team-a"}
_COSCHEDULING = {"gang_scheduling": True, "scheduler_name": "scheduler-plugins-scheduler"}
_KEYS_OF_TYPE = {
    "TF": {
        "chief and evaluator": {"number_of_workers": 3, "number_of_parameter_servers": 2, "evaluator": True},
        "only workers": {"number_of_workers": 3, "number_of_parameter_servers": 0},
        "one worker": {"number_of_workers": 1, "number_of_parameter_servers": 0},
        "gang": _GANG,
        "coscheduling": _COSCHEDULING,
    },
    "PyTorch": {
        "slots": {"number_of_workers": 3, "slots_per_worker": 4},
        "launcher": {"number_of_workers": 3, "slots_per_worker": 4, "launcher_memory": "1Gi"},
        "elastic": {"number_of_workers": 4, "min_workers": 1, "slots_per_worker": 2},
        "gang": _GANG,
        "coscheduling": _COSCHEDULING,
    },
    "MPI": {"slots": {"number_of_workers": 3, "slots_per_worker": 4, "launcher_cpus": 1}},
}
_CASES = [
    pytest.param(
        distribution_type,
        keys,
        has_all_settings,
        id=f"{distribution_type} {name}" if has_all_settings else f"{distribution_type} {name} required",
    )
    for distribution_type, keys_of_type in _KEYS_OF_TYPE.items()
    for name, keys in {**KEYS, **keys_of_type}.items()
    for has_all_settings in ((False, True) if name == "defaults" else (True,))
]


@pytest.fixture
def existing_runtime():
    """A function that creates a TrainingRuntime, because the webhook refuses a TrainJob without one."""
    created = []

    def create(namespace, manifest):
        arguments = (TRAINING_RUNTIME.group, TRAINING_RUNTIME.version, namespace, TRAINING_RUNTIME.plural)
        client.CustomObjectsApi().create_namespaced_custom_object(*arguments, manifest, field_validation="Strict")
        created.append((*arguments, manifest["metadata"]["name"]))

    yield create
    for arguments in created:
        client.CustomObjectsApi().delete_namespaced_custom_object(*arguments)


def _is_accepted(namespace, train_job):
    """Return whether a TrainJob is accepted, without a warning. The webhook learns of a new runtime with a delay."""
    try:
        assert dry_run(TRAIN_JOB.plural, namespace, train_job) is None
    except client.ApiException as error:
        if "must be created before the TrainJob" not in str(error):
            raise
        return False
    return True


def _planned(distribution_type, keys, namespace):
    keys = json.loads(json.dumps(keys).replace("PRIORITY", namespace))
    name = f"digits-{uuid.uuid4().hex[:12]}"
    return replace(
        make_job(["unused"], {"distribution_type": distribution_type, **keys}, name=name),
        labels={"run": str(uuid.uuid4()), "task": "train"},
    )


def _jobset(runtime):
    """Return the JobSet that Trainer creates from a TrainingRuntime, without what its policy adds."""
    metadata = {name: runtime["metadata"][name] for name in ("name", "namespace")}
    template = runtime["spec"]["template"]
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    return {**kind, "metadata": {**metadata, **template["metadata"]}, "spec": template["spec"]}


@pytest.mark.parametrize(("distribution_type", "keys", "has_all_settings"), _CASES)
def test_the_webhooks_accept_the_manifests_without_a_warning(
    restricted, existing_runtime, distribution_type, keys, has_all_settings
):
    job, settings = _planned(distribution_type, keys, restricted), settings_of(restricted, has_all_settings)
    runtime = training_runtime_manifest(job, settings)
    assert dry_run(TRAINING_RUNTIME.plural, restricted, runtime) is None
    existing_runtime(restricted, training_runtime_manifest(job, replace(settings, owner=None)))
    assert wait_until(lambda: _is_accepted(restricted, train_job_manifest(job, settings)))
    assert dry_run("jobsets", restricted, _jobset(runtime)) is None
    replicated_jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    names = {f"{job.name}-{entry['name']}-0" for entry in replicated_jobs}
    assert names == set(train_job_names(job).jobs)
    for entry in replicated_jobs:
        template = entry["template"]
        metadata = {"name": f"{job.name}-{entry['name']}-0", **template["metadata"]}
        manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]}
        assert dry_run("jobs", restricted, manifest) is None
        (pod,) = pod_templates(template["spec"])
        assert dry_run("pods", restricted, as_pod(pod, restricted)) is None


def test_an_unknown_field_of_a_pod_is_refused(restricted):
    job = _planned("TF", {}, restricted)
    manifest = training_runtime_manifest(job, settings_of(restricted, False))
    entry = manifest["spec"]["template"]["spec"]["replicatedJobs"][0]
    entry["template"]["spec"]["template"]["spec"]["nonsense"] = 1
    with pytest.raises(client.ApiException, match="nonsense"):
        dry_run(TRAINING_RUNTIME.plural, restricted, manifest)


def test_a_train_job_without_its_runtime_is_refused(restricted):
    job = _planned("TF", {}, restricted)
    with pytest.raises(client.ApiException, match="must be created before the TrainJob"):
        dry_run(TRAIN_JOB.plural, restricted, train_job_manifest(job, settings_of(restricted, False)))


@pytest.mark.parametrize("distribution_type", ["TF", "MPI"])
def test_the_longest_name_that_is_accepted_is_that_of_jobset(restricted, distribution_type):
    job = _planned(distribution_type, {"evaluator": True} if distribution_type == "TF" else {}, restricted)
    settings = settings_of(restricted, False)
    longest = 43 if distribution_type == "TF" else 44
    manifest = _jobset(training_runtime_manifest(replace(job, name="a" * longest), settings))
    assert dry_run("jobsets", restricted, manifest) is None
    manifest["metadata"]["name"] += "a"
    with pytest.raises(client.ApiException, match="pod names"):
        dry_run("jobsets", restricted, manifest)
