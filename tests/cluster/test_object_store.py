"""The S3 store against the object store of a real cluster, with the keys of its Secret."""

import os
import sys
import uuid
from pathlib import Path

import pytest
from minio import Minio

from kfp_distributed.storage import credentials_from_secret, open_store

sys.path.insert(0, str(Path(__file__).parent.parent / "storage"))
from store_contract import StoreContract

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="session")
def credentials():
    return credentials_from_secret(
        "mlpipeline-minio-artifact", "kubeflow", endpoint=os.environ.get("S3_ENDPOINT", "http://minio-service:9000")
    )


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
