"""Tests that remove parts of the whole cluster, so that no other training may run at the same time."""

import time

import pytest
from cluster.jobs import SECONDS, left_behind
from cluster.test_failures import TF, failed, refused
from cluster.test_launch import function
from kubernetes import client

pytestmark = [pytest.mark.cluster, pytest.mark.alone, pytest.mark.timeout(900)]

PYTORCHJOBS = "pytorchjobs.kubeflow.org"


@pytest.fixture
def no_pytorchjobs(api, namespace):
    """A cluster without the definition of PyTorchJob. Its deletion deletes all PyTorchJobs, so there must be none."""
    objects, definitions = client.CustomObjectsApi(), client.ApiextensionsV1Api()
    jobs = objects.list_cluster_custom_object("kubeflow.org", "v1", "pytorchjobs")["items"]
    assert not jobs, f"would be deleted: {[job['metadata']['name'] for job in jobs]}"
    definition = api.api_client.sanitize_for_serialization(definitions.read_custom_resource_definition(PYTORCHJOBS))
    definition["metadata"] = {key: definition["metadata"].get(key) for key in ("name", "annotations", "labels")}
    del definition["status"]
    definitions.delete_custom_resource_definition(PYTORCHJOBS)
    try:
        wait_until(lambda: not serves_pytorchjobs(), "PyTorchJob is still served")
        yield
    finally:
        wait_until(lambda: not is_defined(definitions), "the definition of PyTorchJob still exists")
        definitions.create_custom_resource_definition(definition)
        wait_until(serves_pytorchjobs, "PyTorchJob is not served")
    assert_that_the_operator_runs_pytorchjobs(objects, namespace)


def serves_pytorchjobs() -> bool:
    resources = client.CustomObjectsApi().get_api_resources("kubeflow.org", "v1").resources
    return "pytorchjobs" in {resource.name for resource in resources}


def is_defined(definitions) -> bool:
    items = definitions.list_custom_resource_definition().items
    return PYTORCHJOBS in {definition.metadata.name for definition in items}


def assert_that_the_operator_runs_pytorchjobs(objects, namespace: str) -> None:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "python:3.11", "command": ["true"]}]}}
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "restartPolicy": "Never", "template": template}}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "probe"}, "spec": spec}
    path = ("kubeflow.org", "v1", namespace, "pytorchjobs")
    objects.create_namespaced_custom_object(*path, job)
    wait_until(lambda: "status" in objects.get_namespaced_custom_object(*path, "probe"), "the PyTorchJob has no status")
    objects.delete_namespaced_custom_object(*path, "probe")


def wait_until(condition, message: str, seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.5)


def test_a_kind_that_the_cluster_does_not_serve_is_refused(start, no_pytorchjobs):
    # Otherwise a cluster with Kubeflow Trainer would run it.
    keys = {"distribution_type": "PyTorch", "operator": "training-operator"}
    refused(start(function(""), keys), "PyTorchJob", "training operator")
    # The other kinds of the same operator still work.
    step = start(function("print('trained', flush=True)"), TF)
    assert step.verdict()["succeeded"], step.log
    assert left_behind(step) == []


OPERATOR, WEBHOOKS = ("training-operator", "kubeflow"), "validator.training-operator.kubeflow.org"
WEBHOOK = "validator.tfjob.training-operator.kubeflow.org"


def scale_operator(replicas: int) -> None:
    """Set the number of pods of the training operator, and wait until they are ready."""
    apps = client.AppsV1Api()
    apps.patch_namespaced_deployment_scale(*OPERATOR, {"spec": {"replicas": replicas}})

    def is_scaled() -> bool:
        status = apps.read_namespaced_deployment_status(*OPERATOR).status
        return (status.replicas or 0) == (status.ready_replicas or 0) == replicas

    wait_until(is_scaled, f"{OPERATOR[0]} does not have {replicas} replicas")


# Only used by the last tests, because it lasts until the end of the module.
@pytest.fixture(scope="module")
def no_operator(api):
    """A cluster whose training operator, and with it the webhook, does not run."""
    before = client.AppsV1Api().read_namespaced_deployment(*OPERATOR).spec.replicas
    try:
        scale_operator(0)
        yield
    finally:
        scale_operator(before)


@pytest.fixture
def no_webhook(no_operator):
    """A cluster without operator whose API server creates TFJobs without a response of the webhook."""
    configurations = client.AdmissionregistrationV1Api()
    webhooks = configurations.read_validating_webhook_configuration(WEBHOOKS).webhooks
    (index,) = (number for number, webhook in enumerate(webhooks) if webhook.name == WEBHOOK)

    def set_policy(policy: str) -> None:
        test = {"op": "test", "path": f"/webhooks/{index}/name", "value": WEBHOOK}
        change = {"op": "replace", "path": f"/webhooks/{index}/failurePolicy", "value": policy}
        configurations.patch_validating_webhook_configuration(WEBHOOKS, [test, change])

    try:
        set_policy("Ignore")
        yield
    finally:
        set_policy(webhooks[index].failure_policy)


def test_a_webhook_that_does_not_respond_refuses_the_job(start, no_operator):
    """The request is retried for a minute, in case the operator is starting."""
    step = start(function(""), TF)
    cause = refused(step, within=60 + SECONDS)
    assert cause.startswith(
        "refused: the API server would refuse the TFJob of this job: "
        f'Internal error occurred: failed calling webhook "{WEBHOOK}": '
    )


def test_a_missing_operator_is_the_reason_of_waiting_replicas(start, no_webhook):
    step = start(function(""), {**TF, "scheduling_timeout": 15})
    reason = "no operator has set a status of the TFJob"
    reported = step.wait_for(rf"worker-1: waiting \({reason}\)")
    assert reported - step.wait_for("created TFJob") < 15
    failed(step, "scheduling_timeout ran out after 15 s", f"worker-0 not started ({reason})", since=reported)
