"""`kfp-distributed doctor` and `render` on a real cluster, for a prepared and an empty namespace."""

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

ROLES = [Path(__file__).parents[2] / "deploy" / name for name in ("rbac.yaml", "deploy-model.yaml")]
SECRET = "mlpipeline-minio-artifact"


@pytest.fixture
def empty_namespace(api):
    name = f"kd-cli-{uuid.uuid4().hex[:8]}"
    api.create_namespace({"metadata": {"name": name}})
    yield name
    api.delete_namespace(name)


@pytest.fixture(scope="module")
def prepared_namespace(api, object_store_secret, store_environment):
    """A namespace with the service account, the Role, the Secret and a bucket of the same name."""
    name = f"kd-cli-{uuid.uuid4().hex[:8]}"
    api.create_namespace({"metadata": {"name": name}})
    try:
        api.create_namespaced_service_account(name, {"metadata": {"name": "pipeline-runner"}})
        api.create_namespaced_secret(name, {"metadata": {"name": SECRET}, "stringData": object_store_secret})
        rbac = client.RbacAuthorizationV1Api()
        for file in ROLES:
            role, binding = yaml.safe_load_all(file.read_text())
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
    """Run `doctor`; return its exit code, the level of each check by name, and its output."""
    arguments = ["doctor", "--namespace", namespace, "--service-account", "pipeline-runner", *options]
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, levels_of(result.output), result.output


def levels_of(output):
    """Return the level of each check in the output of `doctor` by name."""
    lines = [line for line in output.splitlines() if not line.startswith("  ")]
    return {line[9:].partition(": ")[0]: line.split()[0] for line in lines}


def doctor_with_retries(namespace, *options):
    """Run `doctor` until it succeeds, because the API server applies new roles with a short delay."""
    deadline = time.monotonic() + 120
    while (result := doctor(namespace, *options))[0] and time.monotonic() < deadline:
        time.sleep(0.5)
    return result


def test_a_prepared_namespace_passes_all_checks(prepared_namespace, object_store_secret):
    code, levels, output = doctor_with_retries(prepared_namespace, "--bucket", f"s3://{prepared_namespace}/models")
    assert code == 0, output
    # Whether a node has the image depends on the cluster.
    assert {"failed", "warning"}.isdisjoint(level for name, level in levels.items() if name != "image"), output
    jobs = {"Job", "TFJob", "PyTorchJob", "MPIJob"}
    assert {"cluster", *jobs, "permissions", "object store", "secret", "bucket", "image"} <= levels.keys()
    assert f"s3://{prepared_namespace}/models can be listed with the keys of the Secret" in output
    assert object_store_secret["secretkey"] not in output


def test_the_commands_of_the_output_prepare_an_empty_namespace(empty_namespace, object_store_secret, tmp_path, bucket):
    options = ("--distribution", '{"distribution_type": "TF"}', "--bucket", f"s3://{bucket}/models")
    code, levels, output = doctor(empty_namespace, *options)
    assert code == 1
    assert {name for name, level in levels.items() if level == "failed"} == {"service account", "permissions", "secret"}
    assert "MPIJob" not in levels
    assert "persistentvolumeclaims" not in output
    commands = re.findall(r"^failed .*\n +-> (.*)$", output, re.MULTILINE)
    assert commands == [
        f"kubectl create serviceaccount pipeline-runner --namespace {empty_namespace}",
        f"kfp-distributed install --namespace {empty_namespace}",
        f"kubectl create secret generic {SECRET} --namespace {empty_namespace} "
        "--from-file accesskey=FILE --from-file secretkey=FILE",
    ]
    for key, value in object_store_secret.items():
        (tmp_path / key).write_text(value)
    for command in commands:
        program, *arguments = re.sub(r"(\w+)=FILE", rf"\1={tmp_path}/\1", command).split()
        if program == "kfp-distributed":
            assert CliRunner().invoke(main, arguments).exit_code == 0
        else:
            subprocess.run([program, *arguments], check=True)
    code, levels, output = doctor_with_retries(empty_namespace, *options)
    assert (code, "failed" in levels.values()) == (0, False), output


