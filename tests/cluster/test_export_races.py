"""Exports that race or are killed, and an export without bytes of the model, against the cluster's object store."""

import uuid

import pytest
from export_race_checks import (
    check_a_race,
    check_a_race_for_one_version,
    check_killed_deletions,
    check_kills,
    store_model,
)
from minio import Minio

from kfp_distributed.components.export_model.model_source import open_source
from kfp_distributed.storage.kubeflow.credentials import credentials_from_environment
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.cluster


@pytest.fixture
def bucket(store_environment, monkeypatch):
    for name, value in store_environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://kfp-distributed-test-{uuid.uuid4().hex[:12]}")
    store.make_bucket()
    yield store.bucket
    store.delete([entry.key for entry in store.list()])
    account = credentials_from_environment()
    Minio(account.endpoint, account.access_key, account.secret_key, secure=account.secure).remove_bucket(store.bucket)


@pytest.mark.parametrize("check", [check_a_race, check_a_race_for_one_version, check_kills, check_killed_deletions])
def test_exports_on_the_store_of_the_cluster(bucket, tmp_path, check):
    check(store_model(tmp_path, bucket), bucket)


def test_the_server_refuses_to_copy_an_object_that_was_replaced(bucket, tmp_path):
    target = open_store(f"s3://{bucket}")
    source = open_source("", store_model(tmp_path, bucket), target)
    assert source.is_on(target)
    target.copy(source.store, "part01", "copy", source.states["part01"].etag)
    source.store.write("part01", b"replaced")
    with pytest.raises(Exception, match="the object was replaced while it was copied"):
        target.copy(source.store, "part01", "copy", source.states["part01"].etag)


def test_an_object_of_more_than_five_gigabytes_is_copied_in_parts(bucket, monkeypatch):
    """The limit of one copy is lowered to its smallest part."""
    monkeypatch.setattr("minio.api.MAX_PART_SIZE", 5 << 20)
    store = open_store(f"s3://{bucket}")
    content = bytes(range(256)) * (48 << 10)
    store.write("large", content)
    (state,) = (state for state in store.states() if state.key == "large")
    store.copy(store, "large", "copy", state.etag)
    assert store.read("copy") == content
