"""InferenceServices as whole values: a new one, the next version, and the undo."""

import json
import re

import pytest

from kfp_distributed.components.deploy_model import exported_version
from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest, parse_request
from kfp_distributed.components.deploy_model.exported_version import ExportedVersion, find_version, parse_version_uri
from kfp_distributed.components.deploy_model.inference_service import (
    mode_of,
    new_service,
    next_service,
    predictor_of,
    previous_service,
    serves_request,
)
from kfp_distributed.storage.opener import open_store

SOURCE = {"kfp-distributed/run": "run-1", "kfp-distributed/task": "task-1"}
REQUEST = DeploymentRequest("digits")


def version(number=3, model_format="tensorflow"):
    return ExportedVersion(f"s3://models/digits/{number}", "digits", number, model_format)


def stored(service):
    return {**service, "metadata": {**service["metadata"], "uid": "u", "resourceVersion": "7"}, "status": {"url": "x"}}


def test_a_new_service():
    assert new_service(REQUEST, version(), "team", SOURCE) == {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": "digits",
            "namespace": "team",
            "labels": {"app.kubernetes.io/managed-by": "kfp-distributed"},
            "annotations": {
                "kfp-distributed/model-uri": "s3://models/digits/3",
                "kfp-distributed/model-version": "3",
                "kfp-distributed/run": "run-1",
                "kfp-distributed/task": "task-1",
            },
        },
        "spec": {
            "predictor": {
                "model": {"modelFormat": {"name": "tensorflow"}, "protocolVersion": "v1"},
                "storageUris": [{"uri": "s3://models/digits/3/", "mountPath": "/mnt/models/3"}],
                "minReplicas": 1,
                "labels": {"kfp-distributed/deployment": "4341cc2247b10e96d27766f8be6e7950"},
            }
        },
    }


def test_all_keys_of_a_predictor():
    request = parse_request(
        name="served",
        service_account="models",
        cpus="1.5",
        memory="2G",
        gpus=1,
        min_replicas=2,
        max_replicas=5,
        canary_percent=20,
    )
    predictor = predictor_of(request, version(12, "onnx"))
    assert len(predictor["labels"].pop("kfp-distributed/deployment")) == 32
    resources = {"cpu": "1500m", "memory": "2G", "nvidia.com/gpu": "1"}
    assert predictor == {
        "model": {
            "modelFormat": {"name": "onnx"},
            "protocolVersion": "v2",
            "resources": {"limits": resources, "requests": resources},
        },
        "storageUris": [{"uri": "s3://models/digits/12/", "mountPath": "/mnt/models/served/12"}],
        "minReplicas": 2,
        "maxReplicas": 5,
        "serviceAccountName": "models",
        "labels": {},
        "canaryTrafficPercent": 20,
    }


def test_another_percentage_keeps_the_pods():
    canary = REQUEST._replace(canary_percent=20)
    assert predictor_of(canary, version())["labels"] == predictor_of(REQUEST, version())["labels"]
    current = stored(new_service(canary, version(), "team", SOURCE))
    assert not serves_request(current, REQUEST, version())
    promoted = next_service(current, REQUEST, version(), {**SOURCE, "kfp-distributed/run": "run-2"}, is_good=True)
    assert promoted["metadata"] == current["metadata"]
    assert promoted["spec"]["predictor"] == predictor_of(REQUEST, version())


def test_the_next_version_can_be_undone():
    first = stored(new_service(REQUEST, version(), "team", SOURCE))
    first["metadata"]["annotations"]["owner"] = "ann"
    first["spec"]["transformer"] = {"containers": []}
    other = {"kfp-distributed/run": "run-2", "kfp-distributed/task": "task-2"}
    second = next_service(first, REQUEST, version(4), other, is_good=True)
    previous = json.loads(second["metadata"]["annotations"].pop("kfp-distributed/previous"))
    assert second == {
        **{key: first[key] for key in ("apiVersion", "kind")},
        "metadata": {
            **first["metadata"],
            "annotations": {
                "owner": "ann",
                "kfp-distributed/model-uri": "s3://models/digits/4",
                "kfp-distributed/model-version": "4",
                **other,
            },
        },
        "spec": {"predictor": predictor_of(REQUEST, version(4)), "transformer": {"containers": []}},
    }
    second["metadata"]["annotations"]["kfp-distributed/previous"] = json.dumps(previous)
    without_status = {key: value for key, value in first.items() if key != "status"}
    assert previous_service(second) == without_status
    third = next_service(second, REQUEST, version(5), other, is_good=False)
    assert previous_service(third) == without_status