@pytest.mark.trainer
def test_auto_takes_the_operator_that_the_account_may_use(api, empty_namespace):
    """First with the permissions for both, then only with those for Kubeflow Trainer."""
    api.create_namespaced_service_account(empty_namespace, {"metadata": {"name": "pipeline-runner"}})
    installed = CliRunner().invoke(main, ["install", "--namespace", empty_namespace, "--trainer"])
    assert installed.exit_code == 0, installed.output
    options = ("--distribution", '{"distribution_type": "TF"}')
    older = "auto takes training-operator: the cluster serves TFJob and TrainJob, and auto prefers TFJob"
    output = output_with(older, empty_namespace, *options)
    assert {"training-operator", "TFJob", "TrainJob"} <= levels_of(output).keys()
    assert {"kubeflow-trainer", "jobset"}.isdisjoint(levels_of(output))
    rbac = client.RbacAuthorizationV1Api()
    role = rbac.read_namespaced_role("kfp-distributed-train", empty_namespace)
    role.rules = [rule for rule in role.rules if rule.api_groups != ["kubeflow.org"]]
    rbac.replace_namespaced_role(role.metadata.name, empty_namespace, role)
    newer = (
        "auto takes trainer: the cluster serves TFJob and TrainJob, and the account lacks create tfjobs.kubeflow.org, "
    )
    levels = levels_of(output_with(newer, empty_namespace, *options))
    names = ("operator of TF", "kubeflow-trainer", "jobset", "permissions")
    assert {name: levels[name] for name in names} == dict.fromkeys(names, "ok")
    assert "training-operator" not in levels


@pytest.mark.trainer
def test_the_permissions_for_a_required_trainer_are_granted_by_the_fix(api, empty_namespace):
    api.create_namespaced_service_account(empty_namespace, {"metadata": {"name": "pipeline-runner"}})
    CliRunner().invoke(main, ["install", "--namespace", empty_namespace])
    options = ("--distribution", '{"distribution_type": "PyTorch", "operator": "trainer"}')
    output = output_with(
        "; create, patch, delete trainingruntimes.trainer.kubeflow.org; get jobsets.jobset.x-k8s.io\n",
        empty_namespace,
        *options,
    )
    (fix,) = re.findall(r"^failed +permissions: .*\n +-> (.*)$", output, re.MULTILINE)
    assert fix == f"kfp-distributed install --namespace {empty_namespace} --trainer"
    assert CliRunner().invoke(main, fix.split()[1:]).exit_code == 0
    output_with("pipeline-runner has all permissions that a train step needs", empty_namespace, *options)


def output_with(text, namespace, *options):
    """Run `doctor` until its output has a text, because the API server applies new roles with a short delay."""
    deadline = time.monotonic() + 120
    while text not in (output := doctor(namespace, *options)[2]):
        assert time.monotonic() < deadline, output
        time.sleep(0.5)
    return output


def test_permissions_for_volumes_are_checked(empty_namespace):
    volume = {"name": "scratch", "path": "/scratch", "size": "1Gi"}
    _, levels, output = doctor(empty_namespace, "--distribution", json.dumps({"volumes": [volume]}))
    assert levels["permissions"] == "failed"
    assert "; create, get persistentvolumeclaims" in output


