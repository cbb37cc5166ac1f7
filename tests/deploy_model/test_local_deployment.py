"""`deploy_model` on this machine: one local run serves the versions of a model, and ends its servers."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest
from kfp import dsl
from prediction_models import linear_network, save_onnx
from process_hygiene import started

from kfp_distributed.components import deploy_model
from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest
from kfp_distributed.components.deploy_model.local_deployment import SERVERS_VARIABLE, NotServed, deploy_locally
from kfp_distributed.components.deploy_model.step import run_step
from kfp_distributed.components.export_model.export import run_export
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.local_servers import LocalServers
from kfp_distributed.processes.group import ProcessGroup
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(17)


def export(folder, model, aliases=()):
    """Export a model as the next version of "flowers" to the store of the environment."""
    folder.mkdir()
    manifest = dsl.Artifact(uri=str(folder / "manifest"))
    return run_export(str(model), str(model), "flowers", "models", 0, {}, manifest, aliases).uri


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Start a local run with two good versions of a model, and a third one that no server loads."""
    folder = tmp_path_factory.mktemp("deployment")
    good = save_onnx(folder / "good", linear_network([2, 0], 2))
    bad = folder / "bad"
    bad.mkdir()
    (bad / "model.onnx").write_bytes(b"no model")
    (bad / MODEL_MANIFEST).write_text(ModelManifest("onnx", describe_folder(bad)).to_json())
    with local_run(folder / "run"):
        open_store("s3://models").make_bucket()
        yield [
            export(folder / "1", good),
            export(folder / "2", good, aliases=["production"]),
            export(folder / "3", bad),
        ]
    assert servers() == []


def servers(parent=None):
    """Return the model servers that a process has started, by default this one."""
    return [child for child in psutil.Process(parent).children() if "kfp_distributed.cli.main" in child.cmdline()]


def version_at(url):
    with urlopen(f"{url}/v1/models/flowers", timeout=120) as response:
        (state,) = json.load(response)["model_version_status"]
    return state["version"], state["state"]


def test_a_version_replaces_another_one_when_it_is_ready(versions, tmp_path):
    first = deploy_model(name="flowers", model_uri=versions[0])
    url = first.outputs["url"]
    assert version_at(url) == ("1", "AVAILABLE")
    assert first.outputs["version"] == 1
    assert json.loads(Path(first.outputs["deployment"].path).read_text()) == {
        "name": "flowers",
        "namespace": "",
        "url": url,
        "mode": "local",
        "model_uri": "s3://models/flowers/1",
        "version": 1,
        "format": "onnx",
        "canary_percent": 100,
    }
    request = DeploymentRequest("flowers")
    assert deploy_locally(request, versions[0]) == url
    with pytest.raises(NotServed, match=r"^the model server ended with exit code 1. (.|\n)*INVALID_PROTOBUF"):
        deploy_locally(request, versions[2])
    assert version_at(url) == ("1", "AVAILABLE")

    artifact = dsl.Artifact(uri=str(tmp_path / "deployment"))
    artifact.custom_path = artifact.uri
    second = run_step(deployment=artifact, name="flowers", model_uri="s3://models/flowers@production")
    assert second.version == 2
    assert version_at(second.url) == ("2", "AVAILABLE")
    with pytest.raises(URLError, match="refused"):
        version_at(url)
    assert len(servers()) == 1


def test_two_steps_that_deploy_one_version_get_one_server(versions):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(deploy_locally, [DeploymentRequest("twice")] * 2, [versions[0]] * 2)
    with urlopen(f"{first}/v1/models/twice", timeout=120) as response:
        assert response.status == 200
    assert first == second


def test_a_canary_is_refused(versions, tmp_path):
    artifact = dsl.Artifact(uri=str(tmp_path))
    with pytest.raises(SystemExit, match="canary_percent=20 is not allowed with runner='local'"):
        run_step(deployment=artifact, name="flowers", model_uri=versions[0], canary_percent=20)


def test_without_a_local_run_the_error_says_what_to_do(monkeypatch):
    monkeypatch.delenv(SERVERS_VARIABLE, raising=False)
    with pytest.raises(ValueError, match=r"needs a local_run.*kfp-distributed serve s3://models/flowers/1"):
        deploy_locally(DeploymentRequest("flowers"), "s3://models/flowers/1")


def test_a_run_that_takes_no_requests_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(SERVERS_VARIABLE, str(tmp_path / "servers"))
    message = rf"the local_run does not answer at {tmp_path}/servers \(.*No such file.*TMPDIR set to a folder with"
    with pytest.raises(ValueError, match=message):
        deploy_locally(DeploymentRequest("flowers"), "s3://models/flowers/1")


@pytest.fixture
def hanging_store(tmp_path, monkeypatch):
    """Serve models of a store that accepts connections and never answers; return the listening socket of the store."""
    path = tmp_path / "servers"
    with (
        socket.create_server(("127.0.0.1", 0)) as store,
        ProcessGroup() as group,
        LocalServers(path, group, tmp_path / "logs") as local_servers,
    ):
        store.settimeout(60)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{store.getsockname()[1]}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "key")
        monkeypatch.setenv(SERVERS_VARIABLE, str(path))
        Thread(target=local_servers.serve_forever, args=(0.05,)).start()
        yield store
        local_servers.shutdown()


def test_a_server_that_does_not_answer_in_time_is_ended(hanging_store):
    before = servers()
    with pytest.raises(NotServed, match=r"^the model server does not answer after 0.1 s"):
        deploy_locally(DeploymentRequest("flowers", timeout_seconds=0.1), "s3://models/flowers/1")
    assert servers() == before


def test_the_server_of_a_step_that_ends_is_ended(hanging_store):
    before = servers()
    with socket.socket(socket.AF_UNIX) as step:
        step.connect(os.environ[SERVERS_VARIABLE])
        step.sendall(b'{"name": "flowers", "uri": "s3://models/flowers/1", "timeout_seconds": 600}\n')
        request, _ = hanging_store.accept()  # The server has begun to read the model.
        (server,) = [process for process in servers() if process not in before]
    with request:
        psutil.wait_procs([server], timeout=120)
        assert not server.is_running()


RUN = """
import sys, time
from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest
from kfp_distributed.components.deploy_model.local_deployment import deploy_locally
from kfp_distributed.pipelines.local_run import local_run
with local_run(sys.argv[1], embedded_store=False):
    print(deploy_locally(DeploymentRequest("flowers"), "s3://models/flowers/1"), flush=True)
    time.sleep(600)
"""


def test_a_server_ends_with_the_process_of_its_run(versions, tmp_path):
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    with started(command, stdout=subprocess.PIPE, env=os.environ) as process:
        url = process.stdout.readline().strip()
        (server,) = servers(process.pid)
        assert version_at(url) == ("1", "AVAILABLE")
        process.kill()
        process.wait(120)
    psutil.wait_procs([server], timeout=120)
    assert not server.is_running()
