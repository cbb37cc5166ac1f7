"""Exports of versions that are exported already: to another bucket, another folder, or under another name."""

import json
from pathlib import Path

import pytest
from faulty_proxy import faulty_proxy
from seaweedfs import on_each_store

from kfp_distributed.components.export_model.export import run_export
from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.model_versions.aliases import read_aliases, remove_alias, set_alias
from kfp_distributed.components.model_versions.versions import VersionRefused
from kfp_distributed.storage.files import list_files
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(9)

TASK = "minio://mlpipeline/v2/artifacts/digits/4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11/export-model/"
FIRST, SECOND = TASK + "11111111-aaaa-4bbb-8ccc-dddddddddddd", TASK + "22222222-aaaa-4bbb-8ccc-dddddddddddd"


class Manifest:
    """Output artifact whose address is that of a pipeline root and whose file is local."""

    def __init__(self, task, path):
        self.uri, self.path, self.metadata = f"{task}/manifest", str(path), {}


@pytest.fixture
def promote(tmp_path):
    """Return a function that exports an address as an attempt of a task."""

    def run(uri, root, name="digits", task=FIRST, **options):
        manifest: Artifact = Manifest(task, tmp_path / "manifest")
        return run_export("", uri, name, root, 0, {}, manifest, **options)

    return run


def version_files(contents, root, prefix):
    return {key.removeprefix(prefix): data for key, data in contents(root).items() if key.startswith(prefix)}


def check_promoted(contents, root, prefix, model, source):
    files = version_files(contents, root, prefix)
    manifest = json.loads(files.pop("export.json"))
    assert files == {name: (model / name).read_bytes() for name in list_files(model)}
    assert manifest["source_uri"] == source
    assert sorted(entry["path"] for entry in manifest["files"]) == sorted(files)


@on_each_store
@pytest.mark.parametrize("address", ["digits@candidate", "digits/1", "digits@latest"])
def test_the_server_copies_a_version_to_another_place(
    server, bucket, make_model, export, promote, contents, monkeypatch, address
):
    model = make_model()
    staging, production = f"{bucket}/staging", f"{bucket}/production"
    export(model, staging, aliases=["candidate"])
    promote(f"s3://{staging}/digits/1", production, "numbers", SECOND)
    with faulty_proxy(server.endpoint) as proxy, monkeypatch.context() as patch:
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            patch.setenv(name, proxy.url)
        exported = promote(f"s3://{staging}/{address}", production, "numbers", aliases=["production"], keep=1)
        assert proxy.body_bytes < 50_000, "the model has more than 100,000 bytes"
    assert exported == (f"s3://{production}/numbers/2", 2)
    check_promoted(contents, f"s3://{production}", "numbers/2/", model, f"s3://{staging}/digits/1")
    assert read_aliases(open_store(f"s3://{production}"), "numbers") == {"production": 2}
    assert not version_files(contents, f"s3://{production}", "numbers/1/")


@pytest.mark.parametrize("address", ["digits@candidate", "digits/1"])
def test_a_local_version_is_exported_elsewhere(bucket, tmp_path, make_model, export, promote, contents, address):
    model, staging = make_model(), tmp_path / "staging"
    export(model, str(staging), aliases=["candidate"])
    for number, root in enumerate((f"s3://{bucket}", str(tmp_path / "production"))):
        exported = promote(f"{staging}/{address}", root, task=(FIRST, SECOND)[number])
        assert exported == (f"{root}/digits/1", 1)
        check_promoted(contents, root, "digits/1/", model, f"{staging}/digits/1")


def test_a_version_is_exported_as_an_artifact(bucket, tmp_path, make_model, export, contents):
    """As dsl.importer passes it, also if the step cannot read the address."""
    model = make_model()
    version = Path(export(model, str(tmp_path / "staging")).uri)
    for number, uri in enumerate((str(version), "gs://staging/digits/1"), 1):
        export(version, bucket, uri=uri)
        check_promoted(contents, f"s3://{bucket}", f"digits/{number}/", model, uri)


def test_a_second_attempt_returns_the_version_after_the_alias_moved(bucket, make_model, export, promote, contents):
    staging, production = f"{bucket}/staging", f"s3://{bucket}/production"
    export(make_model(), staging, aliases=["candidate"])
    export(make_model("other", content=b"other"), staging)
    uri, store = f"s3://{staging}/digits@candidate", open_store(f"s3://{staging}")
    first = promote(uri, production)
    set_alias(store, "digits", 2, "candidate")
    before = contents(production)
    assert promote(uri, production) == first
    remove_alias(store, "digits", "candidate")
    assert promote(uri, production) == first
    assert contents(production) == before
    set_alias(store, "digits", 2, "candidate")
    assert promote(uri, production, task=SECOND).version == 2
    assert contents(production)["digits/2/saved_model.pb"] == b"other"


def test_a_missing_alias_is_refused_before_anything_is_written(bucket, make_model, export, promote, contents):
    staging = f"s3://{bucket}/staging"
    export(make_model(), staging)
    with pytest.raises(VersionRefused, match=r"^s3://.*/digits has no alias 'candidate'; it has latest$"):
        promote(f"{staging}/digits@candidate", f"s3://{bucket}/production")
    with pytest.raises(ValueError, match=r"^model_uri: 'gs://staging' is not a storage address"):
        promote("gs://staging/digits@candidate", f"s3://{bucket}/production")
    assert contents(f"s3://{bucket}/production") == {}
