"""The runner that a step uses, and the object store of its pods."""

from http import HTTPStatus

import pytest
from kubernetes_api import KubernetesApi
from train.programs.jobs import make_job, workers

from kfp_distributed.cluster_api.reader import MayNotRead
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.runners.runner_choice import (
    choose_runner,
    cluster_reader,
    kubernetes_runner,
    pod_object_store,
)
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.storage.kubeflow.kfp_store import SECRET_VARIABLE, StoreReference


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("KUBECONFIG", SECRET_VARIABLE, "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["auto", "local"])
def test_without_a_cluster_the_local_runner_is_used(name):
    assert isinstance(choose_runner(name, log), LocalRunner)


def test_pods_cannot_reach_the_store_of_a_local_run(tmp_path):
    with local_run(tmp_path), pytest.raises(ValueError, match=r"^runner = 'kubernetes': .*embedded_store=False\)"):
        choose_runner("kubernetes", log)


@pytest.mark.parametrize("text", [None, "just text", "[not: a: configuration", "apiVersion: v1"])
def test_auto_uses_the_cluster_of_kubeconfig(monkeypatch, tmp_path, text):
    file = tmp_path / "configuration"
    if text:
        file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(ValueError, match=f"{file}.* set KUBECONFIG .*$"):
        choose_runner("auto", log)


def cluster_with(*paths):
    """Return a reader of a cluster that only has these objects."""
    return lambda path: {} if path in paths else None


@pytest.mark.parametrize(
    ("object_path", "advice"),
    [
        ("secrets/mlpipeline-minio-artifact", "; run kfp-distributed install --namespace default .*"),
        ("configmaps/kfp-launcher", "; run kfp-distributed install --namespace default .*"),
        ("secrets/own-keys", "install --namespace default .*, and add this Secret to the Role kfp-distributed-train$"),
    ],
)
def test_a_refused_read_names_the_command_that_grants_the_permission(object_path, advice):
    with KubernetesApi() as server:
        server.refuses = HTTPStatus.FORBIDDEN
        with pytest.raises(MayNotRead, match=advice):
            cluster_reader(server.connect())(f"/api/v1/namespaces/default/{object_path}")


SERVICE = "/api/v1/namespaces/kubeflow/services/minio-service"


def test_the_object_store_of_kubeflow_pipelines_is_the_default():
    read = cluster_with(SERVICE, "/api/v1/namespaces/team-a/secrets/mlpipeline-minio-artifact")
    reference = pod_object_store(read, "team-a", "s3://models/digits")
    assert reference == StoreReference("minio-service.kubeflow:9000", "mlpipeline-minio-artifact", "team-a")


@pytest.mark.parametrize("secret", ["own-keys", "team-a/own-keys"])
def test_the_environment_can_name_another_secret(monkeypatch, secret):
    monkeypatch.setenv(SECRET_VARIABLE, secret)
    keys = "/api/v1/namespaces/team-a/secrets/own-keys"
    reference = pod_object_store(cluster_with(SERVICE, keys), "team-a", "s3://models")
    assert reference == StoreReference("minio-service.kubeflow:9000", "own-keys", "team-a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store.example.com")
    reference = pod_object_store(cluster_with(keys), "team-a", "s3://models")
    assert reference == StoreReference("store.example.com", "own-keys", "team-a", secure=True)
    with pytest.raises(ValueError, match=r"^Secret team-a/own-keys .* does not exist"):
        pod_object_store(cluster_with(), "team-a", "s3://models")


def test_a_secret_of_another_namespace_is_refused(monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, "team-b/own-keys")
    with pytest.raises(ValueError, match="'team-b/own-keys' is not in team-a, where the pods of the job run"):
        pod_object_store(cluster_with(), "team-a", "s3://models")


def cluster_with_store():
    server = KubernetesApi()
    for key in ("secrets/mlpipeline-minio-artifact", "services/minio-service"):
        server.put(key, {"metadata": {"name": key.partition("/")[2]}})
    return server


def test_settings_of_the_task_apply_to_the_pods():
    config = {"node_selector": {"disk": "ssd"}, "env": [{"name": "MODE", "value": "fast"}], "affinity": None}
    with cluster_with_store() as server:
        runner = kubernetes_runner(server.connect(), "minio://mlpipeline/model", log, task_config=config)
        runner.check(make_job(["unused"], workers(2)))
    pod = runner.manifest["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["containers"][0]["env"][-1] == {"name": "MODE", "value": "fast"}


def test_an_invalid_task_config_is_refused_before_any_request():
    with (
        cluster_with_store() as server,
        pytest.raises(ValueError, match="task_config: env is not a list of dicts, each with a name"),
    ):
        kubernetes_runner(server.connect(), "minio://mlpipeline/model", log, task_config={"env": ["MODE=fast"]})
