"""The S3 store with the object store of a real cluster, located in the way of Kubeflow Pipelines."""

import os
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from minio import Minio

from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.cluster_api.reader import reader
from kfp_distributed.storage import Credentials, credentials_from_environment, open_store
from kfp_distributed.storage.kubeflow.kfp_store import (
    StoreReference,
    environment_entries,
    find_object_store,
    read_credentials,
)
from kfp_distributed.storage.uri import parse_endpoint

sys.path.insert(0, str(Path(__file__).parent.parent / "storage"))
from store_contract import StoreContract

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="session")
def installed():
    """Reference to the object store of namespace kubeflow, read from the API."""
    return find_object_store(reader(connect()), "kubeflow")


@pytest.fixture(scope="session")
def credentials(installed):
    access_key, secret_key = read_credentials(reader(connect()), installed)
    host, secure = parse_endpoint(os.environ.get("S3_ENDPOINT", f"http://{installed.endpoint}"))
    return Credentials(host, access_key, secret_key, secure=secure)


@pytest.fixture(scope="session")
def bucket(credentials):
    store = open_store(f"s3://kfp-distributed-test-{uuid.uuid4().hex[:12]}", credentials)
    store.make_bucket()
    yield store
    store.delete([entry.key for entry in store.list()])
    endpoint, secure = credentials.endpoint, credentials.secure
    Minio(endpoint, credentials.access_key, credentials.secret_key, secure=secure).remove_bucket(store.bucket)


class TestObjectStoreOfTheCluster(StoreContract):
    @pytest.fixture
    def store(self, bucket, credentials):
        return open_store(f"{bucket.uri}/{uuid.uuid4().hex}/ä +#", credentials)


def test_the_installed_store_is_found(installed):
    assert installed.endpoint in ("seaweedfs.kubeflow:9000", "minio-service.kubeflow:9000")
    assert installed == StoreReference(installed.endpoint, "mlpipeline-minio-artifact", "kubeflow")


def test_a_namespace_without_keys_is_an_error(namespace):
    with pytest.raises(ValueError, match=f"Secret {namespace}/mlpipeline-minio-artifact .*doctor.* AWS"):
        find_object_store(reader(connect()), namespace)


def test_the_settings_of_the_kfp_launcher_are_used(api, namespace, installed, credentials):
    own = {"secretName": "own", "accessKeyKey": "id", "secretKeyKey": "key"}
    default = {"endpoint": installed.endpoint, "disableSSL": True, "credentials": {"secretRef": own}}
    override = {"bucketName": "elsewhere", "endpoint": "elsewhere:1", "credentials": {"secretRef": own}}
    providers = yaml.safe_dump({"minio": {"default": default, "overrides": [override]}})
    api.create_namespaced_config_map(
        namespace, {"metadata": {"name": "kfp-launcher"}, "data": {"providers": providers}}
    )
    keys = {"id": credentials.access_key, "key": credentials.secret_key}
    api.create_namespaced_secret(namespace, {"metadata": {"name": "own"}, "stringData": keys})

    read = reader(connect())
    reference = find_object_store(read, namespace, "minio://mlpipeline/v2")
    assert reference == StoreReference(installed.endpoint, "own", namespace, "id", "key")
    assert find_object_store(read, namespace, "s3://elsewhere/x") == replace(reference, endpoint="elsewhere:1")
    assert read_credentials(read, reference) == [credentials.access_key, credentials.secret_key]
    # The API server accepts the environment of a container with this store.
    pod = {
        "metadata": {"name": "a-pod"},
        "spec": {"containers": [{"name": "c", "image": "none:1", "env": environment_entries(reference)}]},
    }
    assert api.create_namespaced_pod(namespace, pod, dry_run="All").spec.containers[0].env[1].name == (
        "AWS_ACCESS_KEY_ID"
    )


def test_a_secret_of_the_cluster_opens_the_store(credentials, bucket):
    env = {
        "KFP_DISTRIBUTED_OBJECT_STORE_SECRET": "kubeflow/mlpipeline-minio-artifact",
        "AWS_ENDPOINT_URL": f"http{'s' * credentials.secure}://{credentials.endpoint}",
    }
    assert credentials_from_environment(env) == credentials
    store = open_store(bucket.uri, credentials_from_environment(env))
    store.write("key", b"1")
    assert store.read("key") == b"1"
