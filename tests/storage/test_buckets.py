"""Missing buckets: a typo must not create one."""

import re

import pytest

from kfp_distributed.storage import open_store
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.object_stores.buckets import EMBEDDED_STORE_VARIABLE, require_bucket


def test_a_missing_bucket_is_refused_and_not_created(server):
    store = open_store("s3://no-such-bucket/jobs", server.credentials())
    with pytest.raises(ValueError, match=r"^checkpoint_uri='s3://no-such-bucket/jobs' .*'no-such-bucket'") as error:
        require_bucket(store, "checkpoint_uri", "s3://no-such-bucket/jobs")
    assert f"aws s3 mb s3://no-such-bucket --endpoint-url {server.endpoint} " in str(error.value)
    assert not store.bucket_exists()


def test_the_error_says_how_to_reach_a_store_in_the_cluster():
    class InCluster:
        bucket, endpoint = "models", "http://seaweedfs.kubeflow:9000"

        def bucket_exists(self):
            return False

    with pytest.raises(ValueError, match="does not exist") as error:
        require_bucket(InCluster(), "bucket", "models")
    store = "http://seaweedfs.kubeflow:9000"
    assert str(error.value) == (
        f"bucket='models' names the bucket 'models', which does not exist on {store}: correct the name, or create the "
        f"bucket with aws s3 mb s3://models --endpoint-url {store} or mc mb ALIAS/models. Outside of the cluster, run "
        "kubectl port-forward --namespace kubeflow service/seaweedfs 9000 before, and use http://localhost:9000"
    )


def test_an_existing_bucket_is_accepted(server):
    store = open_store("s3://existing-bucket/jobs", server.credentials())
    store.make_bucket()
    require_bucket(store, "checkpoint_uri", "s3://existing-bucket/jobs")
    assert store.list() == []


def test_buckets_of_the_server_of_a_local_run_and_folders_are_created(server, tmp_path, monkeypatch):
    folder = open_store(str(tmp_path / "a" / "b"))
    require_bucket(folder, "bucket", folder.uri)
    monkeypatch.setenv(EMBEDDED_STORE_VARIABLE, "true")
    store = open_store("s3://bucket-of-the-run/jobs", server.credentials())
    require_bucket(store, "checkpoint_uri", store.uri)
    assert (folder.bucket_exists(), store.bucket_exists()) == (True, True)


@pytest.mark.parametrize("name", ["b", "-models", "models..digits", "1.2.3.4"])
def test_the_error_of_a_name_that_no_bucket_can_have_has_the_rule(server, name):
    store = open_store(f"s3://{name}/digits", server.credentials())
    for request in (store.bucket_exists, store.list, lambda: store.write("a", b"")):
        with pytest.raises(StorageError, match=rf"no valid name of a bucket: 3 to 63 lower-case .*{re.escape(name)}"):
            request()
