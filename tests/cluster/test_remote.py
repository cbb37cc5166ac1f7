"""Training on another cluster: another account, in a namespace for which the step's account has no permissions.

Set up by the commands of docs/how-to/remote-cluster.md.
"""

import json
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest
from cluster.jobs import SECONDS, both_operators, job_of, left_behind
from cluster.test_failures import as_account
from cluster.test_launch import ALONE, function
from compiled import Run
from kfp import dsl
from kubernetes import client

from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.cluster_api.reader import reader
from kfp_distributed.components import train
from kfp_distributed.components.train.run.identity import identify_training
from kfp_distributed.components.train.run.training_request.request import job_name
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.storage import credentials_from_environment, open_store
from kfp_distributed.storage.kubeflow.kfp_store import find_object_store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DEPLOY = Path(__file__).parents[2] / "deploy"
SLEEP = "import time\nprint('begun', flush=True)\ntime.sleep(60)"


@pytest.fixture(scope="module")
def remote(api):
    """A namespace for the jobs with the account and the Roles of deploy/. Yields the values of its Secret."""
    name = f"kfp-distributed-remote-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create_namespace({"metadata": {"name": name, "labels": labels}})
    try:
        names = ("remote.yaml", "remote-object-store.yaml", "trainer.yaml", "remote-trainer.yaml")
        for option, file in [("--kustomize", DEPLOY), *(("--filename", DEPLOY / name) for name in names)]:
            subprocess.run(["kubectl", "apply", "--namespace", name, option, file], check=True)
        deadline = time.monotonic() + 120
        # The API server applies the roles with a short delay.
        while not _may_create_secrets(name):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield {
            "host": api.api_client.configuration.host,
            "token": bound_token(name),
            "namespace": name,
            "ca.crt": api.read_namespaced_config_map("kube-root-ca.crt", name).data["ca.crt"],
        }
    finally:
        api.delete_namespace(name)


def bound_token(namespace: str, secret: str = "kfp-distributed-remote-tokens") -> str:
    """Return a new token of the account of a namespace, which is bound to a Secret."""
    command = ["kubectl", "create", "token", "kfp-distributed-remote", "--namespace", namespace, "--duration", "240h"]
    bound = ["--bound-object-kind", "Secret", "--bound-object-name", secret]
    return subprocess.run([*command, *bound], check=True, capture_output=True, text=True).stdout.strip()


def _may_create_secrets(namespace: str) -> bool:
    review = {
        "user": f"system:serviceaccount:{namespace}:kfp-distributed-remote",
        "resourceAttributes": {"namespace": namespace, "verb": "create", "resource": "secrets"},
    }
    return client.AuthorizationV1Api().create_subject_access_review({"spec": review}).status.allowed


@pytest.fixture(scope="module")
def store(object_store_secret):
    """Values of the Secret for the object store, with its address for pods."""
    return {
        "object_store_endpoint": f"http://{find_object_store(reader(connect()), 'kubeflow').endpoint}",
        "object_store_access_key": object_store_secret["accesskey"],
        "object_store_secret_key": object_store_secret["secretkey"],
    }


