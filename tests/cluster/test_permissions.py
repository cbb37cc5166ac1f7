"""deploy/rbac.yaml on a real API server: the account of the steps has the required permissions and no others."""

import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from kubernetes import client, watch

pytestmark = pytest.mark.cluster

RBAC = Path(__file__).parents[2] / "deploy" / "rbac.yaml"
JOBS = ["tfjobs.kubeflow.org", "mpijobs.kubeflow.org", "pytorchjobs.kubeflow.org", "jobs.batch"]

NEEDED = [
    *(f"{verb} {job}" for job in JOBS for verb in ("create", "get", "list", "watch", "patch", "delete")),
    *(f"{verb} configmaps" for verb in ("create", "get")),
    "get configmaps kfp-launcher",
    "create persistentvolumeclaims",
    "get persistentvolumeclaims",
    *(f"{verb} pods" for verb in ("get", "list", "watch")),
    "get pods/log",
    *(f"{verb} events" for verb in ("list", "watch")),
    "get services minio-service",
    "get services seaweedfs",
    "get secrets mlpipeline-minio-artifact",
]

REFUSED = [
    *(f"{verb} pods" for verb in ("create", "patch", "delete")),
    *(f"{verb} pods/{entry}" for entry in ("exec", "attach", "portforward") for verb in ("get", "create")),
    *(f"{verb} secrets" for verb in ("get", "list", "watch", "create", "patch", "delete")),
    "get secrets another-secret",
    *(f"{verb} secrets mlpipeline-minio-artifact" for verb in ("list", "watch", "patch", "delete")),
    "get services",
    "create services",
    *(f"{verb} configmaps" for verb in ("list", "watch", "update", "patch", "delete", "deletecollection")),
    *(f"{verb} configmaps kfp-launcher" for verb in ("update", "patch", "delete")),
    *(f"deletecollection {job}" for job in JOBS),
    "patch tfjobs.kubeflow.org/status",
    "get workflows.argoproj.io",
    "create rolebindings.rbac.authorization.k8s.io",
    "create serviceaccounts/token",
    *(f"{verb} persistentvolumeclaims" for verb in ("list", "patch", "delete")),
    "get nodes",
]


class Account(NamedTuple):
    """The service account `pipeline-runner` of a namespace.

    Attributes:
        namespace: The namespace.
        api: API client with the token of the account.
    """

    namespace: str
    api: client.ApiClient

    def may(self, request: str, namespace: str | None = None) -> bool:
        """Return whether the account may execute a request, "VERB RESOURCE[.GROUP][/SUBRESOURCE] [NAME]"."""
        verb, path, *name = request.split()
        kind, _, subresource = path.partition("/")
        resource, _, group = kind.partition(".")
        attributes = {
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
            "namespace": namespace or self.namespace,
            "name": name[0] if name else "",
        }
        review = client.AuthorizationV1Api(self.api).create_self_subject_access_review(
            {"spec": {"resourceAttributes": attributes}}
        )
        return review.status.allowed


@pytest.fixture(scope="module")
def account(api):
    name = f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    api.create_namespace({"metadata": {"name": name}})
    try:
        api.create_namespaced_service_account(name, {"metadata": {"name": "pipeline-runner"}})
        role, binding = yaml.safe_load_all(RBAC.read_text())
        rbac = client.RbacAuthorizationV1Api()
        rbac.create_namespaced_role(name, role, field_validation="Strict")
        rbac.create_namespaced_role_binding(name, binding, field_validation="Strict")
        token = api.create_namespaced_service_account_token("pipeline-runner", name, {"spec": {}}).status.token
        settings = client.Configuration.get_default_copy()
        settings.cert_file = settings.key_file = None
        settings.api_key = {"authorization": f"Bearer {token}"}
        with client.ApiClient(settings) as session:
            account = Account(name, session)
            # The API server applies new roles with a short delay.
            _wait(lambda: account.may(NEEDED[-1]))
            yield account
    finally:
        api.delete_namespace(name)


