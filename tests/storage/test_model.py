import json
from dataclasses import replace

import pytest
from store_contract import entry, fill

from kfp_distributed.storage import (
    MODEL_MANIFEST,
    FileEntry,
    ModelIncomplete,
    ModelManifest,
    describe_folder,
    open_store,
    verify_model,
    verify_model_folder,
)
from kfp_distributed.storage.model import read_model_folder

FILES = {"saved_model.pb": b"graph", "variables/variables.index": b"index"}
MANIFEST = ModelManifest(
    format="saved_model",
    files=tuple(entry(path, data) for path, data in FILES.items()),
    metrics={"accuracy": 0.97},
    job="digits-1",
    columns=({"name": "pixels", "kind": "tensor", "shape": [8, 8]},),
    label={"name": "ünit", "classes": ["0", "1"]},
)


def test_manifest_round_trip():
    assert ModelManifest.from_json(MANIFEST.to_json()) == MANIFEST
    assert ModelManifest.from_json(ModelManifest().to_json()) == ModelManifest()


def test_a_manifest_of_a_newer_version_is_read():
    assert ModelManifest.from_json(json.dumps({**json.loads(MANIFEST.to_json()), "newer": [1]})) == MANIFEST


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "AttributeError|TypeError"),
        ("{}", r"KeyError\('files'\)"),
        (json.dumps({"format": "x", "files": [{"path": "a"}]}), r"TypeError\(.*size"),
    ],
)
def test_invalid_manifest(text, message):
    with pytest.raises(ValueError, match=message):
        ModelManifest.from_json(text)


def test_describe_folder(tmp_path):
    fill(tmp_path, FILES | {"empty": b""})
    assert describe_folder(tmp_path) == (
        FileEntry("empty", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        *MANIFEST.files,
    )


@pytest.fixture
def store(tmp_path):
    fill(tmp_path, FILES | {MODEL_MANIFEST: MANIFEST.to_json().encode()})
    return open_store(str(tmp_path))


def test_complete_model(store):
    assert verify_model(store) == verify_model_folder(store.root) == MANIFEST


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({MODEL_MANIFEST: None}, "has no model.json"),
        ({MODEL_MANIFEST: "{"}, "model.json: .*JSONDecodeError"),
        ({MODEL_MANIFEST: replace(MANIFEST, files=()).to_json()}, "is incomplete: .* no files"),
        (
            {"saved_model.pb": None, "variables/variables.index": "ind"},
            "is incomplete: .* size: saved_model.pb, variables/variables.index",
        ),
    ],
)
def test_incomplete_model(store, changes, message):
    for key, text in changes.items():
        store.delete([key])
        if text is not None:
            store.write(key, text.encode())
    for verify, model in ((verify_model, store), (verify_model_folder, store.root)):
        with pytest.raises(ModelIncomplete, match=message.replace("size", "(size|sha256)")):
            verify(model)


def test_damaged_file_of_the_same_size_is_detected_in_a_folder(store):
    store.write("saved_model.pb", b"grapH")
    assert verify_model(store) == MANIFEST
    with pytest.raises(ModelIncomplete, match=r" sha256: saved_model\.pb\."):
        verify_model_folder(store.root)


def test_the_folder_of_versions_is_not_a_model_and_they_are_named(tmp_path):
    fill(tmp_path, {f"digits/{path}/{MODEL_MANIFEST}": b"{}" for path in ("2", "10", "x", "3/4")})
    versions = r"the versions 10, 2 of a model: give one of them, such as \S*digits/10 or \S*digits@latest$"
    for check in (verify_model_folder, read_model_folder, lambda folder: verify_model(open_store(str(folder)))):
        with pytest.raises(ModelIncomplete, match=versions):
            check(tmp_path / "digits")
        with pytest.raises(ModelIncomplete, match="no complete model was saved there"):
            check(tmp_path)