@pytest.fixture
def create_secret(api, namespace, tmp_path):
    """A function that creates the Secret in the step's namespace, where the step's account may only read it."""
    rbac, metadata = client.RbacAuthorizationV1Api(), {"metadata": {"name": "reader"}}
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["gpu"], "verbs": ["get"]}
    api.create_namespaced_service_account(namespace, metadata)
    rbac.create_namespaced_role(namespace, {**metadata, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": "reader"}
    role = {"kind": "Role", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}
    rbac.create_namespaced_role_binding(namespace, {**metadata, "roleRef": role, "subjects": [subject]})
    environment = {"KUBECONFIG": as_account(api, namespace, "reader", tmp_path)}

    def create(values):
        api.create_namespaced_secret(namespace, {"metadata": {"name": "gpu"}, "stringData": values})
        return {"namespace": namespace, "cluster_configuration_secret": "gpu", "environment": environment}

    return create


def assert_nothing_is_left(step, remote) -> None:
    assert left_behind(step) == []
    assert left_behind(SimpleNamespace(name=step.name, namespace=remote["namespace"])) == []


def assert_no_secret_in(text, remote, store) -> None:
    assert remote["token"] not in text
    assert store["object_store_secret_key"] not in text


@both_operators
def test_a_job_runs_on_the_other_cluster(start, create_secret, api, remote, store, store_environment, bucket):
    uri = f"s3://{bucket}/models/{uuid.uuid4().hex}"
    program = function("import time\nprint('begun', flush=True)\ntime.sleep(15)")
    step = start(program, ALONE, model_uri=uri, **create_secret({**remote, **store}))
    step.wait_for(r"\[worker-0\] begun")
    namespace = remote["namespace"]
    job = job_of(step, namespace)
    assert "ownerReferences" not in job["metadata"]
    assert_no_secret_in(json.dumps(job), remote, store)
    secret = api.read_namespaced_secret(f"{step.name}-object-store", namespace)
    assert [owner.uid for owner in secret.metadata.owner_references] == [job["metadata"]["uid"]]
    assert step.verdict()["succeeded"], step.log
    assert f"namespace {namespace} of {remote['host']}" in step.log
    assert_no_secret_in(step.log, remote, store)
    model = open_store(uri, credentials_from_environment(store_environment))
    assert json.loads(model.read("model.json"))["job"] == step.name
    assert_nothing_is_left(step, remote)


def test_a_component_uses_the_object_store_of_the_other_cluster(
    create_secret,
    api,
    object_store_secret,
    store_environment,
    bucket,
    trainer_image,
    monkeypatch,
    tmp_path,
    remote,
    capsys,
):
    """The namespace of the job has a Secret of the store, so the job creates none."""
    secret = {"metadata": {"name": "mlpipeline-minio-artifact"}, "stringData": object_store_secret}
    api.create_namespaced_secret(remote["namespace"], secret)
    for name, value in {**store_environment, **create_secret(remote)["environment"]}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", os.environ["KUBECONFIG"])
    run_id = str(uuid.uuid4())
    model = dsl.Model(uri=Run(f"s3://{bucket}", run_id).uri("train/model"))
    report = dsl.HTML(uri=str(tmp_path / "report.html"))
    train.python_func(
        train_dataset=dsl.Dataset(uri=f"s3://{bucket}/train_dataset"),
        model=model,
        metrics=dsl.Metrics(),
        report=report,
        train_specification={**function(""), "image": trainer_image},
        cluster_configuration_secret="gpu",
    )
    api.delete_namespaced_secret("mlpipeline-minio-artifact", remote["namespace"])
    job = job_name("train", (run_id, *identify_training(model.uri, {}, log).distinction))
    assert model.metadata["job"] == job
    output = capsys.readouterr().out + Path(report.path).read_text()
    assert "mlpipeline-minio-artifact" in output
    assert f"{job}-object-store" not in output
    assert remote["token"] not in output
    assert left_behind(SimpleNamespace(name=job, namespace=remote["namespace"])) == []


def test_a_kept_job_has_no_secret(start, create_secret, remote, store):
    step = start(function(""), {"keep_job": True}, **create_secret({**remote, **store}))
    assert step.verdict()["succeeded"], step.log
    assert f"kept Job {remote['namespace']}/{step.name} (keep_job)" in step.log
    kept = SimpleNamespace(name=step.name, namespace=remote["namespace"])
    assert {item.split()[0] for item in left_behind(kept, 1)} == {"jobs", "pods", "configmaps"}
    client.BatchV1Api().delete_namespaced_job(step.name, remote["namespace"], propagation_policy="Foreground")
    assert_nothing_is_left(step, remote)


def test_a_cancelled_step_leaves_no_objects_on_the_other_cluster(start, create_secret, remote, store):
    step = start(function(SLEEP), ALONE, **create_secret({**remote, **store}))
    step.wait_for(r"\[worker-0\] begun")
    os.kill(step.process.pid, signal.SIGTERM)
    step.process.wait(120)
    assert_nothing_is_left(step, remote)


@pytest.mark.takes(26)
def test_a_killed_and_retried_step_adopts_its_job_on_the_other_cluster(start, create_secret, remote, store):
    options = create_secret({**remote, **store})
    program = function(SLEEP.replace("60", "20"))
    first = start(program, **options)
    first.wait_for(r"\[worker-0\] begun")
    first.process.kill()
    first.process.wait()
    same = {key: first.request[key] for key in ("identity", "model_uri")}
    second = start(program, **{**options, **same})
    assert second.verdict()["succeeded"], second.log
    assert "adopted the existing Job" in second.log
    assert_nothing_is_left(second, remote)


INVALID = {
    "wrong token": ({"token": "hush"}, "check its token: Unauthorized"),
    "wrong authority": ({"ca.crt": ""}, "check its host and ca.crt: the API server https://"),
    "other namespace": ({"namespace": "kube-system"}, "namespace kube-system: create jobs.batch, "),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_secret_is_refused_with_one_line(start, create_secret, remote, store, case, tmp_path):
    changes, expected = INVALID[case]
    if case == "wrong authority":
        request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other"
        output = ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
        subprocess.run([*request.split(), *output], check=True, capture_output=True)
        changes = {"ca.crt": (tmp_path / "cert.pem").read_text()}
    step = start(function(""), **create_secret({**remote, **store, **changes}))
    verdict = step.verdict()
    cause = verdict["cause"]
    assert verdict["seconds"] < SECONDS, step.log
    assert expected in cause
    assert "\n" not in cause
    assert_no_secret_in(step.log, remote, store)
    assert_nothing_is_left(step, remote)
