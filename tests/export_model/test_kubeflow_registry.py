"""Exported versions in Kubeflow's Model Registry, with a real server."""

from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest
from kfp import dsl
from model_registry_server import model_registry_server

from kfp_distributed.components.export_model.kubeflow_registry import (
    artifact_body,
    register_in_kubeflow,
    version_body,
)
from kfp_distributed.components.export_model.step import run_step
from kfp_distributed.components.export_model.version_record import VersionRecord, read_record

TASK = "11111111-aaaa-4bbb-8ccc-dddddddddddd"
RECORD = VersionRecord("digits", 3, "s3://models/digits/3", "onnx", "run-1", {"accuracy": 0.75, "epoch": 4}, ())


@pytest.fixture(scope="session")
def registry():
    with model_registry_server() as running:
        yield running


def test_the_record_is_read_from_the_manifest():
    manifest = (
        '{"model_name": "digits", "version": 3, "metrics": {"accuracy": 0.75, "epoch": 4}, "source_run": "run-1", '
        '"files": [{"path": "variables/variables.index"}, {"path": "model.onnx"}]}'
    )
    assert read_record(manifest, "s3://models/digits/3", ()) == RECORD


@pytest.mark.parametrize(
    ("uri", "is_remote"), [("s3://models/digits/3", True), ("/models/digits/3", False), ("file:///models/3", False)]
)
def test_only_servers_are_remote(uri, is_remote):
    assert VersionRecord("digits", 3, uri, "onnx", "run-1", {}, ()).is_remote is is_remote


def test_bodies():
    assert version_body(RECORD, "7") == {
        "name": "3",
        "registeredModelId": "7",
        "customProperties": {
            "accuracy": {"metadataType": "MetadataDoubleValue", "double_value": 0.75},
            "epoch": {"metadataType": "MetadataDoubleValue", "double_value": 4.0},
            "kfp_distributed.run": {"metadataType": "MetadataStringValue", "string_value": "run-1"},
        },
    }
    assert artifact_body(RECORD) == {
        "artifactType": "model-artifact",
        "name": "digits",
        "uri": "s3://models/digits/3",
        "modelFormatName": "onnx",
        "state": "LIVE",
        "modelSourceKind": "pipelines",
        "modelSourceClass": "pipelinerun",
        "modelSourceId": "run-1",
    }


@pytest.mark.takes(10)
def test_an_export_and_its_retry_register_one_version(registry, bucket, make_model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KFP_DISTRIBUTED_MODEL_REGISTRY", f"{registry.address}/")
    model = make_model()

    def export(run="7f1c1c5e-0d4e-4d5c-9a53-1f5a4b1e2c3d"):
        uri = f"minio://mlpipeline/v2/artifacts/p/{run}/export-model/{TASK}/manifest"
        manifest = SimpleNamespace(uri=uri, path=str(tmp_path / "manifest"), metadata={})
        metrics = dsl.Metrics(metadata={"accuracy": 0.75})
        return run_step(
            model_name="flowers",
            bucket=bucket,
            manifest=manifest,
            model=dsl.Model(uri=str(model)),
            metrics=metrics,
        )

    assert export() == export()  # Kubeflow Pipelines started the task again.
    assert export("8f1c1c5e-0d4e-4d5c-9a53-1f5a4b1e2c3d").version == 2
    assert "WARNING" not in capsys.readouterr().out
    (first, (artifact,)), (second, _) = registry.versions("flowers")
    assert (first["name"], second["name"]) == ("1", "2")
    assert first["customProperties"]["accuracy"]["double_value"] == 0.75
    assert first["customProperties"]["kfp_distributed.run"]["string_value"] == "7f1c1c5e-0d4e-4d5c-9a53-1f5a4b1e2c3d"
    expected = {"uri": f"s3://{bucket}/flowers/1", "modelFormatName": "tensorflow", "modelSourceClass": "pipelinerun"}
    assert expected.items() <= artifact.items()


def test_registrations_at_the_same_time_do_not_conflict(registry, capsys):
    variables = {"KFP_DISTRIBUTED_MODEL_REGISTRY": registry.address}
    records = [VersionRecord("cats", number + 1, f"s3://m/{number}", "onnx", "r", {}, ()) for number in range(3)] * 3
    with ThreadPoolExecutor(9) as pool:
        list(pool.map(lambda record: register_in_kubeflow(variables, record), records))
    assert "WARNING" not in capsys.readouterr().out
    versions = registry.versions("cats")
    assert sorted(version["name"] for version, _ in versions) == ["1", "2", "3"]
    assert sorted(one["uri"] for _, artifacts in versions for one in artifacts) == ["s3://m/0", "s3://m/1", "s3://m/2"]


def test_a_version_of_another_bucket_is_not_overwritten(registry, capsys):
    variables = {"KFP_DISTRIBUTED_MODEL_REGISTRY": registry.address}
    register_in_kubeflow(variables, RECORD)
    register_in_kubeflow(variables, VersionRecord("digits", 3, "s3://other/digits/3", "onnx", "r", {}, ()))
    assert "registered with the address s3://models/digits/3" in capsys.readouterr().out
    ((_, (artifact,)),) = registry.versions("digits")
    assert artifact["uri"] == "s3://models/digits/3"


@pytest.fixture
def answering():
    """Return a function that starts a server with one answer. It records the headers of its requests."""
    servers = []

    def start(status, content=b"{}"):
        headers = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                headers.append(dict(self.headers))
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", headers

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (200, b"<html>", "does not answer as Kubeflow's Model Registry does"),
        (200, b'{"items": []}', "does not answer as Kubeflow's Model Registry does"),
        (302, b"", "answers 302"),
        (403, b'{"code": "403", "message": "RBAC: access denied"}', "answers 403 RBAC: access denied"),
        (503, b"no healthy upstream", "answers 503"),
    ],
)
def test_a_refusal_is_one_warning(answering, tmp_path, capsys, status, content, message):
    address, headers = answering(status, content)
    (tmp_path / "token").write_text("secret-token\n")
    variables = {
        "KFP_DISTRIBUTED_MODEL_REGISTRY": address,
        "KFP_DISTRIBUTED_MODEL_REGISTRY_TOKEN_FILE": str(tmp_path / "token"),
    }
    register_in_kubeflow(variables, RECORD)
    output = capsys.readouterr().out
    assert output.count("WARNING") == 1
    assert message in output
    assert "secret" not in output
    assert [one["Authorization"] for one in headers] == ["Bearer secret-token"]


@pytest.mark.parametrize(
    ("address", "token", "message"),
    [
        ("http://127.0.0.1:1", "", "does not answer"),
        ("https://me:secret@host", "", "KFP_DISTRIBUTED_MODEL_REGISTRY is not the address"),
        ("http://me:[secret]@host", "", "KFP_DISTRIBUTED_MODEL_REGISTRY is not the address"),
        ("registry:8080", "", "KFP_DISTRIBUTED_MODEL_REGISTRY is not the address"),
        ("http://host", "first\nsecret", "the token has a line break"),
    ],
)
def test_a_wrong_setting_is_one_warning_without_secrets(tmp_path, capsys, address, token, message):
    variables = {"KFP_DISTRIBUTED_MODEL_REGISTRY": address}
    if token:
        (tmp_path / "token").write_text(token)
        variables["KFP_DISTRIBUTED_MODEL_REGISTRY_TOKEN_FILE"] = str(tmp_path / "token")
    register_in_kubeflow(variables, RECORD)
    output = capsys.readouterr().out
    assert message in output
    assert output.count("WARNING") == 1
    assert "secret" not in output
