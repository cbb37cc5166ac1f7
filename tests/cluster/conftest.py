"""The cluster of KUBECONFIG, and a namespace for a test that is gone after it."""

import base64
import os
import uuid

import pytest
from kubernetes import client, config, watch


@pytest.fixture(scope="session")
def api():
    config.load_config()
    return client.CoreV1Api()


@pytest.fixture(scope="session")
def object_store_secret(api):
    """Access and secret key of the object store that Kubeflow Pipelines has in namespace kubeflow."""
    data = api.read_namespaced_secret("mlpipeline-minio-artifact", "kubeflow").data
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


@pytest.fixture
def namespace(api):
    name = f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    api.create_namespace({"metadata": {"name": name}})
    # A pod is refused until the namespace has its service account.
    accounts = watch.Watch()
    for event in accounts.stream(api.list_namespaced_service_account, name, timeout_seconds=60):
        if event["object"].metadata.name == "default":
            accounts.stop()
    yield name
    api.delete_namespace(name)


@pytest.fixture(scope="session")
def store_endpoint():
    """The object store's address as this machine sees it."""
    return os.environ.get("S3_ENDPOINT", "http://minio-service.kubeflow:9000")
