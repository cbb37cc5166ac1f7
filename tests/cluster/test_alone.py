"""What takes something away from the whole cluster: no other training may run beside these."""

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
    """The cluster knows no PyTorchJob. Each there is would go with its definition, so there must be none."""
    objects, definitions = client.CustomObjectsApi(), client.ApiextensionsV1Api()
    found = objects.list_cluster_custom_object("kubeflow.org", "v1", "pytorchjobs")["items"]
    assert not found, f"would be lost: {[each['metadata']['name'] for each in found]}"
    kept = api.api_client.sanitize_for_serialization(definitions.read_custom_resource_definition(PYTORCHJOBS))
    kept["metadata"] = {key: kept["metadata"].get(key) for key in ("name", "annotations", "labels")}
    del kept["status"]
    definitions.delete_custom_resource_definition(PYTORCHJOBS)
    try:
        wait_until(lambda: not serves_pytorchjobs(), "PyTorchJob does not go away")
        yield
    finally:
        wait_until(lambda: not is_defined(definitions), "its definition does not go away")
        definitions.create_custom_resource_definition(kept)
        wait_until(serves_pytorchjobs, "PyTorchJob does not come back")
    see_that_the_operator_takes_pytorchjobs(objects, namespace)


def serves_pytorchjobs() -> bool:
    kinds = client.CustomObjectsApi().get_api_resources("kubeflow.org", "v1").resources
    return "pytorchjobs" in {each.name for each in kinds}


def is_defined(definitions) -> bool:
    return PYTORCHJOBS in {each.metadata.name for each in definitions.list_custom_resource_definition().items}


def see_that_the_operator_takes_pytorchjobs(objects, namespace: str) -> None:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "python:3.11", "command": ["true"]}]}}
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "restartPolicy": "Never", "template": template}}}
    about = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "again"}}
    path = ("kubeflow.org", "v1", namespace, "pytorchjobs")
    objects.create_namespaced_custom_object(*path, {**about, "spec": spec})
    wait_until(lambda: "status" in objects.get_namespaced_custom_object(*path, "again"), "nobody takes a PyTorchJob up")
    objects.delete_namespaced_custom_object(*path, "again")


def wait_until(condition, otherwise: str, seconds: float = 180) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, otherwise
        time.sleep(0.5)


def test_a_kind_that_the_cluster_does_not_have(start, no_pytorchjobs):
    cause = refused(start(function(""), {"distribution_type": "PyTorch"}))
    assert cause == (
        "refused: the cluster has no PyTorchJob: install the Kubeflow training operator, "
        "or choose another distribution_type (Job needs no operator)"
    )
    # The other kinds of the same operator are not concerned.
    step = start(function("print('trained', flush=True)"), TF)
    assert step.verdict()["succeeded"], step.log
    assert left_behind(step) == []


OPERATOR, WEBHOOKS = ("training-operator", "kubeflow"), "validator.training-operator.kubeflow.org"
WEBHOOK = "validator.tfjob.training-operator.kubeflow.org"


def scale_operator(replicas: int) -> None:
    """Sets how many pods the training operator has, and waits until that is so."""
    apps = client.AppsV1Api()
    apps.patch_namespaced_deployment_scale(*OPERATOR, {"spec": {"replicas": replicas}})

    def is_so() -> bool:
        status = apps.read_namespaced_deployment_status(*OPERATOR).status
        return (status.replicas or 0) == (status.ready_replicas or 0) == replicas

    wait_until(is_so, f"{OPERATOR[0]} has not come to {replicas} replicas")


# Named by the last tests alone, for it lasts to the end of the file.
@pytest.fixture(scope="module")
def no_operator(api):
    """The training operator does not run; its webhook is away with it."""
    before = client.AppsV1Api().read_namespaced_deployment(*OPERATOR).spec.replicas
    try:
        scale_operator(0)
        yield
    finally:
        scale_operator(before)


@pytest.fixture
def no_webhook(no_operator):
    """The API server creates TFJobs without an answer of the operator's webhook."""
    configurations = client.AdmissionregistrationV1Api()
    webhooks = configurations.read_validating_webhook_configuration(WEBHOOKS).webhooks
    (place,) = (number for number, each in enumerate(webhooks) if each.name == WEBHOOK)

    def set_policy(policy: str) -> None:
        is_it = {"op": "test", "path": f"/webhooks/{place}/name", "value": WEBHOOK}
        change = {"op": "replace", "path": f"/webhooks/{place}/failurePolicy", "value": policy}
        configurations.patch_validating_webhook_configuration(WEBHOOKS, [is_it, change])

    try:
        set_policy("Ignore")
        yield
    finally:
        set_policy(webhooks[place].failure_policy)


def test_an_operator_whose_webhook_does_not_answer(start, no_operator):
    """It is asked for a minute: an operator that is just starting is back by then."""
    step = start(function(""), TF)
    cause = refused(step, within=60 + SECONDS)
    assert cause.startswith(
        "refused: the API server would refuse the TFJob of this job: "
        f'Internal error occurred: failed calling webhook "{WEBHOOK}": '
    )


def test_no_operator(start, no_webhook):
    step = start(function(""), {**TF, "scheduling_timeout": 15})
    told = step.wait_for(r"worker-1: waiting \(no operator has taken up the TFJob\)")
    assert told - step.wait_for("is created") < 15
    nobody = "not started (no operator has taken up the TFJob)"
    failed(
        step,
        f"scheduling_timeout ran out after 15 s: worker-0 {nobody}, worker-1 {nobody}",
        since=told,
    )
