"""Tokens of a remote cluster: the documented commands create, renew and revoke them, and running steps survive it."""

import base64
import json
import os
import subprocess
import time
import uuid

import pytest
from cluster.test_launch import ALONE, function
from cluster.test_remote import assert_nothing_is_left, bound_token, create_secret, remote, store
from code_blocks import ROOT, read_blocks
from kubernetes import config

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.cluster_api.reader import reader
from kfp_distributed.components.train.run.runners.kubernetes.connect.remote import open_remote_cluster
from kfp_distributed.components.train.run.runners.kubernetes.connect.remote_token import read_claims, renewal_command
from kfp_distributed.components.train.tell.log_format import log

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

__all__ = ["create_secret", "remote", "store"]  # Fixtures.

REVOKED_SECONDS = 30
"""The API server may accept a revoked token for 10 s, in which it does not verify it again."""


@pytest.fixture
def documented(api, namespace, tmp_path):
    """A function that runs the shell blocks of a section of the page, with the names of this test.

    The context `gpu` is the cluster of the tests, the pipelines run in `namespace`, and the jobs in another one.
    """
    jobs, kubeconfig = f"kfp-distributed-{uuid.uuid4().hex[:8]}", tmp_path / "kubeconfig"
    _, active = config.list_kube_config_contexts()
    view = ["kubectl", "config", "view", "--raw", "--flatten", "--output", "json"]
    content = json.loads(subprocess.run(view, check=True, capture_output=True, text=True).stdout)
    content["contexts"].append({"name": "gpu", "context": active["context"]})
    kubeconfig.write_text(json.dumps(content))
    api.create_namespaced_service_account(namespace, {"metadata": {"name": "pipeline-runner"}})
    for name in ("object_store_access_key", "object_store_secret_key"):
        (tmp_path / name).write_text("hush")
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    page = (ROOT / "docs" / "how-to" / "remote-cluster.md").read_text()
    names = {
        "namespace training": f"namespace {jobs}",
        "namespace=training": f"namespace={jobs}",
        "namespace kubeflow": f"namespace {namespace}",
        "kubeflow:pipeline-runner": f"{namespace}:pipeline-runner",
        "https://gpu.example.com:6443": api.api_client.configuration.host,
    }

    def run(section):
        for block in read_blocks(page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]):
            code = block.code
            for name, value in names.items():
                code = code.replace(name, value)
            environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
            if block.language == "sh":
                shell = ["bash", "-euo", "pipefail", "-c", code]
                yield subprocess.run(shell, env=environment, cwd=tmp_path, check=True, timeout=240)

    yield run
    api.delete_namespace(jobs)


def test_the_documented_commands_create_renew_and_revoke_a_token(documented, api, namespace):
    for section in ("Set up the remote cluster", "Create the Secret"):
        assert list(documented(section))
    read = reader(connect())
    cluster, remote_api, token = open_remote_cluster(read, namespace, "gpu-cluster", log)
    first, claims = token.current, read_claims(token.current)
    assert claims[1:] == (cluster.namespace, "kfp-distributed-remote", "kfp-distributed-remote-tokens")
    # The API server may limit the lifetime.
    assert claims.expires is not None
    assert 0 < claims.expires - time.time() <= 720 * 3600 + 60
    jobs = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
    assert wait_for(lambda: remote_api.call("GET", jobs)["items"] == [])  # The Role is applied with a short delay.

    commands = documented("Renew the token")
    next(commands)  # Renews it.
    _, _, renewed = open_remote_cluster(read, namespace, "gpu-cluster", log)
    assert renewed.current != first
    next(commands)  # Revokes all of them.
    assert wait_for(lambda: status_of(remote_api, jobs) == 401, REVOKED_SECONDS)
    # The error of an expired token has a command with the same effect.
    command = renewal_command(f"{namespace}/gpu-cluster", claims).replace("--context REMOTE ", "")
    subprocess.run(["sh", "-euc", command], check=True, capture_output=True)
    assert wait_for(lambda: status_of(remote_api, jobs) == 200)
    assert token.current not in (first, renewed.current)
    assert len(list(commands)) == 1


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return True
        except ClusterError:
            pass
        time.sleep(0.5)
    return False


def status_of(api, path):
    try:
        api.call("GET", path, away_seconds=0)
    except ClusterError as error:
        return error.status
    return 200


@pytest.mark.takes(60)
def test_a_running_training_survives_that_its_token_is_renewed(start, create_secret, api, remote, store):
    """The first token is revoked, and all requests are refused until the Secret has another one."""
    namespace = remote["namespace"]
    api.create_namespaced_secret(namespace, {"metadata": {"name": "first-tokens"}})
    first = bound_token(namespace, "first-tokens")
    program = function("import time\nprint('begun', flush=True)\ntime.sleep(35)\nprint('done', flush=True)")
    options = create_secret({**remote, **store, "token": first})
    step = start(program, {**ALONE, "total_timeout": 3600}, **options)
    step.wait_for(r"\[worker-0\] begun")
    api.delete_namespaced_secret("first-tokens", namespace)
    time.sleep(15)  # Requests are refused meanwhile, once the API server no longer caches the token.
    second = bound_token(namespace)
    api.patch_namespaced_secret("gpu", options["namespace"], {"stringData": {"token": second}})
    renewed = step.wait_for("the API server refused the token; continues with the new one of ")
    assert step.verdict()["succeeded"], step.log
    assert renewed < step.wait_for(r"\[worker-0\] done")
    assert step.log.count("continues with the new one") == 1
    assert not any(token in step.log for token in (first, second))
    assert_nothing_is_left(step, remote)


def test_an_expired_token_is_refused_with_the_command_that_renews_it(start, create_secret, remote, store):
    header, payload, signature = remote["token"].split(".")
    expired = read_expired(payload)
    step = start(function(""), **create_secret({**remote, **store, "token": f"{header}.{expired}.{signature}"}))
    verdict = step.verdict()
    assert not verdict["succeeded"]
    assert "kubectl --context REMOTE create token kfp-distributed-remote " in verdict["cause"]
    assert "\n" not in verdict["cause"]
    assert_nothing_is_left(step, remote)


def read_expired(payload):
    """Return the payload of a token with an expiry in the past. Its signature is wrong then."""
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return base64.urlsafe_b64encode(json.dumps({**claims, "exp": 1_700_000_000}).encode()).decode().rstrip("=")
