"""Copies in a real S3 server: their layout, without the model's bytes in the step, and their deletion."""

import pytest
from faulty_proxy import faulty_proxy

from kfp_distributed.components.deploy_model.exported_version import ExportedVersion
from kfp_distributed.components.deploy_model.served_copies import ServedCopies, copy_uri
from kfp_distributed.components.model_versions.inspection import list_models
from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store

pytestmark = pytest.mark.takes(2)

ID = "0123456789abcdef-0123456789abcdef"
BYTES = 20_000_000


@pytest.fixture
def proxy(tmp_path, monkeypatch):
    """A proxy in front of an S3 server, which counts what the step sends and receives."""
    with embedded_object_store(tmp_path / "store") as server, faulty_proxy(server.endpoint) as proxy:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            monkeypatch.setenv(name, proxy.url)
        (tmp_path / "store" / "models").mkdir()
        yield proxy


def export(tmp_path, graph, number=3):
    """Write a version into the folder of the S3 server."""
    folder = tmp_path / "store" / "models" / "team" / "digits" / str(number)
    (folder / "variables").mkdir(parents=True)
    (folder / graph).write_bytes(b"graph")
    (folder / "variables" / "large").write_bytes(bytes(BYTES))
    (folder / "export.json").write_bytes(b"{}")
    files = (FileEntry(graph, 5, ""), FileEntry("variables/large", BYTES, ""))
    served = {"saved_model.pb": "tensorflow", "model.onnx": "onnx", "config.json": "huggingface"}[graph]
    return ExportedVersion(f"s3://models/team/digits/{number}", "digits", number, served, files)


@pytest.mark.parametrize(
    ("graph", "parent"),
    [("saved_model.pb", "3/"), ("model.onnx", "shop/3/"), ("config.json", "")],
    ids=["tensorflow", "triton", "huggingface"],
)
def test_the_server_copies_one_version(tmp_path, proxy, graph, parent):
    version = export(tmp_path, graph)
    export(tmp_path, graph, 30)
    store = open_store("s3://models/team")
    copies, uri = ServedCopies(store, version, "shop"), copy_uri(version, "shop", ID)
    assert uri == f"s3://models/team/.served/shop-{ID}/"
    assert not copies.is_complete(uri)
    assert copies.copy(uri) == 2
    assert proxy.body_bytes < 50_000
    folder = f".served/shop-{ID}/{parent}"
    assert {entry.key: entry.size for entry in store.list(".served")} == {
        f"{folder}{graph}": 5,
        f"{folder}variables/large": BYTES,
    }
    assert copies.is_complete(uri)
    assert copies.copy(uri) == 0
    assert list_models(store) == ["digits"]
    copies.delete(uri)
    assert store.list(".served") == []
    assert len(store.list("digits/")) == 6


def test_a_language_model_with_a_folder_onnx_is_complete_with_its_configuration(tmp_path, proxy):
    version, store = export(tmp_path, "config.json"), open_store("s3://models/team")
    copies, uri = ServedCopies(store, version, "shop"), copy_uri(version, "shop", ID)
    store.write(f".served/shop-{ID}/onnx/model.onnx", b"graph")
    assert not copies.is_complete(uri)
    copies.copy(uri)
    assert copies.is_complete(uri)


def test_only_own_copies_are_deleted(tmp_path, proxy):
    version = export(tmp_path, "saved_model.pb")
    copies = ServedCopies(open_store("s3://models/team"), version, "shop")
    for uri in (
        "",
        "s3://models/team/digits/3/",
        "s3://models/team/.served/",
        f"s3://models/team/.served/other-{ID}/",
        f"s3://models/team/.served/shop-{ID}",
        f"s3://models/team/.served/shop-{ID}/3/",
        f"s3://other/team/.served/shop-{ID}/",
        f"s3://models/team/.served/shop-a-{ID}/",
    ):
        assert not copies.is_own(uri)
        with pytest.raises(ValueError, match="is not a copy for the InferenceService shop"):
            copies.delete(uri)


def test_a_version_that_was_deleted_meanwhile_is_no_complete_copy(tmp_path, proxy):
    version = export(tmp_path, "saved_model.pb")
    store = open_store("s3://models/team")
    store.delete(["digits/3/variables/large"])
    copies, uri = ServedCopies(store, version, "shop"), copy_uri(version, "shop", ID)
    with pytest.raises(KeyNotFound):
        copies.copy(uri)
    assert not copies.is_complete(uri)
