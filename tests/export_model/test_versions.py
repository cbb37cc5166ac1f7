import math

import pytest

from kfp_distributed.components.export_model.export import check_version, finite_numbers
from kfp_distributed.components.model_versions.addresses import check_model_name, export_root
from kfp_distributed.components.model_versions.versions import LARGEST_VERSION, next_version
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
    check_model_name(name)


@pytest.mark.parametrize("name", ["", "..", ".exports", "a/b", "a b", "é", "x" * 129, "a\n"])
def test_invalid_model_names(name):
    with pytest.raises(ValueError, match=r"model_name=.* is not allowed"):
        check_model_name(name)


@pytest.mark.parametrize("version", [-1, 2**63])
def test_invalid_versions(version):
    with pytest.raises(ValueError, match=f"version={version} is not allowed: give 1 or more"):
        check_version(version)


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        ([], 1),
        (["1/", "2/", "10/"], 11),
        (["latest/", "v3/", "³/", "5", "README.md", "tasks/"], 1),
        (["0007/", "3/"], 8),
        # Larger than int64, which is what servers read: not a version.
        (["99999999999999999999/", f"{2**63}/", "9" * 5000 + "/", "4/"], 5),
        ([f"{LARGEST_VERSION - 1}/"], LARGEST_VERSION),
    ],
)
def test_next_version(folders, expected):
    assert next_version(folders) == expected


def test_there_is_no_number_after_the_largest():
    with pytest.raises(
        ValueError, match=rf"^version {2**63 - 1} exists, which is the largest number: give a free number"
    ):
        next_version([f"{2**63 - 1}/"])


def test_finite_numbers():
    values = {"a": 1, "b": 0.5, "c": math.inf, "d": "x", "e": True, "f": {"struct": {}}, "g": None, "h": -(10**400)}
    assert finite_numbers(values) == {"a": 1, "b": 0.5}


def test_a_missing_bucket_is_refused_and_not_created(bucket, make_model, export):
    with pytest.raises(ValueError, match=rf"^bucket='{bucket}-typo/team' names the bucket '{bucket}-typo', which"):
        export(make_model(), f"{bucket}-typo/team")
    assert not open_store(f"s3://{bucket}-typo").bucket_exists()
