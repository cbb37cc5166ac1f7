"""Exported models served by a real KServe in Standard mode: the answers, the next version, undo, and missing keys."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
import urllib3
import yaml
from cluster.step_pods import StepContainer, image_of, logs_of
from compiled import Run, step_command
from kfp import dsl
from kubernetes import client, config, watch

from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components import export_model, prepare_data, train
from kfp_distributed.components.deploy_model.deployment import Deployment, DeploymentFailed
from kfp_distributed.components.deploy_model.deployment_request import parse_request
from kfp_distributed.components.deploy_model.exported_version import find_version
from kfp_distributed.components.deploy_model.service_checks import check_kserve
from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.storage import credentials_from_environment, open_store

pytestmark = [pytest.mark.cluster, pytest.mark.kserve, pytest.mark.timeout(900), pytest.mark.takes(300)]

# Without NaN, which TensorFlow Serving reads, and the servers of KServe's SDK refuse.
ROWS = [
    {"size": 1.0, "color": "red"},
    {"size": -3.0, "color": "blue"},
    {"size": 2.5, "color": ""},
    {"size": 1.5, "color": "never seen"},
]
PATH = ("serving.kserve.io", "v1beta1")


@pytest.fixture(scope="module")
def versions(training_namespace, store_environment, tmp_path_factory):
    """Addresses of two exported versions of one model in the object store of the cluster."""
    folder = tmp_path_factory.mktemp("versions")
    rows = "".join(
        f"{number % 7},{color},{'a' if number % 7 > 3 else 'b'}\n"
        for number in range(100)
        for color in ("red", "blue", "")
    )
    (folder / "rows.csv").write_text("size,color,label\n" + rows)
    bucket = f"models-{training_namespace}"
    store = open_store(f"s3://{bucket}", credentials_from_environment(store_environment))
    store.make_bucket()

    @dsl.pipeline
    def two_versions(source: str):
        data = prepare_data(source=source, shards=1)
        for epochs in (1, 3):
            training = train(
                train_dataset=data.outputs["train_dataset"],
                validation_dataset=data.outputs["validation_dataset"],
                train_specification={"trainer": "keras_classifier"},
                train_parameters={"epochs": epochs},
                distribution_specification={},
                runner="local",
            )
            # 1 and 10: all objects of version 10 begin with the key of version 1.
            export_model(
                model_name="team", bucket=bucket, model=training.outputs["model"], version=1 if epochs == 1 else 10
            )

    with pytest.MonkeyPatch.context() as patch:
        for name, value in store_environment.items():
            patch.setenv(name, value)
        with local_run(folder / "run", embedded_store=False):
            two_versions(source=str(folder / "rows.csv"))
    yield [f"s3://{bucket}/team/{number}" for number in (1, 10)]
    store.delete([entry.key for entry in store.list()])


@pytest.fixture
def serving(api, namespace, object_store_secret, store_environment, monkeypatch, versions):
    """The namespace of one test with a ServiceAccount "models" that lists the keys of the object store."""
    for name, value in store_environment.items():
        monkeypatch.setenv(name, value)
    annotations = {
        "serving.kserve.io/s3-endpoint": "minio-service.kubeflow:9000",
        "serving.kserve.io/s3-usehttps": "0",
    }
    keys = {
        "AWS_ACCESS_KEY_ID": object_store_secret["accesskey"],
        "AWS_SECRET_ACCESS_KEY": object_store_secret["secretkey"],
    }
    api.create_namespaced_secret(
        namespace, {"metadata": {"name": "models", "annotations": annotations}, "stringData": keys}
    )
    account = {"metadata": {"name": "models"}, "secrets": [{"name": "models"}]}
    api.create_namespaced_service_account(namespace, account)
    yield namespace
    services = client.CustomObjectsApi()
    # In one request, because the step may just have deleted one whose deployment failed.
    services.delete_collection_namespaced_custom_object(*PATH, namespace, "inferenceservices")
    store = open_store(versions[0].rpartition("/team/")[0])
    store.delete([entry.key for entry in store.list(".served/")])


def deploy(namespace, uri, minutes=8, **parameters):
    """Deploy a version as the step does; return what is deployed and the log."""
    request = parse_request(
        name="shop", namespace=namespace, **{"service_account": "models", "timeout_minutes": minutes, **parameters}
    )
    api, lines = connect(namespace), []
    check_kserve(api)
    source = {"kfp-distributed/run": "run-1", "kfp-distributed/task": uuid.uuid4().hex}

    def log(level, text):
        lines.append(f"{level} {text}")
        print(level, text)

    version, store = find_version(uri)
    return Deployment(api, store, request, version, source, log).run(), lines


def predict(namespace, rows):
    """Return the probabilities that the model server predicts."""
    answer = ask(namespace, "v1/models/shop:predict", {"instances": rows})
    return np.array([row["probabilities"] if isinstance(row, dict) else row for row in answer.json()["predictions"]])


def ask(namespace, path, body=None):
    """Ask the model server through the proxy of the API server."""
    settings = client.Configuration.get_default_copy()
    with client.ApiClient(settings) as session:
        answer = session.rest_client.pool_manager.request(
            "POST" if body else "GET",
            f"{settings.host}/api/v1/namespaces/{namespace}/services/shop-predictor:80/proxy/{path}",
            body=json.dumps(body) if body else None,
            headers={"Content-Type": "application/json", **settings.api_key},
            timeout=urllib3.Timeout(60),
        )
    assert answer.status == 200, answer.data
    return answer


def expected(uri, folder):
    """Return the answers of the model that was exported, without a server."""
    if not folder.exists():
        open_store(uri).download_folder(folder)
    model = load_model(folder)
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    inputs = {
        name: np.array(columns[name], object if spec.dtype == "string" else spec.dtype).reshape(
            [len(ROWS)] + [1] * (len(spec.shape) - 1)
        )
        for name, spec in model.signature.inputs.items()
    }
    return model.run(inputs)["probabilities"]


def restart_pods(namespace):
    """Delete the pods of the model server, and wait until others are ready."""
    core, selector = client.CoreV1Api(), "serving.kserve.io/inferenceservice=shop"
    old = {pod.metadata.uid for pod in core.list_namespaced_pod(namespace, label_selector=selector).items}
    core.delete_collection_namespaced_pod(namespace, label_selector=selector)
    changes = watch.Watch().stream(core.list_namespaced_pod, namespace, label_selector=selector, timeout_seconds=240)
    for change in changes:
        pod = change["object"]
        conditions = {condition.type: condition.status for condition in pod.status.conditions or ()}
        if pod.metadata.uid not in old and conditions.get("Ready") == "True":
            return
    raise AssertionError("no other pod has become ready")


RUNTIME = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps([self.path, sys.argv[1:], sorted(os.listdir("/mnt/models"))]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

HTTPServer(("", 8080), Handler).serve_forever()
"""
"""In the place of KServe's runtime of language models, whose image has 10 GB: it answers what it was given."""


