import math

import pytest

from kfp_distributed.components.export_model.export import check_request, export_root, finite_numbers, next_version
from kfp_distributed.storage import open_store
from kfp_distributed.storage.errors import StorageError


@pytest.mark.parametrize(
    ("bucket", "expected"),
    [
        ("models", "s3://models"),
        ("models/team-a", "s3://models/team-a"),
        ("s3://models/team-a", "s3://models/team-a"),
        ("minio://models", "minio://models"),
        ("/srv/models", "/srv/models"),
        ("./models", "./models"),
        ("file:///srv/Models", "file:///srv/Models"),
    ],
)
def test_export_root(bucket, expected):
    assert export_root(bucket) == expected


@pytest.mark.parametrize("name", ["ab", "Models", "my_models", "minio://X/y", "models-", "a" * 64])
def test_invalid_names_of_buckets(bucket, make_model, export, name):
    with pytest.raises((StorageError, ValueError), match="name"):
        export(make_model(), name)


@pytest.mark.parametrize("name", ["", "s3:///x", "gs://models"])
def test_an_empty_bucket_is_refused(make_model, export, name):
    with pytest.raises(ValueError, match=rf"'({name}|s3://)' is not a storage address"):
        export(make_model(), name)


@pytest.mark.parametrize("name", ["digits", "3", "A.b-c_d", "x" * 128])
def test_model_names(name):
    check_request(name, 0)


@pytest.mark.parametrize("name", ["", "..", ".exports", "a/b", "a b", "é", "x" * 129, "a\n"])
def test_invalid_model_names(name):
    with pytest.raises(ValueError, match=r"model_name=.* is not allowed"):
        check_request(name, 0)


@pytest.mark.parametrize("version", [-1, 2**63])
def test_invalid_versions(version):
    with pytest.raises(ValueError, match=f"version={version} is not allowed: give 1 or more"):
        check_request("digits", version)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([], 1),
        (["m/1/saved_model.pb", "m/2/variables/a", "m/10/saved_model.pb"], 11),
        (["m/1/saved_model.pb", ".exports/m/2/1795239203-ab/claim"], 3),
        (["m/latest/saved_model.pb", "m/v3/saved_model.pb", "m/³/x", "m/5", "m/README.md", ".exports/m/notes"], 1),
        (["7/0007/saved_model.pb", "7/3/assets/9/x"], 8),
    ],
)
def test_next_version(keys, expected):
    assert next_version(keys) == expected


def test_finite_numbers():
    values = {"a": 1, "b": 0.5, "c": math.inf, "d": "x", "e": True, "f": {"struct": {}}, "g": None, "h": -(10**400)}
    assert finite_numbers(values) == {"a": 1, "b": 0.5}


def test_a_missing_bucket_is_refused_and_not_created(bucket, make_model, export):
    with pytest.raises(ValueError, match=rf"^bucket='{bucket}-typo/team' names the bucket '{bucket}-typo', which"):
        export(make_model(), f"{bucket}-typo/team")
    assert not open_store(f"s3://{bucket}-typo").bucket_exists()
