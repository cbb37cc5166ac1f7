"""Exported versions in the model registry of a real MLflow server."""

import uuid
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from kfp import dsl
from mlflow_server import mlflow_server

from kfp_distributed.components.export_model.mlflow_version import record_in_mlflow, version_body
from kfp_distributed.components.export_model.step import run_step
from kfp_distributed.components.export_model.version_record import VersionRecord

pytestmark = pytest.mark.takes(41)
TASK = "11111111-aaaa-4bbb-8ccc-dddddddddddd"
RECORD = VersionRecord("digits", 3, "s3://models/it's/digits/3", "onnx", "run-1", {"accuracy": 0.75}, ("production",))


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as running:
        yield running


def versions(mlflow, name):
    """Return the versions of a registered model, the oldest first."""
    answer = mlflow.request("GET", f"mlflow/model-versions/search?filter={quote(f'''name='{name}' ''')}")
    return sorted(answer.get("model_versions", []), key=lambda version: int(version["version"]))


def test_the_body_has_the_run_of_the_training():
    body = {
        "name": "digits",
        "source": "s3://models/it's/digits/3",
        "tags": [
            {"key": "kfp_distributed.exported_version", "value": "3"},
            {"key": "kfp_distributed.run", "value": "run-1"},
        ],
    }
    assert version_body(RECORD, "") == body
    assert version_body(RECORD, "0123") == {**body, "run_id": "0123"}


def test_an_export_and_its_retry_register_one_version(mlflow, bucket, make_model, tmp_path, monkeypatch, capsys):
    for name, value in mlflow.variables().items():
        monkeypatch.setenv(name, value)
    model, training_run = make_model(), mlflow.create_run()

    def export(run, **options):
        uri = f"minio://mlpipeline/v2/artifacts/p/{run}/export-model/{TASK}/manifest"
        manifest = SimpleNamespace(uri=uri, path=str(tmp_path / "manifest"), metadata={})
        artifact = dsl.Model(uri=str(model), metadata={"mlflow_run_id": training_run})
        return run_step(model_name="flowers", bucket=bucket, manifest=manifest, model=artifact, **options)

    run = str(uuid.uuid4())
    assert export(run, version=5) == export(run, version=5, aliases=["candidate"])
    (version,) = versions(mlflow, "flowers")
    assert {"version": "1", "source": f"s3://{bucket}/flowers/5", "run_id": training_run}.items() <= version.items()
    assert {tag["key"]: tag["value"] for tag in version["tags"]} == {
        "kfp_distributed.exported_version": "5",
        "kfp_distributed.run": run,
    }
    assert export(str(uuid.uuid4()), aliases=["candidate"]).version == 6
    answer = mlflow.request("GET", "mlflow/registered-models/alias?name=flowers&alias=candidate")
    assert answer["model_version"]["source"] == f"s3://{bucket}/flowers/6"
    assert mlflow.run(training_run).tags["kfp_distributed.exported_version"] == "6"
    assert "WARNING" not in capsys.readouterr().out


def test_a_quote_in_the_address_does_not_register_a_version_twice(mlflow, capsys):
    record_in_mlflow(mlflow.variables(), "", RECORD)
    record_in_mlflow(mlflow.variables(), "", RECORD)
    assert "WARNING" not in capsys.readouterr().out
    assert [version["source"] for version in versions(mlflow, "digits")] == [RECORD.uri]


def test_a_wrong_run_does_not_prevent_the_registration(mlflow, capsys):
    record = VersionRecord("cats", 1, "s3://models/cats/1", "onnx", "run-1", {}, ())
    record_in_mlflow(mlflow.variables(), "0123", record)
    output = capsys.readouterr().out
    assert output.count("WARNING") == 1
    assert "tags of the run 0123: " in output
    assert len(versions(mlflow, "cats")) == 1


def test_a_version_in_a_folder_is_not_registered(mlflow, capsys):
    record_in_mlflow(mlflow.variables(), "", VersionRecord("dogs", 1, "/models/dogs/1", "onnx", "run-1", {}, ()))
    assert capsys.readouterr().out == ""
    assert versions(mlflow, "dogs") == []