def test_a_first_deployment_has_nothing_before():
    assert previous_service(new_service(REQUEST, version(), "team", SOURCE)) is None


@pytest.mark.parametrize(
    ("service", "mode"),
    [
        ({"metadata": {}}, "Knative"),
        ({"metadata": {"annotations": {"serving.kserve.io/deploymentMode": "RawDeployment"}}}, "RawDeployment"),
        ({"metadata": {}, "status": {"deploymentMode": "Standard"}}, "Standard"),
    ],
)
def test_mode(service, mode):
    assert mode_of(service) == mode


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"name": "Digits"}, "name='Digits' is not allowed: give 1 to 53 characters"),
        ({"name": "a" * 54}, "is not allowed: give 1 to 53 characters"),
        ({"name": "digits-"}, "name='digits-'"),
        ({"namespace": "Team"}, "namespace='Team' is not allowed"),
        ({"service_account": "-"}, "service_account='-' is not allowed"),
        ({"cpus": "many"}, "cpus='many' is not allowed: give a number of CPUs"),
        ({"memory": "512m"}, "memory='512m' is not allowed: give an amount of memory"),
        ({"gpus": -1}, "gpus=-1 is not allowed: give 0 or more"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas=2 is not allowed: give 0 for KServe's default, or at"),
        ({"canary_percent": 0}, "canary_percent=0 is not allowed: give 1 to 100"),
        ({"timeout_minutes": 0}, "timeout_minutes=0 is not allowed"),
        ({"runner": "local"}, "runner='local' is not supported by deploy_model"),
        ({"runner": "docker"}, "runner='docker' is not allowed: give 'auto' or 'kubernetes'"),
    ],
)
def test_refused_parameters(parameters, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_request(**{"name": "digits", **parameters})


def test_version_addresses():
    assert parse_version_uri("minio://models/team/digits/30/?region=x") == ("s3://models/team/digits/30", "digits", 30)
    assert parse_version_uri("s3://models/digits/3") == ("s3://models/digits/3", "digits", 3)


@pytest.mark.parametrize(
    "uri", ["s3://models/digits", "s3://models/3", "/tmp/digits/3", "s3://models/digits/03", "s3://m/d/x"]
)
def test_addresses_that_are_no_version(uri):
    with pytest.raises(ValueError, match="give the output uri of export_model"):
        parse_version_uri(uri)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "is not a complete version of export_model"),
        (("weights.npz",), "has no model that a server loads: deploy_model needs either saved_model.pb or model.onnx"),
        (("saved_model.pb", "model.onnx"), "has model.onnx and saved_model.pb: deploy_model needs either"),
    ],
)
def test_versions_that_cannot_be_served(monkeypatch, tmp_path, files, message):
    write_version(monkeypatch, tmp_path, files)
    with pytest.raises(ValueError, match=re.escape(message)):
        find_version("s3://models/digits/3")


@pytest.mark.parametrize(("file", "served"), [("saved_model.pb", "tensorflow"), ("model.onnx", "onnx")])
def test_a_complete_version(monkeypatch, tmp_path, file, served):
    write_version(monkeypatch, tmp_path, (file,))
    assert find_version("s3://models/digits/3/") == version(model_format=served)


def write_version(monkeypatch, tmp_path, files):
    """Write a version into a local store that stands for the bucket."""
    for file in files:
        (tmp_path / file).write_bytes(b"x")
    if files:
        (tmp_path / "export.json").write_text(json.dumps({"files": [{"path": file} for file in files]}))
    monkeypatch.setattr(exported_version, "open_store", lambda uri: open_store(str(tmp_path)))