def test_a_language_model_is_given_to_the_huggingface_runtime(serving, versions, image_name):
    """Its complete model, without the adapter beside it, directly in /mnt/models."""
    container = {
        "name": "kserve-container",
        "image": image_name("steps"),
        "command": ["python3", "-c", RUNTIME],
        "args": ["--model_name={{.Name}}"],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    formats = [{"name": "huggingface", "version": "1", "autoSelect": True, "priority": 1}]
    runtime = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": "language-models"},
        "spec": {"supportedModelFormats": formats, "protocolVersions": ["v2", "v1"], "containers": [container]},
    }
    objects = client.CustomObjectsApi()
    objects.create_namespaced_custom_object(PATH[0], "v1alpha1", serving, "servingruntimes", runtime)
    store = open_store(versions[0].rpartition("/team/")[0])
    names = ["adapter_config.json", "adapter_model.safetensors", "merged/config.json", "merged/model.safetensors"]
    for name in names:
        store.write(f"chat/1/{name}", b"{}")
    entries = [{"path": name, "size": 2, "sha256": ""} for name in names]
    store.write("chat/1/export.json", json.dumps({"files": entries, "metrics": {}}).encode())
    deployed, _ = deploy(serving, f"{store.uri}/chat/1")
    assert deployed.url.startswith(f"http://shop-predictor.{serving}")
    path, arguments, files = ask(serving, "openai/v1/models").json()
    assert (path, arguments) == ("/openai/v1/models", ["--model_name=shop"])
    assert files == ["config.json", "model.safetensors"]