def test_a_missing_bucket_and_wrong_keys_are_reported(api, prepared_namespace, object_store_secret):
    code, levels, output = doctor(prepared_namespace, "--bucket", "s3://kd-cli-missing-bucket")
    assert (code, levels["bucket"]) == (1, "failed"), output
    wrong = base64.b64encode(b"wrong-one").decode()
    api.patch_namespaced_secret(SECRET, prepared_namespace, {"data": {"secretkey": wrong}})
    code, levels, output = doctor(prepared_namespace, "--bucket", f"s3://{prepared_namespace}")
    assert (code, levels["secret"], levels["bucket"]) == (1, "ok", "failed"), output
    api.patch_namespaced_secret(SECRET, prepared_namespace, {"data": {"accesskey": None}})
    code, levels, output = doctor(prepared_namespace)
    assert (code, levels["secret"], levels["bucket"]) == (1, "failed", "warning"), output
    assert "wrong-one" not in output
    api.patch_namespaced_secret(SECRET, prepared_namespace, {"stringData": object_store_secret})


def test_a_missing_namespace_is_reported():
    code, levels, output = doctor("kd-cli-missing")
    assert (code, levels["namespace"]) == (1, "failed"), output


@pytest.fixture
def runner_configuration(configure_account, prepared_namespace):
    """KUBECONFIG of the service account of the steps, which has no permissions outside of its namespace."""
    return configure_account(prepared_namespace, "pipeline-runner")


@pytest.mark.parametrize(
    ("change", "fault", "advice"),
    [
        (
            {"contexts": [{"name": "it", "context": {"cluster": "it", "user": "nobody"}}]},
            "context it names user nobody, which is not in the configuration: ",
            "kubectl config get-users, and name one of them: kubectl config set-context it --user NAME",
        ),
        (
            {"users": [{"name": "pipeline-runner", "user": {"token": "wrong"}}]},
            "the API server rejects the credentials of user pipeline-runner of context it: ",
            "log in again, or set a valid token: kubectl config set-credentials pipeline-runner --token TOKEN",
        ),
    ],
)
def test_wrong_credentials_are_reported(runner_configuration, change, fault, advice):
    file, content = runner_configuration
    file.write_text(json.dumps(content | change))
    result = CliRunner().invoke(main, ["doctor"])
    line, next_line = result.output.splitlines()
    assert (result.exit_code, next_line) == (1, f"         -> {advice}")
    assert line.startswith(f"failed   user: {fault}")


@pytest.mark.usefixtures("runner_configuration")
def test_the_account_of_the_steps_gets_warnings_for_checks_that_it_may_not_run(prepared_namespace, monkeypatch):
    """It may not read operators and nodes, and may not review the permissions of other accounts."""
    monkeypatch.delenv("KFP_DISTRIBUTED_TENSORFLOW_IMAGE", raising=False)
    bucket = ["--bucket", f"s3://{prepared_namespace}"]
    result = CliRunner().invoke(main, ["doctor", *bucket])
    assert result.exit_code == 0, result.output
    assert f"system:serviceaccount:{prepared_namespace}:pipeline-runner has all permissions" in result.output
    assert "warning  training-operator: cannot check whether it runs" in result.output
    assert "warning  image: cannot check whether a node has python:3.11" in result.output
    result = CliRunner().invoke(main, ["doctor", "--service-account", "pipeline-runner", *bucket])
    assert result.exit_code == 0, result.output
    assert "warning  permissions: cannot check the permissions of" in result.output


@pytest.mark.parametrize("kind", ["Job", "TF", "PyTorch"])
def test_the_api_server_accepts_fully_rendered_objects(empty_namespace, kind):
    volume = {"name": "scratch", "path": "/scratch", "size": "1Gi"}
    distribution = {"distribution_type": kind, "volumes": [volume]}
    options = ["--distribution-specification", json.dumps(distribution), "--namespace", empty_namespace, "--full"]
    program = '{"command": ["python", "/app/main.py"]}'
    rendered = CliRunner().invoke(main, ["render", "--train-specification", program, *options])
    command = ["kubectl", "create", "--dry-run=server", "--validate=strict", "--filename", "-"]
    created = subprocess.run(command, input=rendered.output, capture_output=True, text=True, check=False)
    assert created.returncode == 0, created.stderr
    assert created.stdout.count("created") == 3
