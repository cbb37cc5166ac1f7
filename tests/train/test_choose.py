"""Which runner a step gets, and where its pods find the object store."""

from http import HTTPStatus

import pytest
from train.kubernetes_api import KubernetesApi
from train.programs.jobs import make_job

from kfp_distributed.cli.render import PaperCluster
from kfp_distributed.components.train.runners.choose import (
    _object_store,
    _reader,
    choose_runner,
    kubernetes_runner,
)
from kfp_distributed.components.train.runners.local.runner import LocalRunner
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.storage.kfp_store import SECRET_VARIABLE, MayNotRead, StoreReference


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in ("KUBECONFIG", SECRET_VARIABLE, "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["auto", "local"])
def test_without_a_cluster_it_is_local(name):
    assert isinstance(choose_runner(name), LocalRunner)


def test_pods_cannot_reach_the_store_of_a_local_run(tmp_path):
    with local_run(tmp_path), pytest.raises(ValueError, match=r"^runner = 'kubernetes': .*embedded_store=False\)$"):
        choose_runner("kubernetes")


@pytest.mark.parametrize("text", [None, "just text", "[not: a: configuration", "apiVersion: v1"])
def test_auto_asks_the_cluster_that_kubeconfig_names(monkeypatch, tmp_path, text):
    file = tmp_path / "configuration"
    if text:
        file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(ValueError, match=f"^{file} is no configuration of a cluster, set KUBECONFIG to one: .*$"):
        choose_runner("auto")


def of_cluster(*paths):
    """Reads a cluster that has nothing but these."""
    return lambda path: {} if path in paths else None


@pytest.mark.parametrize(
    ("object_path", "advice"),
    [
        ("secrets/mlpipeline-minio-artifact", "; run kfp-distributed install --namespace default .*"),
        ("configmaps/kfp-launcher", "; run kfp-distributed install --namespace default .*"),
        ("secrets/own-keys", "install --namespace default .*, and add this Secret to the Role kfp-distributed-train$"),
    ],
)
def test_an_object_that_may_not_be_read_names_the_command_that_allows_it(object_path, advice):
    with KubernetesApi() as server:
        server.refuses = HTTPStatus.FORBIDDEN
        with pytest.raises(MayNotRead, match=advice):
            _reader(server.connect())(f"/api/v1/namespaces/default/{object_path}")


SERVICE = "/api/v1/namespaces/kubeflow/services/minio-service"


def test_the_store_of_kubeflow_pipelines():
    read = of_cluster(SERVICE, "/api/v1/namespaces/team-a/secrets/mlpipeline-minio-artifact")
    found = _object_store(read, "team-a", "s3://models/digits")
    assert found == StoreReference("minio-service.kubeflow:9000", "mlpipeline-minio-artifact", "team-a")


@pytest.mark.parametrize("secret", ["own-keys", "team-a/own-keys"])
def test_a_secret_that_the_environment_names(monkeypatch, secret):
    monkeypatch.setenv(SECRET_VARIABLE, secret)
    keys = "/api/v1/namespaces/team-a/secrets/own-keys"
    found = _object_store(of_cluster(SERVICE, keys), "team-a", "s3://models")
    assert found == StoreReference("minio-service.kubeflow:9000", "own-keys", "team-a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store.example.com")
    found = _object_store(of_cluster(keys), "team-a", "s3://models")
    assert found == StoreReference("store.example.com", "own-keys", "team-a", secure=True)
    with pytest.raises(ValueError, match=r"^there is no Secret team-a/own-keys, "):
        _object_store(of_cluster(), "team-a", "s3://models")


def test_a_secret_that_the_pods_cannot_see(monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, "team-b/own-keys")
    with pytest.raises(ValueError, match="'team-b/own-keys' is not in team-a, where the job's pods run"):
        _object_store(of_cluster(), "team-a", "s3://models")


def test_what_is_set_on_the_task_is_for_the_pods():
    config = {"node_selector": {"disk": "ssd"}, "env": [{"name": "MODE", "value": "fast"}], "affinity": None}
    runner = kubernetes_runner(PaperCluster("team-a", "v1"), "minio://mlpipeline/model", task_config=config)
    runner.check(make_job(["unused"]))
    pod = runner.manifest["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["containers"][0]["env"][-1] == {"name": "MODE", "value": "fast"}


def test_a_task_config_of_another_form_is_refused_before_anything_is_asked():
    with pytest.raises(ValueError, match="task_config: env is not a list of dicts, each with a name"):
        kubernetes_runner(PaperCluster("team-a", "v1"), "minio://mlpipeline/model", task_config={"env": ["MODE=fast"]})
