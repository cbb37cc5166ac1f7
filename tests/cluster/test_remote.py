"""Training on another cluster: a second identity, in a namespace that the step's own account knows nothing of.

Set up by the commands of docs/how-to/remote-cluster.md.
"""

import base64
import json
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest
from cluster.jobs import SECONDS, left_behind
from cluster.test_failures import as_account
from cluster.test_launch import function
from compiled import Run
from kfp import dsl
from kubernetes import client

from kfp_distributed.components import train
from kfp_distributed.components.train.identity import identify_training
from kfp_distributed.components.train.launch import job_name
from kfp_distributed.storage import credentials_from_environment, open_store
from kfp_distributed.storage.kfp_store import find_object_store, kubernetes_reader

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DEPLOY = Path(__file__).parents[2] / "deploy"
TF = {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0}
SLEEP = "import time\nprint('begun', flush=True)\ntime.sleep(60)"


@pytest.fixture(scope="module")
def remote(api):
    """A namespace for the jobs, with the account and the Roles of deploy/; yields what its Secret says of it."""
    name = f"kfp-distributed-far-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create_namespace({"metadata": {"name": name, "labels": labels}})
    try:
        files = [("--kustomize", DEPLOY), ("--filename", DEPLOY / "remote.yaml")]
        for option, file in [*files, ("--filename", DEPLOY / "remote-object-store.yaml")]:
            subprocess.run(["kubectl", "apply", "--namespace", name, option, file], check=True)
        token = {}
        until = time.monotonic() + 30
        # The API server fills it in, and learns of the roles, a moment later.
        while not (token.get("token") and _may_make_secrets(name)):
            assert time.monotonic() < until, token.keys()
            time.sleep(0.2)
            token = api.read_namespaced_secret("kfp-distributed-remote", name).data or {}
        yield {
            "host": api.api_client.configuration.host,
            **{key: base64.b64decode(token[key]).decode() for key in ("token", "ca.crt", "namespace")},
        }
    finally:
        api.delete_namespace(name)


def _may_make_secrets(namespace: str) -> bool:
    review = {
        "user": f"system:serviceaccount:{namespace}:kfp-distributed-remote",
        "resourceAttributes": {"namespace": namespace, "verb": "create", "resource": "secrets"},
    }
    return client.AuthorizationV1Api().create_subject_access_review({"spec": review}).status.allowed


@pytest.fixture(scope="module")
def store(object_store_secret):
    """The object store as pods reach it."""
    return {
        "object_store_endpoint": f"http://{find_object_store(kubernetes_reader(), 'kubeflow').endpoint}",
        "object_store_access_key": object_store_secret["accesskey"],
        "object_store_secret_key": object_store_secret["secretkey"],
    }


