import math

import pytest

from kfp_distributed.components.export_model.export import check_version, finite_numbers
from kfp_distributed.components.model_versions.addresses import (
    check_model_name,
    default_export_root,
    export_root,
)
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


OUTPUT = "digits/{run}/export-model/{run}/manifest".format(run="4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11")


@pytest.mark.parametrize(
    ("output_uri", "expected"),
    [
        (f"minio://mlpipeline/v2/artifacts/{OUTPUT}", "minio://mlpipeline/models"),
        (
            f"minio://mlpipeline/private-artifacts/team/v2/artifacts/{OUTPUT}",
            "minio://mlpipeline/private-artifacts/team/models",
        ),
        (f"s3://team/{OUTPUT}?region=eu-1&endpoint=http://h/a", "s3://team/models?region=eu-1&endpoint=http://h/a"),
        (f"s3://team/v2/artifacts/{OUTPUT}?region=eu-1", "s3://team/models?region=eu-1"),
        (f"s3://team/artifacts/{OUTPUT}", "s3://team/artifacts/models"),
        (f"s3://team/root/v2/artifacts-2/{OUTPUT}", "s3://team/root/v2/artifacts-2/models"),
        (f"/mnt/v2/artifacts/{OUTPUT}", "/mnt/v2/models"),
        (f"s3://v2/artifacts/{OUTPUT}", "s3://v2/artifacts/models"),
        ("/home/me/run/artifacts/digits-2026-11-23-05-27-00-123456/export-model/manifest", "/home/me/run/models"),
        ("/home/me/local_outputs/digits-2026-11-23/export-model/manifest", "/home/me/local_outputs/models"),
    ],
)
def test_default_export_root(output_uri, expected):
    assert default_export_root(output_uri) == expected


@pytest.mark.parametrize(
    ("output_uri", "message"),
    [
        ("s3://team/manifest", "bucket is empty, and the output s3://team/manifest is in no known pipeline root"),
        (f"gs://team/root/{OUTPUT}", "bucket is empty, and the pipeline root cannot have models: 'gs://team' is not"),
    ],
)
def test_without_a_default_export_root_a_bucket_is_required(output_uri, message):
    with pytest.raises(ValueError, match=rf"^{message}.*pass bucket, such as s3://BUCKET or s3://BUCKET/PREFIX\.$"):
        default_export_root(output_uri)


@pytest.mark.parametrize("name", ["ab", "Models", "my_models", "minio://X/y", "models-", "a" * 64])
def test_invalid_names_of_buckets(bucket, make_model, export, name):
    with pytest.raises((StorageError, ValueError), match="name"):
        export(make_model(), name)


@pytest.mark.parametrize("name", ["s3:///x", "gs://models"])
def test_an_address_without_a_bucket_is_refused(make_model, export, name):
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
