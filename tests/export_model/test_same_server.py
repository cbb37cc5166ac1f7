"""Exports of models that are objects of a store: without the model's bytes in the step, if the server can copy them."""

import json

import pytest
from faulty_proxy import Fault, faulty_proxy
from seaweedfs import on_each_store

from kfp_distributed.storage.errors import ChecksumMismatch, StorageError
from kfp_distributed.storage.files import describe_folder, list_files
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelIncomplete, ModelManifest
from kfp_distributed.storage.opener import open_store

pytestmark = [on_each_store, pytest.mark.takes(18)]
MODEL_BYTES = 10_000_000
"""Two parts of an upload."""


@pytest.fixture
def proxy(server, bucket, monkeypatch):
    """A proxy in front of the S3 server, which counts what the step sends and receives."""
    with faulty_proxy(server.endpoint) as proxy:
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            monkeypatch.setenv(name, proxy.url)
        yield proxy


@pytest.fixture
def stored(bucket, make_model, server):
    """Return a function that stores a model as `train` does: its folder and its address."""

    def store(folder=None):
        if not folder:
            folder = make_model("stored")
            (folder / "variables" / "large").write_bytes(bytes(MODEL_BYTES))
            (folder / MODEL_MANIFEST).unlink()
            (folder / MODEL_MANIFEST).write_text(ModelManifest(files=describe_folder(folder)).to_json())
        uri = f"minio://{bucket}/v2/artifacts/train/model"
        open_store(uri, server.credentials()).upload_folder(folder)
        return folder, uri

    return store


def objects_below(contents, bucket, prefix):
    return {key.removeprefix(prefix): data for key, data in contents(bucket).items() if key.startswith(prefix)}


def check_version(contents, bucket, folder, uri):
    version = objects_below(contents, bucket, "digits/1/")
    manifest = json.loads(version.pop("export.json"))
    assert version == {name: (folder / name).read_bytes() for name in list_files(folder)}
    assert manifest["source_uri"] == uri
    assert manifest["files"] == [vars(entry) for entry in describe_folder(folder)]
    assert objects_below(contents, bucket, ".exports/digits/1/") == {}


@pytest.mark.parametrize("given", ["artifact", "address"])
def test_no_byte_of_the_model_passes_the_step(given, proxy, bucket, stored, export, contents):
    folder, uri = stored()
    export(folder if given == "artifact" else "", bucket, uri=uri)
    assert proxy.body_bytes < 50_000
    check_version(contents, bucket, folder, uri)


def test_a_model_on_another_server_is_staged(proxy, bucket, stored, export, tmp_path, contents):
    folder, uri = stored()
    exported = export("", str(tmp_path / "exports"), uri=uri)
    assert MODEL_BYTES < proxy.body_bytes < 1.1 * MODEL_BYTES
    assert exported.uri == f"{tmp_path}/exports/digits/1"
    check_version(contents, str(tmp_path / "exports"), folder, uri)


def test_an_address_of_a_folder_is_uploaded(bucket, make_model, export, contents):
    folder = make_model()
    assert export("", bucket, uri=str(folder)).version == 1
    check_version(contents, bucket, folder, str(folder))


def test_an_artifact_in_a_store_that_the_environment_does_not_name_comes_from_the_folder(
    bucket, make_model, export, contents
):
    folder = make_model()
    for uri in ("minio://mlpipeline/v2/artifacts/model", "gs://pipelines/model"):
        assert export(folder, bucket, uri=uri).version in (1, 2)
    assert len(objects_below(contents, bucket, "digits/2/")) == len(list_files(folder)) + 1


def test_an_artifact_of_the_same_address_on_another_server_is_not_mistaken_for_the_model(
    bucket, stored, make_model, export, contents
):
    _, uri = stored()
    folder = make_model("downloaded from elsewhere")
    export(folder, bucket, uri=uri)
    check_version(contents, bucket, folder, uri)


@pytest.mark.parametrize(
    ("uri", "kind", "message"),
    [
        # Without model.json, nothing tells that its upload has ended.
        ("minio://BUCKET/interrupted", ModelIncomplete, r"has no model\.json"),
        ("gs://pipelines/model", ValueError, "'gs://pipelines' is not a storage address"),
        ("s3://no-such-bucket/model", StorageError, "no such bucket"),
        ("minio://BUCKET/empty", ModelIncomplete, r"has no model\.json"),
    ],
)
def test_an_address_without_a_model_is_refused(bucket, export, uri, kind, message, contents):
    open_store(f"s3://{bucket}").write("interrupted/model.onnx", b"model")
    with pytest.raises(kind, match=message):
        export("", bucket, uri=uri.replace("BUCKET", bucket))
    assert [*contents(bucket)] == ["interrupted/model.onnx"]


