"""What a stored model consists of: a manifest, written last, that names every file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from kfp_distributed.storage.files import FileEntry, describe_folder

MODEL_MANIFEST = "model.json"
FORMATS = {"saved_model.pb": "saved_model", "model.onnx": "onnx"}
"""The formats of a model that the steps know, by the file that each has."""


class ModelIncomplete(Exception):
    """A model is not there, or not whole; the text says what is missing or wrong."""


@dataclass(frozen=True)
class ModelManifest:
    """A model's description.

    Attributes:
        format: How it is saved: "saved_model" is TensorFlow's SavedModel, "files" is anything that is none of FORMATS.
        files: All its files but the manifest, sorted by path.
        metrics: What the training reached, such as {"accuracy": 0.97}.
        job: The training job that made it.
        columns: The data's columns, as the dataset's manifest describes them (JSON objects).
        label: The data's label, likewise.
    """

    format: str = "saved_model"
    files: tuple[FileEntry, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    job: str = ""
    columns: tuple[Mapping[str, Any], ...] = ()
    label: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The manifest's text."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> ModelManifest:
        """Read a manifest's text.

        Raises:
            ValueError: It is no such text; says what is wrong.
        """
        try:
            content = json.loads(text)
            files = tuple(FileEntry(**entry) for entry in content.pop("files"))
            return cls(files=files, columns=tuple(content.pop("columns")), **content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the model's manifest is not as it should be: {error!r}") from None


class ReadableStore(Protocol):
    """What is needed of a Store. It is not named, for it would bring S3 along where local models are read."""

    uri: str

    def list(self) -> Sequence[Any]:
        """All objects, with their key and size."""

    def read(self, key: str) -> bytes:
        """An object's bytes."""


def verify_model(store: ReadableStore) -> ModelManifest:
    """Check that a model is there with all its files in their sizes; their SHA-256 are checked when they are fetched.

    Args:
        store: A Store opened at the model's folder.

    Raises:
        ModelIncomplete: There is no manifest, or it is damaged, or files are missing or have another size.
        StorageError: The store cannot be read.
    """
    return _verify(store.uri, store.read, "size", {entry.key: entry.size for entry in store.list()})


def verify_model_folder(folder: Path) -> ModelManifest:
    """Check that a model is in a local folder with all its files as they were when it was saved.

    Raises:
        ModelIncomplete: There is no manifest, or it is damaged, or files are missing or have another SHA-256.
    """
    hashes = {entry.path: entry.sha256 for entry in describe_folder(folder)}
    return _verify(str(folder), lambda key: Path(folder, key).read_bytes(), "sha256", hashes)


def _verify(
    where: str, read: Callable[[str], bytes], compared: Literal["size", "sha256"], found: Mapping[str, object]
) -> ModelManifest:
    if MODEL_MANIFEST not in found:
        raise ModelIncomplete(f"{where} has no {MODEL_MANIFEST}: no model was saved there whole")
    try:
        manifest = ModelManifest.from_json(read(MODEL_MANIFEST))
    except ValueError as error:
        raise ModelIncomplete(f"{where}/{MODEL_MANIFEST}: {error}") from None
    wrong = [entry.path for entry in manifest.files if found.get(entry.path) != getattr(entry, compared)]
    if wrong or not manifest.files:
        files = ", ".join(wrong) or "the manifest names no files"
        raise ModelIncomplete(f"the model in {where} is not whole: missing, or of another {compared}: {files}")
    return manifest