def spec_of(namespace):
    service = client.CustomObjectsApi().get_namespaced_custom_object(*PATH, namespace, "inferenceservices", "shop")
    return service["spec"]["predictor"]


def copies(uri):
    """Return the addresses of the graphs of all copies."""
    root = uri.rpartition("/team/")[0]
    keys = [entry.key for entry in open_store(root).list(".served/")]
    return [f"{root}/{key}" for key in keys if key.endswith("saved_model.pb")]


def test_versions_are_served_replaced_and_restored(serving, versions, tmp_path):
    first, second = versions
    deployed, _ = deploy(serving, first)
    assert (deployed.version, deployed.url) == (1, deployed.service["status"]["address"]["url"])
    np.testing.assert_allclose(predict(serving, ROWS), expected(first, tmp_path / "1"), rtol=1e-4, atol=1e-6)

    deployed, _ = deploy(serving, second)
    assert deployed.version == 10
    np.testing.assert_allclose(predict(serving, ROWS), expected(second, tmp_path / "10"), rtol=1e-4, atol=1e-6)
    assert deploy(serving, second)[1] == [f"INFO InferenceService {serving}/shop has {second} already"]

    with pytest.raises(DeploymentFailed) as error:
        deploy(serving, first, service_account="default")
    assert "container storage-initializer" in str(error.value)
    assert "Unable to locate credentials" in str(error.value)
    assert "Pass a service_account that lists such a Secret" in str(error.value)
    assert str(error.value).endswith(f"has {second} again. It is ready.")
    assert copies(second) == [spec_of(serving)["model"]["storageUri"] + "10/saved_model.pb"]
    np.testing.assert_allclose(predict(serving, ROWS), expected(second, tmp_path / "again"), rtol=1e-4, atol=1e-6)

    store = open_store(second)
    store.delete([entry.key for entry in store.list()])
    restart_pods(serving)
    np.testing.assert_allclose(predict(serving, ROWS), expected(second, tmp_path / "again"), rtol=1e-4, atol=1e-6)
    store.upload_folder(tmp_path / "10")


def test_a_first_deployment_that_fails_is_deleted(serving, versions):
    with pytest.raises(DeploymentFailed, match="was deleted, because it had no version before"):
        deploy(serving, versions[0], service_account="default")
    assert copies(versions[0]) == []
    # A finalizer of KServe keeps it for some seconds.
    services = client.CustomObjectsApi()
    changes = watch.Watch().stream(
        services.list_namespaced_custom_object, *PATH, serving, "inferenceservices", timeout_seconds=60
    )
    assert (
        any(change["type"] == "DELETED" for change in changes)
        or not services.list_namespaced_custom_object(*PATH, serving, "inferenceservices")["items"]
    )


def test_a_node_without_room_is_named(serving, versions):
    with pytest.raises(DeploymentFailed, match=r"no node has room for pod shop-predictor-.*Insufficient memory"):
        deploy(serving, versions[0], minutes=1, memory="900Gi")


def test_what_standard_mode_ignores_is_refused(serving, versions):
    with pytest.raises(ValueError, match="canary_percent=20 needs KServe's mode Knative"):
        deploy(serving, versions[0], canary_percent=20)
    with pytest.raises(client.ApiException, match="Not Found"):
        spec_of(serving)