@pytest.fixture
def describe(api, namespace, tmp_path):
    """Makes the Secret in a namespace of the step's own, and an account there that may read it and nothing else."""
    rbac, about = client.RbacAuthorizationV1Api(), {"metadata": {"name": "reader"}}
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["gpu"], "verbs": ["get"]}
    api.create_namespaced_service_account(namespace, about)
    rbac.create_namespaced_role(namespace, {**about, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": "reader"}
    role = {"kind": "Role", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}
    rbac.create_namespaced_role_binding(namespace, {**about, "roleRef": role, "subjects": [subject]})
    environment = {"KUBECONFIG": as_account(api, namespace, "reader", tmp_path)}

    def make(values):
        api.create_namespaced_secret(namespace, {"metadata": {"name": "gpu"}, "stringData": values})
        return {"namespace": namespace, "cluster_configuration_secret": "gpu", "environment": environment}

    return make


def nothing_is_left(step, remote) -> None:
    assert left_behind(step) == []
    assert left_behind(SimpleNamespace(name=step.name, namespace=remote["namespace"])) == []


def no_secret_is_in(text, remote, store) -> None:
    assert remote["token"] not in text
    assert store["object_store_secret_key"] not in text


def test_a_job_runs_there(start, describe, api, remote, store, store_environment, bucket):
    uri = f"s3://{bucket}/models/{uuid.uuid4().hex}"
    program = function("import time\nprint('begun', flush=True)\ntime.sleep(15)")
    step = start(program, TF, model_uri=uri, **describe({**remote, **store}))
    step.wait_for(r"\[worker-0\] begun")
    place = remote["namespace"]
    job = client.CustomObjectsApi().get_namespaced_custom_object("kubeflow.org", "v1", place, "tfjobs", step.name)
    assert "ownerReferences" not in job["metadata"]
    no_secret_is_in(json.dumps(job), remote, store)
    secret = api.read_namespaced_secret(f"{step.name}-object-store", place)
    assert [each.uid for each in secret.metadata.owner_references] == [job["metadata"]["uid"]]
    assert step.verdict()["succeeded"], step.log
    assert f"the job runs in namespace {place} of {remote['host']}" in step.log
    no_secret_is_in(step.log, remote, store)
    model = open_store(uri, credentials_from_environment(store_environment))
    assert json.loads(model.read("model.json"))["job"] == step.name
    nothing_is_left(step, remote)


def test_the_step_itself_with_the_store_that_is_found_there(
    describe, api, object_store_secret, store_environment, bucket, trainer_image, monkeypatch, tmp_path, remote, capsys
):
    """The component as a pipeline calls it; the namespace of the job has the store's Secret already."""
    secret = {"metadata": {"name": "mlpipeline-minio-artifact"}, "stringData": object_store_secret}
    api.create_namespaced_secret(remote["namespace"], secret)
    for name, value in {**store_environment, **describe(remote)["environment"]}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", os.environ["KUBECONFIG"])
    run_id = str(uuid.uuid4())
    model = dsl.Model(uri=Run(f"s3://{bucket}", run_id).uri("train/model"))
    report = SimpleNamespace(path=str(tmp_path / "report.html"))
    train.python_func(
        train_dataset=dsl.Dataset(uri=f"s3://{bucket}/train_dataset"),
        model=model,
        metrics=dsl.Metrics(),
        report=report,
        train_specification={**function(""), "image": trainer_image},
        cluster_configuration_secret="gpu",
    )
    api.delete_namespaced_secret("mlpipeline-minio-artifact", remote["namespace"])
    job = job_name("train", (run_id, *identify_training(model.uri, {}).distinction))
    assert model.metadata["job"] == job
    shown = capsys.readouterr().out + Path(report.path).read_text()
    assert "mlpipeline-minio-artifact" in shown
    assert f"{job}-object-store" not in shown
    assert remote["token"] not in shown
    assert left_behind(SimpleNamespace(name=job, namespace=remote["namespace"])) == []


def test_a_job_that_is_kept_has_no_keys_any_more(start, describe, remote, store):
    step = start(function(""), {"keep_job": True}, **describe({**remote, **store}))
    assert step.verdict()["succeeded"], step.log
    assert "the job is kept (keep_job)" in step.log
    place = SimpleNamespace(name=step.name, namespace=remote["namespace"])
    assert {each.split()[0] for each in left_behind(place, 1)} == {"jobs", "pods", "configmaps"}
    client.BatchV1Api().delete_namespaced_job(step.name, remote["namespace"], propagation_policy="Foreground")
    nothing_is_left(step, remote)


def test_a_cancelled_step_leaves_nothing_there(start, describe, remote, store):
    step = start(function(SLEEP), **describe({**remote, **store}))
    step.wait_for(r"\[worker-0\] begun")
    os.kill(step.process.pid, signal.SIGTERM)
    step.process.wait(30)
    nothing_is_left(step, remote)


@pytest.mark.takes(26)
def test_a_step_that_is_killed_and_started_again_goes_on_with_its_job(start, describe, remote, store):
    given = describe({**remote, **store})
    program = function(SLEEP.replace("60", "20"))
    first = start(program, **given)
    first.wait_for(r"\[worker-0\] begun")
    first.process.kill()
    first.process.wait()
    same = {key: first.request[key] for key in ("identity", "model_uri")}
    second = start(program, **{**given, **same})
    assert second.verdict()["succeeded"], second.log
    assert "this step goes on with it" in second.log
    nothing_is_left(second, remote)


WRONG = {
    "the token": ({"token": "hush"}, "is not to be used, see its token: Unauthorized"),
    "the authority": ({"ca.crt": ""}, "see its host and ca.crt: the API server https://"),
    "no host": ({"host": None}, "the key host of the Secret {namespace}/gpu is missing: it must be https://"),
    "no key of the store": (
        {"object_store_secret_key": None},
        "the key object_store_secret_key of the Secret {namespace}/gpu is missing",
    ),
    "a host without TLS": ({"host": "http://10.0.0.1"}, "the key host of the Secret {namespace}/gpu is malformed"),
    "a namespace of others": ({"namespace": "kube-system"}, "may not, in namespace kube-system: create jobs.batch, "),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_sentence_and_nothing_is_made(start, describe, remote, store, namespace, case, tmp_path):
    changes, expected = WRONG[case]
    if case == "the authority":
        request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other"
        output = ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
        subprocess.run([*request.split(), *output], check=True, capture_output=True)
        changes = {"ca.crt": (tmp_path / "cert.pem").read_text()}
    values = {**remote, **store, **changes}
    step = start(function(""), **describe({key: value for key, value in values.items() if value is not None}))
    verdict = step.verdict()
    cause = verdict["cause"]
    assert verdict["seconds"] < SECONDS, step.log
    assert expected.format(namespace=namespace) in cause
    assert "\n" not in cause
    no_secret_is_in(step.log, remote, store)
    nothing_is_left(step, remote)