TRAINER_NEEDED = [
    *(f"{verb} trainjobs.trainer.kubeflow.org" for verb in ("create", "get", "list", "watch", "patch", "delete")),
    *(f"{verb} trainingruntimes.trainer.kubeflow.org" for verb in ("create", "patch", "delete")),
    "get jobsets.jobset.x-k8s.io",
]
TRAINER_REFUSED = [
    *(f"{verb} trainingruntimes.trainer.kubeflow.org" for verb in ("get", "list", "watch", "update")),
    "get clustertrainingruntimes.trainer.kubeflow.org",
    "patch trainjobs.trainer.kubeflow.org/status",
    "list jobsets.jobset.x-k8s.io",
]


def test_the_permissions_for_kubeflow_trainer_have_a_role_of_their_own(account, api):
    assert [request for request in TRAINER_NEEDED if account.may(request)] == []
    name = "kfp-distributed-other"
    role, binding = yaml.safe_load_all((RBAC.parent / "trainer.yaml").read_text())
    subject = {"kind": "ServiceAccount", "name": name}
    api.create_namespaced_service_account(account.namespace, {"metadata": {"name": name}})
    rbac = client.RbacAuthorizationV1Api()
    rbac.create_namespaced_role(account.namespace, role, field_validation="Strict")
    binding = {**binding, "subjects": [subject]}
    rbac.create_namespaced_role_binding(account.namespace, binding, field_validation="Strict")
    token = api.create_namespaced_service_account_token(name, account.namespace, {"spec": {}}).status.token
    settings = client.Configuration.get_default_copy()
    settings.cert_file = settings.key_file = None
    settings.api_key = {"authorization": f"Bearer {token}"}
    with client.ApiClient(settings) as session:
        other = Account(account.namespace, session)
        _wait(lambda: other.may(TRAINER_NEEDED[-1]))
        assert [request for request in TRAINER_NEEDED if not other.may(request)] == []
        assert [request for request in TRAINER_REFUSED if other.may(request)] == []


def test_required_permissions_are_granted_in_the_namespace_alone(account):
    assert [request for request in NEEDED if not account.may(request)] == []
    assert [request for request in NEEDED if account.may(request, namespace="default")] == []


def test_other_permissions_are_not_granted(account):
    assert [request for request in REFUSED if account.may(request)] == []


def test_the_account_can_read_one_secret_but_not_list_secrets(account, api):
    as_account = client.CoreV1Api(account.api)
    secret = {"metadata": {"name": "mlpipeline-minio-artifact"}, "stringData": {"accesskey": "minio"}}
    api.create_namespaced_secret(account.namespace, secret)
    assert as_account.read_namespaced_secret("mlpipeline-minio-artifact", account.namespace).data
    with pytest.raises(client.ApiException, match="Forbidden"):
        as_account.list_namespaced_secret(account.namespace)


def test_list_and_watch_by_resource_name_require_a_field_selector(account, api):
    """This is why most rules of the Role have no resourceNames."""
    rule = {"apiGroups": [""], "resources": ["limitranges"], "resourceNames": ["one"], "verbs": ["list", "watch"]}
    rbac = client.RbacAuthorizationV1Api()
    rbac.create_namespaced_role(account.namespace, {"metadata": {"name": "named"}, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": "pipeline-runner"}
    binding = {"metadata": {"name": "named"}, "roleRef": {"kind": "Role", "name": "named"}, "subjects": [subject]}
    rbac.create_namespaced_role_binding(account.namespace, binding)
    as_account = client.CoreV1Api(account.api)
    _wait(lambda: account.may("list limitranges one"))
    events = partial(watch.Watch().stream, as_account.list_namespaced_limit_range, account.namespace, timeout_seconds=1)
    assert as_account.list_namespaced_limit_range(account.namespace, field_selector="metadata.name=one").items == []
    assert list(events(field_selector="metadata.name=one")) == []
    with pytest.raises(client.ApiException, match="Forbidden"):
        as_account.list_namespaced_limit_range(account.namespace)
    with pytest.raises(client.ApiException, match="Forbidden"):
        list(events())


def _wait(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition is not true after {seconds} s"
        time.sleep(0.1)
