"""InferenceServices as whole values: a new one, the next version, and the undo."""

import json
import re

import pytest

from kfp_distributed.components.deploy_model import exported_version
from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest, parse_request
from kfp_distributed.components.deploy_model.exported_version import (
    ExportedVersion,
    check_in_store,
    find_version,
    parse_version_uri,
)
from kfp_distributed.components.deploy_model.inference_service import (
    deployment_id,
    mode_of,
    new_service,
    next_service,
    predictor_of,
    previous_address,
    previous_service,
    replaced_addresses,
    serves_request,
)
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.opener import open_store

SOURCE = {"kfp-distributed/run": "run-1", "kfp-distributed/task": "task-1"}
REQUEST = DeploymentRequest("digits")
FIRST = "17a410a9b6d4fe9e-7afaa346b4bf92bf"
"""ID of the deployment of version 3 by task-1."""


def version(number=3, model_format="tensorflow"):
    return ExportedVersion(f"s3://models/digits/{number}", "digits", number, model_format)


def stored(service):
    return {**service, "metadata": {**service["metadata"], "uid": "u", "resourceVersion": "7"}, "status": {"url": "x"}}


def test_a_new_service():
    assert new_service(REQUEST, version(), FIRST, "team", SOURCE) == {
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
                "model": {
                    "modelFormat": {"name": "tensorflow"},
                    "protocolVersion": "v1",
                    "storageUri": f"s3://models/.served/digits-{FIRST}/",
                },
                "minReplicas": 1,
                "labels": {"kfp-distributed/deployment": FIRST},
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
    predictor = predictor_of(request, version(12, "onnx"), "1-2")
    resources = {"cpu": "1500m", "memory": "2G", "nvidia.com/gpu": "1"}
    assert predictor == {
        "model": {
            "modelFormat": {"name": "onnx"},
            "protocolVersion": "v2",
            "resources": {"limits": resources, "requests": resources},
            "storageUri": "s3://models/.served/served-1-2/",
        },
        "minReplicas": 2,
        "maxReplicas": 5,
        "serviceAccountName": "models",
        "labels": {"kfp-distributed/deployment": "1-2"},
        "canaryTrafficPercent": 20,
    }


def test_another_percentage_keeps_the_pods():
    canary = REQUEST._replace(canary_percent=20)
    current = stored(new_service(canary, version(), FIRST, "team", SOURCE))
    assert deployment_id(current, REQUEST, version(), "another task") == FIRST
    assert not serves_request(current, predictor_of(REQUEST, version(), FIRST))
    other = {**SOURCE, "kfp-distributed/run": "run-2"}
    promoted = next_service(current, REQUEST, version(), FIRST, other, is_good=True)
    assert promoted["metadata"] == current["metadata"]
    assert promoted["spec"]["predictor"] == predictor_of(REQUEST, version(), FIRST)


@pytest.mark.parametrize(
    ("request_", "version_", "task"),
    [
        (REQUEST._replace(memory="2Gi"), version(), "task-1"),
        (REQUEST, version(4), "task-1"),
        (REQUEST, version(3, "onnx"), "task-1"),
        (REQUEST, version()._replace(uri="s3://team/digits/3"), "task-1"),
        (REQUEST, version(), "task of another cluster"),
    ],
)
def test_deployments_of_other_content_or_other_tasks_have_other_ids(request_, version_, task):
    assert deployment_id(None, request_, version_, task) not in (FIRST, "")
    assert len(deployment_id(None, request_, version_, task)) == 33


def test_an_edited_address_is_another_deployment():
    current = stored(new_service(REQUEST, version(), FIRST, "team", SOURCE))
    current["spec"]["predictor"]["model"]["storageUri"] = "s3://models/digits/"
    assert deployment_id(current, REQUEST, version(), "task-2") != FIRST


def test_the_next_version_can_be_undone():
    first = stored(new_service(REQUEST, version(), FIRST, "team", SOURCE))
    first["metadata"]["annotations"]["owner"] = "ann"
    first["spec"]["transformer"] = {"containers": []}
    other = {"kfp-distributed/run": "run-2", "kfp-distributed/task": "task-2"}
    second = next_service(first, REQUEST, version(4), "4-2", other, is_good=True)
    previous = json.loads(second["metadata"]["annotations"].pop("kfp-distributed/previous"))
    assert second == {
        **{key: first[key] for key in ("apiVersion", "kind")},
        "metadata": {
            **first["metadata"],
            "annotations": {
                "owner": "ann",
                "kfp-distributed/model-uri": "s3://models/digits/4",
                "kfp-distributed/model-version": "4",
                "kfp-distributed/earlier": FIRST,
                **other,
            },
        },
        "spec": {"predictor": predictor_of(REQUEST, version(4), "4-2"), "transformer": {"containers": []}},
    }
    second["metadata"]["annotations"]["kfp-distributed/previous"] = json.dumps(previous)
    without_status = {key: value for key, value in first.items() if key != "status"}
    assert previous_service(second) == without_status
    third = next_service(second, REQUEST, version(5), "5-3", other, is_good=False)
    assert previous_service(third) == without_status
    assert previous_address(third) == f"s3://models/.served/digits-{FIRST}/"
    assert replaced_addresses(third) == [f"s3://models/.served/digits-{FIRST}/", "s3://models/.served/digits-4-2/"]
    assert third["metadata"]["annotations"]["kfp-distributed/earlier"] == f"4-2,{FIRST}"
    fourth = next_service(third, REQUEST, version(6), "6-4", other, is_good=True)
    assert replaced_addresses(fourth) == ["s3://models/.served/digits-5-3/"]


def test_a_first_deployment_has_nothing_before():
    assert previous_service(new_service(REQUEST, version(), FIRST, "team", SOURCE)) is None


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
    ],
)
def test_refused_parameters(parameters, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_request(**{"name": "digits", **parameters})


def test_version_addresses():
    assert parse_version_uri("minio://models/team/digits/30/?region=x") == ("s3://models/team/digits/30", "digits", 30)
    assert parse_version_uri("s3://models/digits/3") == ("s3://models/digits/3", "digits", 3)
    assert parse_version_uri("/run/models/digits/3/") == ("/run/models/digits/3", "digits", 3)


@pytest.mark.parametrize(
    "uri", ["s3://models/digits", "s3://models/3", "/tmp/digits", "s3://models/digits/03", "s3://m/d/x"]
)
def test_addresses_that_are_no_version(uri):
    with pytest.raises(ValueError, match="give the output uri of export_model"):
        parse_version_uri(uri)


def test_kserve_loads_no_model_of_a_folder():
    check_in_store("minio://models/digits/3")
    with pytest.raises(ValueError, match=r"^model_uri='/models/digits/3' is not in an object store, from which KServe"):
        check_in_store("/models/digits/3")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "is not a complete version of export_model"),
        (("weights.npz",), "has no model that a server loads: deploy_model needs either saved_model.pb or model.onnx"),
        (
            ("adapter_config.json", "adapter_model.safetensors"),
            "is an adapter, which the huggingface runtime of KServe",
        ),
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
    found, store = find_version("s3://models/digits/3/")
    assert found == version(model_format=served)._replace(files=(FileEntry(file, 1, "hash"),))
    assert store.exists("digits/3/export.json")


