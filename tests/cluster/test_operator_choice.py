"""The operator of a job on a cluster that serves TFJob and TrainJob, for accounts that may use one, both or none."""

import time

import pytest
from kubernetes import client

from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.train.describe.manifests import job_kind
from kfp_distributed.components.train.describe.manifests.train_job import TRAIN_JOB
from kfp_distributed.components.train.run.runners.kubernetes.create.choose_operator import (
    OperatorChoice,
    choose_operator,
    own_permissions,
    trainer_offer,
)
from kfp_distributed.components.train.run.runners.kubernetes.create.preflight import missing_permissions

pytestmark = [pytest.mark.cluster, pytest.mark.trainer]

TF_JOB = job_kind("TF")


@pytest.fixture
def account(api, namespace):
    """A function that creates a service account with the permissions for some kinds, and returns its client."""

    def create(*kinds):
        name = "-".join(["account", *(kind.plural for kind in kinds)])
        api.create_namespaced_service_account(namespace, {"metadata": {"name": name}})
        permissions = [entry for kind in kinds for entry in own_permissions(kind)]
        rules = [{"apiGroups": [group], "resources": [plural], "verbs": [verb]} for verb, group, plural in permissions]
        rbac = client.RbacAuthorizationV1Api()
        rbac.create_namespaced_role(namespace, {"metadata": {"name": name}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [{"kind": "ServiceAccount", "name": name}]}
        rbac.create_namespaced_role_binding(namespace, binding)
        token = api.create_namespaced_service_account_token(name, namespace, {"spec": {}}).status.token
        configuration = client.Configuration.get_default_copy()
        configuration.cert_file = configuration.key_file = None
        configuration.api_key = {"authorization": f"Bearer {token}"}
        session = ClusterApi(configuration, namespace)
        deadline = time.monotonic() + 120
        while missing := missing_permissions(session, permissions):  # The API server applies new Roles with a delay.
            assert time.monotonic() < deadline, missing
        return session

    return create


@pytest.mark.parametrize("distribution_type", ["TF", "PyTorch"])
def test_auto_prefers_the_training_operator(namespace, distribution_type):
    kind = f"{distribution_type}Job"
    reason = f"the cluster serves {kind} and TrainJob, and auto prefers {kind}"
    choice = OperatorChoice("training-operator", None, reason, is_logged=True)
    assert choose_operator(connect(namespace), distribution_type, "auto") == choice


def test_auto_takes_what_the_account_may_use(account):
    assert choose_operator(account(TF_JOB, TRAIN_JOB), "TF", "auto").operator == "training-operator"
    assert choose_operator(account(TF_JOB), "TF", "auto").operator == "training-operator"
    verbs = ("create", "get", "list", "watch", "patch", "delete")
    missing = ", ".join(f"{verb} tfjobs.kubeflow.org" for verb in verbs)
    reason = f"the cluster serves TFJob and TrainJob, and the account lacks {missing}"
    choice = OperatorChoice("trainer", None, reason, is_logged=True)
    assert choose_operator(account(TRAIN_JOB), "TF", "auto") == choice


def test_an_account_without_permissions_is_told_those_of_each_operator(account, namespace):
    session = account()
    with pytest.raises(ValueError, match="no operator of the cluster can be used for distribution_type TF: ") as error:
        choose_operator(session, "TF", "auto")
    for part in (
        "for TFJob the account lacks create tfjobs.kubeflow.org, ",
        "; for TrainJob the account lacks create trainjobs.trainer.kubeflow.org, ",
        ", delete trainingruntimes.trainer.kubeflow.org, get jobsets.jobset.x-k8s.io; for both it lacks ",
        f"run kfp-distributed install --namespace {namespace} (",
    ):
        assert part in str(error.value)


def test_any_account_may_read_the_version_of_the_trainer(account):
    assert trainer_offer(account()) == (TRAIN_JOB, True, False, ())


def test_a_trainer_without_runtime_patches_is_outdated(account, monkeypatch):
    """The schema of the cluster without this field, as a Kubeflow Trainer 2.1 publishes it."""
    call = ClusterApi.call

    def call_without_field(self, method, path, *arguments, **settings):
        answer = call(self, method, path, *arguments, **settings)
        if path.startswith("/openapi/v3/"):
            schema = answer["components"]["schemas"]["org.kubeflow.trainer.v1alpha1.TrainJob"]
            del schema["properties"]["spec"]["properties"]["runtimePatches"]
        return answer

    monkeypatch.setattr(ClusterApi, "call", call_without_field)
    session = account(TRAIN_JOB, TF_JOB)
    assert not choose_operator(session, "TF", "auto").is_logged
    with pytest.raises(ValueError, match=r"install Kubeflow Trainer 2\.3"):
        choose_operator(session, "TF", "trainer")
