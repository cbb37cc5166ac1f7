"""`kfp-distributed doctor` and `render` on a real cluster: a namespace that is in order, and a bare one."""

import base64
import json
import re
import subprocess
import time
import uuid
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from kubernetes import client

from kfp_distributed.cli.main import main
from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = pytest.mark.cluster

RBAC = Path(__file__).parents[2] / "deploy" / "rbac.yaml"
SECRET = "mlpipeline-minio-artifact"


@pytest.fixture
def bare(api):
    name = f"kd-cli-{uuid.uuid4().hex[:8]}"
    api.create_namespace({"metadata": {"name": name}})
    yield name
    api.delete_namespace(name)


@pytest.fixture(scope="module")
def good(api, object_store_secret, store_environment):
    """A namespace with the service account, the Role, the Secret and a bucket of its name."""
    name = f"kd-cli-{uuid.uuid4().hex[:8]}"
    api.create_namespace({"metadata": {"name": name}})
    try:
        api.create_namespaced_service_account(name, {"metadata": {"name": "pipeline-runner"}})
        api.create_namespaced_secret(name, {"metadata": {"name": SECRET}, "stringData": object_store_secret})
        role, binding = yaml.safe_load_all(RBAC.read_text())
        rbac = client.RbacAuthorizationV1Api()
        rbac.create_namespaced_role(name, role)
        rbac.create_namespaced_role_binding(name, binding)
        open_store(f"s3://{name}", credentials_from_environment(store_environment)).make_bucket()
        yield name
    finally:
        api.delete_namespace(name)


@pytest.fixture(autouse=True)
def _store_from_here(monkeypatch, store_endpoint):
    monkeypatch.setenv("AWS_ENDPOINT_URL", store_endpoint)


def doctor(namespace, *options):
    """Its exit code, and what it says by the name of the check."""
    arguments = ["doctor", "--namespace", namespace, "--service-account", "pipeline-runner", *options]
    result = CliRunner().invoke(main, arguments)
    lines = [line for line in result.output.splitlines() if not line.startswith("  ")]
    return result.exit_code, {line[9:].partition(": ")[0]: line.split()[0] for line in lines}, result.output


def doctor_when_roles_are_known(namespace, *options):
    """The API server learns of new roles a moment after they are there."""
    end = time.monotonic() + 30
    while (result := doctor(namespace, *options))[0] and time.monotonic() < end:
        time.sleep(0.5)
    return result


def test_a_namespace_that_is_in_order(good, object_store_secret):
    code, levels, output = doctor_when_roles_are_known(good, "--bucket", f"s3://{good}/models")
    assert code == 0, output
    unknown = {"image"}  # Whether a node has it, and which operator serves MPIJob, differs from cluster to cluster.
    assert {"failed", "warning"}.isdisjoint(level for name, level in levels.items() if name not in unknown), output
    jobs = {"Job", "TFJob", "PyTorchJob", "MPIJob"}
    assert {"cluster", *jobs, "permissions", "object store", "secret", "bucket", "image"} <= levels.keys()
    assert f"s3://{good}/models can be listed with the keys of the Secret" in output
    assert object_store_secret["secretkey"] not in output


def test_a_bare_namespace_lacks_what_its_output_then_mends(bare, object_store_secret, tmp_path):
    code, levels, output = doctor(bare, "--distribution", '{"distribution_type": "TF"}')
    assert code == 1
    assert {name for name, level in levels.items() if level == "failed"} == {"service account", "permissions", "secret"}
    assert "MPIJob" not in levels
    assert "persistentvolumeclaims" not in output
    fixes = re.findall(r"^failed .*\n +-> (.*)$", output, re.MULTILINE)
    assert fixes == [
        f"kubectl create serviceaccount pipeline-runner --namespace {bare}",
        f"kfp-distributed install --namespace {bare}",
        f"kubectl create secret generic {SECRET} --namespace {bare} "
        "--from-file accesskey=FILE --from-file secretkey=FILE",
    ]
    for key, value in object_store_secret.items():
        (tmp_path / key).write_text(value)
    for fix in fixes:
        program, *arguments = re.sub(r"(\w+)=FILE", rf"\1={tmp_path}/\1", fix).split()
        if program == "kfp-distributed":
            assert CliRunner().invoke(main, arguments).exit_code == 0
        else:
            subprocess.run([program, *arguments], check=True)
    code, levels, output = doctor_when_roles_are_known(bare, "--distribution", '{"distribution_type": "TF"}')
    assert (code, "failed" in levels.values()) == (0, False), output


def test_volumes_that_the_step_would_make(bare):
    volume = {"name": "scratch", "path": "/scratch", "size": "1Gi"}
    _, levels, output = doctor(bare, "--distribution", json.dumps({"volumes": [volume]}))
    assert levels["permissions"] == "failed"
    assert "; create, get persistentvolumeclaims" in output


