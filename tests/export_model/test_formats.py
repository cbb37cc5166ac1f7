"""Exports of models of each format, also when they are killed between any two objects."""

import pytest

from kfp_distributed.components.model_versions.versions import is_unfinished, read_complete
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.opener import open_store

FORMATS = [
    (["saved_model.pb", "variables/variables.index"], ["export.json", "saved_model.pb"]),
    (["model.onnx", "model.onnx.data"], ["export.json", "model.onnx"]),
    (["model.pt", "vocabulary.json"], ["export.json", "model.pt"]),
    (["model.onnx", "model.pt", "saved_model.pb"], ["export.json", "model.onnx", "model.pt", "saved_model.pb"]),
    (["model.pt2", "notes.txt"], ["export.json"]),
    (["model.keras", "notes.txt"], ["export.json"]),
    (["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], ["export.json"]),
    (["booster.ubj", "parts/model.onnx"], ["export.json"]),
]
"""Files of models, and the objects that an export writes last."""


@pytest.mark.parametrize(("files", "last"), FORMATS)
def test_a_version_is_complete_with_its_last_object(tmp_path, export, monkeypatch, files, last):
    folder, written = tmp_path / "model", []
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / MODEL_MANIFEST).write_text(ModelManifest("custom", describe_folder(folder)).to_json())
    store = open_store(str(tmp_path / "exports"))
    write, copy = type(store).write_from, type(store).copy

    def note(store, key, *content, **callbacks):
        written.append(key)
        return write(store, key, *content, **callbacks)

    def note_copy(store, source, source_key, key, etag, size):
        written.append(key)
        copy(store, source, source_key, key, etag, size)

    monkeypatch.setattr(type(store), "write_from", note)
    monkeypatch.setattr(type(store), "copy", note_copy)
    assert export(folder, str(tmp_path / "exports")).version == 1
    objects = [key for key in written if key.startswith("digits/1/")]
    assert sorted(objects) == sorted(f"digits/1/{name}" for name in [*files, MODEL_MANIFEST, "export.json"])
    assert objects[-len(last) :] == [f"digits/1/{name}" for name in last]
    for count in range(len(objects) + 1):
        killed = open_store(str(tmp_path / f"killed-{count}"))
        for key in objects[:count]:
            killed.write(key, store.read(key))
        is_complete = count == len(objects)
        assert is_unfinished(killed, "digits/1/") is not is_complete
        assert (read_complete(killed, "digits/1/") is not None) is is_complete
