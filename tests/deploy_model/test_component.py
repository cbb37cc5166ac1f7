"""The component: its interface, and the compiled step from a real object store to an API server."""

import json
from pathlib import Path

import pytest
from compiled import Run, run_step_command, step_command
from kfp import dsl
from kserve_api import KServeApi

from kfp_distributed.components.deploy_model.component import deploy_model
from kfp_distributed.components.deploy_model.step import run_step
from kfp_distributed.components.export_model.export import run_export
from kfp_distributed.pipelines.specs import write_specs
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(17)


def test_interface():
    spec = dsl.component(base_image="python:3.11")(deploy_model).component_spec
    assert {name: (port.type, port.optional) for name, port in spec.inputs.items()} == {
        "name": ("String", False),
        "model_uri": ("String", False),
        "namespace": ("String", True),
        "service_account": ("String", True),
        "cpus": ("String", True),
        "memory": ("String", True),
        "gpus": ("Integer", True),
        "min_replicas": ("Integer", True),
        "max_replicas": ("Integer", True),
        "canary_percent": ("Integer", True),
        "timeout_minutes": ("Integer", True),
        "runner": ("String", True),
    }
    outputs = {name: port.type for name, port in spec.outputs.items()}
    assert outputs == {"deployment": "system.Artifact@0.0.1", "url": "String", "version": "Integer"}


@pytest.fixture
def version(tmp_path, monkeypatch):
    """Return the address of a version that was exported to a real S3 server, after another one."""
    with embedded_object_store(tmp_path / "store") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        open_store("s3://models").make_bucket()
        model = tmp_path / "model"
        model.mkdir()
        (model / "saved_model.pb").write_bytes(b"graph")
        (model / MODEL_MANIFEST).write_text(ModelManifest(files=describe_folder(model)).to_json())
        manifest = dsl.Artifact(uri=str(tmp_path / "run-1" / "export-model" / "manifest"))
        (tmp_path / "run-1" / "export-model").mkdir(parents=True)
        run_export(str(model), str(model), "digits", "models", 2, {}, manifest)
        yield run_export(str(model), str(model), "digits", "models", 3, {}, manifest).uri


@pytest.fixture
def api(tmp_path, monkeypatch):
    with KServeApi(tmp_path / "store" / "models") as server:
        monkeypatch.setenv("KUBECONFIG", server.write_configuration(tmp_path / "kubeconfig"))
        yield server


def test_the_compiled_step_deploys_an_exported_version(tmp_path, version, api):
    write_specs(tmp_path)
    run = Run(str(tmp_path))
    command = step_command("deploy_model", run, {"name": "digits", "model_uri": version}, {}, specs=tmp_path)
    process = run_step_command(command, tmp_path)
    assert process.returncode == 0, process.stdout[-4000:]
    outputs = json.loads(run.output_file("deploy_model").read_text())
    url = "http://digits-predictor.default.svc.cluster.local"
    assert outputs["parameterValues"] == {"url": url, "version": 3}
    record = Path(run.uri("deploy_model/deployment"))
    assert json.loads(record.read_text()) == {
        "name": "digits",
        "namespace": "default",
        "url": url,
        "model_uri": version,
        "version": 3,
        "format": "tensorflow",
        "mode": "Standard",
        "canary_percent": 100,
    }
    annotations = api.objects["inferenceservices/digits"]["metadata"]["annotations"]
    assert annotations["kfp-distributed/run"] == run.run_id
    assert annotations["kfp-distributed/task"] == str(record.parent)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"name": "digits", "model_uri": "s3://models/digits/4"}, "is not a complete version of export_model"),
        ({"name": "Digits", "model_uri": "s3://models/digits/3"}, "name='Digits' is not allowed"),
    ],
)
def test_a_wrong_input_is_one_line_and_changes_nothing(tmp_path, version, api, parameters, message):
    write_specs(tmp_path)
    process = run_step_command(
        step_command("deploy_model", Run(str(tmp_path)), parameters, {}, specs=tmp_path), tmp_path
    )
    assert process.returncode == 1
    assert message in process.stdout.strip().splitlines()[-1]
    assert [request for request in api.requests if request.split()[0] in ("POST", "PUT", "DELETE")] == []


@pytest.fixture
def deploy(tmp_path, api):
    """Deploy a version by a step of its own, with KServe in the mode Knative; return what the step returns."""
    api.mode = None

    def run(uri, task, file="", **parameters):
        artifact = dsl.Artifact(uri=str(tmp_path / task / "deployment"))
        artifact.custom_path = file or str(tmp_path / task)
        return run_step(deployment=artifact, name="digits", model_uri=uri, runner="kubernetes", **parameters)

    return run


def delete_version(number):
    store = open_store("s3://models")
    store.delete([entry.key for entry in store.list(f"digits/{number}/")])


def served_version(api):
    predictor = api.objects["inferenceservices/digits"]["spec"]["predictor"]
    return predictor.get("canaryTrafficPercent", 100), api.version_at(predictor["model"]["storageUri"])


@pytest.mark.parametrize("parameters", [{}, {"memory": "1Gi"}], ids=["same pods", "other pods"])
def test_a_canary_is_promoted_after_its_version_was_deleted(version, api, deploy, parameters):
    deploy("s3://models/digits/2", "first")
    deploy(version, "canary", canary_percent=20)
    delete_version(3)
    assert deploy(version, "promotion", **parameters).version == 3
    assert served_version(api) == (100, 3)


def test_a_canary_is_replaced_by_the_version_before_which_was_deleted(version, api, deploy):
    deploy("s3://models/digits/2", "first")
    deploy(version, "canary", canary_percent=20)
    delete_version(2)
    assert deploy("s3://models/digits/2", "back").version == 2
    assert served_version(api) == (100, 2)


def test_a_deleted_version_that_is_not_served_is_refused(version, api, deploy):
    deploy(version, "first")
    delete_version(2)
    with pytest.raises(SystemExit, match="digits/2' is not a complete version of export_model"):
        deploy("s3://models/digits/2", "second")
    assert served_version(api) == (100, 3)


def test_a_full_disk_after_the_deployment_is_one_line(version, api, deploy):
    message = (
        r"s3://models/digits/3 is ready at http://digits-predictor.*, but the file of the output deployment cannot be "
        r"written: \[Errno 28\] No space left on device.* It stays deployed: run the step again to get its outputs"
    )
    with pytest.raises(SystemExit, match=message):
        deploy(version, "first", file="/dev/full")
    assert served_version(api) == (100, 3)
    assert deploy(version, "first").version == 3