def test_a_bucket_that_is_not_there_and_keys_that_are_wrong(api, good, object_store_secret):
    code, levels, output = doctor(good, "--bucket", "s3://nobody-has-made-this")
    assert (code, levels["bucket"]) == (0, "warning"), output
    wrong = base64.b64encode(b"wrong-one").decode()
    api.patch_namespaced_secret(SECRET, good, {"data": {"secretkey": wrong}})
    code, levels, output = doctor(good, "--bucket", f"s3://{good}")
    assert (code, levels["secret"], levels["bucket"]) == (1, "ok", "failed"), output
    api.patch_namespaced_secret(SECRET, good, {"data": {"accesskey": None}})
    code, levels, output = doctor(good)
    assert (code, levels["secret"], levels["bucket"]) == (1, "failed", "warning"), output
    assert "wrong-one" not in output
    api.patch_namespaced_secret(SECRET, good, {"stringData": object_store_secret})


def test_a_namespace_that_is_not_there():
    code, levels, output = doctor("kd-cli-nobody-has-made-this")
    assert (code, levels["namespace"]) == (1, "failed"), output


@pytest.fixture
def runner_configuration(api, good, tmp_path, monkeypatch):
    """KUBECONFIG of the steps' own service account, which may look at nothing beside its own namespace."""
    token = api.create_namespaced_service_account_token("pipeline-runner", good, {"spec": {}}).status.token
    settings = client.Configuration.get_default_copy()
    cluster = {"server": settings.host, "certificate-authority": settings.ssl_ca_cert}
    file = tmp_path / "kubeconfig"
    content = {
        "current-context": "runner",
        "contexts": [{"name": "runner", "context": {"cluster": "it", "user": "runner", "namespace": good}}],
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "runner", "user": {"token": token}}],
    }
    file.write_text(json.dumps(content))
    monkeypatch.setenv("KUBECONFIG", str(file))
    # What the client has read of it when it was imported.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    return file, content


@pytest.mark.parametrize(
    ("change", "message", "fix"),
    [
        (
            {"contexts": [{"name": "runner", "context": {"cluster": "it", "user": "nobody"}}]},
            "context runner names user nobody, which is not in the configuration: ",
            "kubectl config get-users, and name one of them: kubectl config set-context runner --user NAME",
        ),
        (
            {"users": [{"name": "runner", "user": {"token": "wrong"}}]},
            "the API server rejects the credentials of user runner of context runner: ",
            "log in again, or set a valid token: kubectl config set-credentials runner --token TOKEN",
        ),
    ],
)
def test_an_api_server_that_does_not_know_us(runner_configuration, change, message, fix):
    file, content = runner_configuration
    file.write_text(json.dumps(content | change))
    done = CliRunner().invoke(main, ["doctor"])
    line, below = done.output.splitlines()
    assert (done.exit_code, below) == (1, f"         -> {fix}")
    assert line.startswith(f"failed   user: {message}")


@pytest.mark.usefixtures("runner_configuration")
def test_as_the_steps_account_itself(good, monkeypatch):
    """It sees neither operators nor nodes, and may ask for nobody else; it says so, and all it needs is there."""
    monkeypatch.delenv("KFP_DISTRIBUTED_TENSORFLOW_IMAGE", raising=False)
    result = CliRunner().invoke(main, ["doctor", "--bucket", f"s3://{good}"])
    assert result.exit_code == 0, result.output
    assert (
        f"system:serviceaccount:{good}:pipeline-runner has all permissions that a train step needs in {good}"
        in result.output
    )
    assert "warning  training-operator: cannot check whether it runs" in result.output
    assert "warning  image: cannot check whether a node has python:3.11" in result.output
    asked = CliRunner().invoke(main, ["doctor", "--service-account", "pipeline-runner", "--bucket", f"s3://{good}"])
    assert asked.exit_code == 0, asked.output
    assert "warning  permissions: cannot see what pipeline-runner may do" in asked.output


@pytest.mark.parametrize("kind", ["Job", "TF", "PyTorch"])
def test_the_api_server_takes_what_is_rendered_in_full(bare, kind):
    volume = {"name": "scratch", "path": "/scratch", "size": "1Gi"}
    distribution = {"distribution_type": kind, "volumes": [volume]}
    options = ["--distribution-specification", json.dumps(distribution), "--namespace", bare, "--full"]
    program = '{"command": ["python", "/app/main.py"]}'
    made = CliRunner().invoke(main, ["render", "--train-specification", program, *options])
    command = ["kubectl", "create", "--dry-run=server", "--validate=strict", "--filename", "-"]
    taken = subprocess.run(command, input=made.output, capture_output=True, text=True, check=False)
    assert taken.returncode == 0, taken.stderr
    assert taken.stdout.count("created") == 3