def test_an_incomplete_stored_model_is_refused(bucket, stored, export, contents):
    _, uri = stored()
    open_store(uri).write("variables/variables.index", b"longer than it was")
    with pytest.raises(ModelIncomplete, match=r"wrong size: variables/variables\.index"):
        export("", bucket, uri=uri)
    assert objects_below(contents, bucket, "digits/") == {}


def replaced_during(fault, server, uri, **changes):
    return Fault(
        fault,
        before=lambda: open_store(uri, server.credentials()).write("assets/words001.txt", b"8"),
        **changes,
    )


def test_an_object_that_is_replaced_during_the_export_is_found(proxy, server, bucket, stored, export, contents):
    """By the condition of the copy, or after all copies, because `rclone serve s3` ignores the condition."""
    _, uri = stored()
    proxy.faults.append(replaced_during(f"PUT /{bucket}/digits/1/assets/words000", server, uri))
    message = r"changed while they were read: \['assets/words001.txt'\]|words001\.txt.* replaced while it was copied"
    with pytest.raises((ModelIncomplete, ChecksumMismatch), match=message):
        export("", bucket, uri=uri)
    assert objects_below(contents, bucket, "digits/") == {}


def refused(text):
    return text.replace(b"Status412", b"PreconditionFailed")


def precondition_failed(where, **more):
    return Fault(where, status=412, change=refused, headers={}, **more)


def test_the_server_refuses_to_copy_an_object_that_was_replaced(proxy, server, bucket, stored, export, contents):
    _, uri = stored()
    proxy.faults.append(
        replaced_during(f"PUT /{bucket}/digits/1/assets/words001", server, uri, status=412, change=refused)
    )
    with pytest.raises(ChecksumMismatch, match=r"words001\.txt.*the object was replaced while it was copied"):
        export("", bucket, uri=uri)
    assert objects_below(contents, bucket, "digits/") == {}


def test_a_server_that_compares_another_etag_copies_without_the_condition(proxy, bucket, stored, export, contents):
    """As SeaweedFS before 4.0 does after a multipart upload."""
    folder, uri = stored()
    proxy.faults.append(precondition_failed(f"PUT /{bucket}/digits/1/variables/large"))
    export("", bucket, uri=uri)
    assert proxy.faults[0].times == 0
    check_version(contents, bucket, folder, uri)


def leave_out_manifest(folder, uri):
    """Leave a model as dsl.importer or another step does: without model.json."""
    open_store(uri).delete([MODEL_MANIFEST])
    (folder / MODEL_MANIFEST).unlink()


def test_an_artifact_without_a_manifest_is_copied_by_the_server(proxy, bucket, stored, export, contents):
    """One of its files has several parts."""
    folder, uri = stored()
    leave_out_manifest(folder, uri)
    before = proxy.body_bytes
    export(folder, bucket, uri=uri)
    assert proxy.body_bytes - before < 50_000
    version = objects_below(contents, bucket, "digits/1/")
    manifest = json.loads(version.pop("export.json"))
    model = ModelManifest.from_json(version.pop(MODEL_MANIFEST))
    assert version == {name: (folder / name).read_bytes() for name in list_files(folder)}
    assert (model.format, model.files) == ("saved_model", describe_folder(folder))
    assert {entry["path"] for entry in manifest["files"]} == {*version, MODEL_MANIFEST}
    assert manifest["source_uri"] == uri


@pytest.mark.parametrize("key", ["assets/words001.txt", "variables/large", "assets/another.txt"])
def test_an_artifact_whose_files_are_not_those_of_the_server_is_uploaded(bucket, stored, export, contents, key):
    folder, uri = stored()
    leave_out_manifest(folder, uri)
    size = (folder / key).stat().st_size if (folder / key).exists() else 1
    open_store(uri).write(key, b"x" * size)
    export(folder, bucket, uri=uri)
    version = objects_below(contents, bucket, "digits/1/")
    assert {name: version[name] for name in list_files(folder)} == {
        name: (folder / name).read_bytes() for name in list_files(folder)
    }
    assert {*version} == {*list_files(folder), MODEL_MANIFEST, "export.json"}


def test_an_object_of_an_artifact_that_is_replaced_during_the_export_is_found(
    proxy, server, bucket, stored, export, contents
):
    folder, uri = stored()
    leave_out_manifest(folder, uri)
    proxy.faults.append(replaced_during(f"PUT /{bucket}/digits/1/assets/words000", server, uri))
    message = r"changed while they were read: \['assets/words001.txt'\]|words001\.txt.* replaced while it was copied"
    with pytest.raises((ModelIncomplete, ChecksumMismatch), match=message):
        export(folder, bucket, uri=uri)
    assert objects_below(contents, bucket, "digits/") == {}