@pytest.mark.parametrize("folder", ["", "merged/"])
def test_a_complete_version_of_a_language_model(monkeypatch, tmp_path, folder):
    """Of one with an adapter, only the merged model is served."""
    adapter = ("adapter_config.json", "adapter_model.safetensors") if folder else ()
    write_version(monkeypatch, tmp_path, (*adapter, f"{folder}config.json", f"{folder}model.safetensors"))
    found, _ = find_version("s3://models/digits/3")
    files = tuple(FileEntry(file, 1, "hash") for file in ("config.json", "model.safetensors"))
    place = "digits/3/merged/" if folder else ""
    assert found == version(model_format="huggingface")._replace(files=files, folder=place)
    model = predictor_of(parse_request(name="chat", gpus=1), found, "1-2")["model"]
    assert (model["modelFormat"], model["protocolVersion"]) == ({"name": "huggingface"}, "v2")


def write_version(monkeypatch, tmp_path, files):
    """Write a version into a local store that stands for the bucket."""
    folder = tmp_path / "digits" / "3"
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(b"x")
    if files:
        entries = [{"path": file, "size": 1, "sha256": "hash"} for file in files]
        (folder / "export.json").write_text(json.dumps({"files": entries, "metrics": {}}))
    monkeypatch.setattr(
        exported_version, "open_store", lambda uri: open_store(f"{tmp_path}/{uri.removeprefix('s3://models')}")
    )