TASK = "p/9f7d2f5e-2c8b-4d0e-a1b5-0f0f5d5e0001/deploy-model/1f7d2f5e-2c8b-4d0e-a1b5-0f0f5d5e0001/deployment"
PROGRAM = """
import sys
from kfp import dsl
from kfp_distributed.components.deploy_model.step import run_step
print(run_step(deployment=dsl.Artifact(uri=sys.argv[1]), name="shop", namespace=sys.argv[2], model_uri=sys.argv[3],
               service_account="models", timeout_minutes=8))
"""


def grant(namespace, account):
    """Give an account the Role of deploy/deploy-model.yaml in the namespace."""
    role, binding = yaml.safe_load_all((Path(__file__).parents[2] / "deploy" / "deploy-model.yaml").read_text())
    rbac = client.RbacAuthorizationV1Api()
    rbac.create_namespaced_role(namespace, role, field_validation="Strict")
    rbac.create_namespaced_role_binding(namespace, {**binding, "subjects": [account]}, field_validation="Strict")


def test_the_compiled_step_deploys_from_a_pod(
    api, serving, versions, training_namespace, run_in_pod, image_specs, tmp_path
):
    """In another namespace than its own."""
    grant(serving, {"kind": "ServiceAccount", "name": "pipeline-runner", "namespace": training_namespace})
    parameters = {"name": "shop", "namespace": serving, "model_uri": versions[0], "service_account": "models"}
    run = Run("/steps", str(uuid.uuid4()))
    command = step_command("deploy_model", run, parameters, {}, specs=image_specs)
    step = StepContainer("deploy_model", image_of(image_specs, "deploy_model"), command)
    log = logs_of(api, run_in_pod("deploy", [step]))["deploy-model"]
    assert f"created InferenceService {serving}/shop" in log, log
    assert spec_of(serving)["model"]["storageUri"] in "".join(copies(versions[0])), log
    np.testing.assert_allclose(predict(serving, ROWS), expected(versions[0], tmp_path / "1"), rtol=1e-4, atol=1e-6)


def test_the_role_is_enough_for_the_step(api, serving, versions, tmp_path):
    api.create_namespaced_service_account(serving, {"metadata": {"name": "step"}})
    grant(serving, {"kind": "ServiceAccount", "name": "step"})
    token = api.create_namespaced_service_account_token("step", serving, {"spec": {}}).status.token
    source = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    name = config.list_kube_config_contexts()[1]["context"]["cluster"]
    clusters = [entry for entry in source["clusters"] if entry["name"] == name]
    context = {"cluster": name, "user": "step", "namespace": serving}
    kubeconfig = {
        "clusters": clusters,
        "users": [{"name": "step", "user": {"token": token}}],
        "contexts": [{"name": "step", "context": context}],
        "current-context": "step",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")}
    killed = start(tmp_path, serving, versions[0], environment)
    lines = []
    for line in killed.stdout:
        lines.append(line)
        if "created InferenceService" in line:
            break
    killed.kill()
    killed.communicate()
    assert "created InferenceService" in lines[-1], lines

    retried = start(tmp_path, serving, versions[0], environment)
    printed, _ = retried.communicate()
    assert retried.returncode == 0, printed
    assert "adopted the deployment" in printed
    assert "has copied" not in printed
    assert json.loads((tmp_path / TASK).read_text())["version"] == 1
    assert len(copies(versions[0])) == 1


def start(folder, namespace, uri, environment=None, task=None):
    """Start the step in a process."""
    output = folder / (task or TASK)
    output.parent.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(output), namespace, uri],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_of_two_deployments_at_once_one_stays(serving, versions, tmp_path):
    steps = [start(tmp_path, serving, uri, task=TASK.replace("-0001/", f"-000{uri[-1]}/")) for uri in versions]
    printed = [step.communicate()[0] for step in steps]
    winners = [number for number, step in zip((1, 10), steps, strict=True) if step.returncode == 0]
    assert winners, printed
    assert all(
        "somebody else has deployed another version" in text
        for text, step in zip(printed, steps, strict=True)
        if step.returncode
    )
    stays = spec_of(serving)["model"]["storageUri"]
    assert copies(versions[0]) in ([f"{stays}{number}/saved_model.pb"] for number in winners)
