"""The object store of a cluster's pipelines, and the API server of the cluster, for the commands that read both."""

import base64
import json
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from kubernetes_api import KubernetesApi

from kfp_distributed.storage import Credentials, embedded_object_store, open_store
from kfp_distributed.storage.store import Store

_CONTAINER = {"name": "minio", "ports": [{"name": "http", "containerPort": 9001}]}


class Pipelines(NamedTuple):
    """Attributes: the API server, the pipeline root, and the credentials of its store as this machine reaches it."""

    api: KubernetesApi
    root: Store
    credentials: Credentials


@pytest.fixture
def pipelines(tmp_path, monkeypatch):
    """A cluster whose store has the bucket pipelines. The environment names the cluster alone."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("KFP_DISTRIBUTED_OBJECT_STORE_SECRET", raising=False)
    with embedded_object_store(tmp_path / "objects") as server, KubernetesApi() as api:
        (tmp_path / "objects" / "pipelines").mkdir()
        api.put("configmaps/kfp-launcher", {"metadata": {}, "data": {"defaultPipelineRoot": "s3://pipelines/root"}})
        keys = {"accesskey": server.access_key, "secretkey": server.secret_key}
        data = {name: base64.b64encode(value.encode()).decode() for name, value in keys.items()}
        api.put("secrets/mlpipeline-minio-artifact", {"metadata": {}, "data": data})
        ports = [{"name": "http", "port": 9000, "targetPort": "http"}]
        name = {"name": "minio-service", "namespace": "default"}
        api.put("services/minio-service", {"metadata": name, "spec": {"selector": {"app": "minio"}, "ports": ports}})
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        labels = {"name": "minio-0", "labels": {"app": "minio"}}
        api.put("pods/minio-0", {"metadata": labels, "spec": {"containers": [_CONTAINER]}, "status": ready})
        address = urlsplit(server.endpoint)
        api.forwards["minio-0:9001"] = (address.hostname, address.port)
        file = tmp_path / "kubeconfig"
        context = {"cluster": "it", "user": "me", "namespace": "default"}
        file.write_text(
            json.dumps(
                {
                    "current-context": "it",
                    "contexts": [{"name": "it", "context": context}],
                    "clusters": [{"name": "it", "cluster": {"server": f"http://127.0.0.1:{api.port}"}}],
                    "users": [{"name": "me", "user": {}}],
                }
            )
        )
        monkeypatch.setenv("KUBECONFIG", str(file))
        # The client has read KUBECONFIG when it was imported.
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
        yield Pipelines(api, open_store("s3://pipelines/root", server.credentials()), server.credentials())
