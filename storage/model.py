"""Describe and verify stored models. A model has a manifest, written last, that lists every file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from kfp_distributed.storage.files import FileEntry, describe_folder
from kfp_distributed.storage.model_format import CUSTOM, FORMATS, find_format, format_of
from kfp_distributed.storage.uri import join_uri

MODEL_MANIFEST = "model.json"
_SHOWN_VERSIONS = 5


class ModelIncomplete(Exception):
    """A model does not exist or is incomplete. The message lists the files that are missing or wrong."""


@dataclass(frozen=True)
class ModelManifest:
    """The content of a model's manifest.

    Attributes:
        format: Format of the model, as `find_format` names it: "onnx", "saved_model" (of TensorFlow), "keras",
            "torch_export", "torchscript", "hugging_face", "safetensors", or "custom" for any other. Older manifests
            have "files" for all but the first two.
        files: All files except the manifest, sorted by path.
        metrics: Final metrics of the training, such as {"epoch": 15, "accuracy": 0.97}. "epoch" is the number of the
            epoch after which the model was saved. Only built-in trainers record it.
        job: Name of the training job.
        columns: Columns of the training data, as JSON objects of the dataset's manifest.
        label: Label of the training data, as a JSON object of the dataset's manifest.
        training_data: The datasets that trained the model, the newest last. There are several after `resume_from`.
            Each has "split", "source", "seed", "preparation" and "content" of the dataset's manifest, and "shards",
            the SHA-256 of each shard. It is {} if unknown.
        request: SHA-256 of the description of the training job. With another one, the same step trains again.
        signature: "inputs" and "outputs" of the model by name, each with "dtype" and "shape", as the file has them.
            None in a shape is a free size. None instead of a shape means any number of axes. TorchScript has no types
            and shapes: "dtype" is "float32" and "shape" None. It is {} if unknown, see the reference of the trainers.
        base: What `language_model` has tuned: "kind" of the model ("adapter", "merged", "both" or "full"), address
            "base_model" of the model that it comes from, and the "sha256" of that model. {} for other models.
    """

    format: str = "saved_model"
    files: tuple[FileEntry, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    job: str = ""
    columns: tuple[Mapping[str, Any], ...] = ()
    label: Mapping[str, Any] = field(default_factory=dict)
    training_data: tuple[Mapping[str, Any], ...] = ()
    request: str = ""
    signature: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the text of the manifest."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> ModelManifest:
        """Parse the text of a manifest. Keys that are not known, such as those of a newer version, are ignored.

        Raises:
            ValueError: The text is not a valid manifest. The message has the cause.
        """
        try:
            content = json.loads(text)
            files = tuple(FileEntry(**entry) for entry in content.pop("files"))
            columns, trained = tuple(content.pop("columns")), tuple(content.pop("training_data", ()))
            known = {attribute.name: content[attribute.name] for attribute in fields(cls) if attribute.name in content}
            return cls(files=files, columns=columns, training_data=trained, **known)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the manifest is not valid: {error!r}") from None


def is_manifest(text: bytes) -> bool:
    """Return whether a model.json is one of this library, also a damaged one. TensorFlow.js has files of this name."""
    try:
        content = json.loads(text)
    except ValueError:
        return True
    return isinstance(content, dict) and "files" in content


class ReadableStore(Protocol):
    """The methods of a Store that `verify_model` uses.

    This module does not import Store, because steps that read local models would import the S3 client with it.
    """

    uri: str

    def list(self) -> Sequence[Any]:
        """Return all objects, each with key and size."""

    def read(self, key: str) -> bytes:
        """Return the content of an object."""


def verify_model(store: ReadableStore) -> ModelManifest:
    """Check that all files of a stored model exist and have the right size.

    The SHA-256 of the files are checked when they are downloaded.

    Args:
        store: A Store whose root is the model's folder.

    Raises:
        ModelIncomplete: The manifest is missing or damaged, or files are missing or have another size.
        StorageError: The store cannot be read.
    """
    return _verify(store.uri, store.read, "size", {entry.key: entry.size for entry in store.list()})


def model_of_request(store: ReadableStore, request: str) -> ModelManifest | None:
    """Return the manifest of the complete model that one request has trained; None if there is none.

    Args:
        store: A Store whose root is the model's folder.
        request: Hash of what was requested, see `ModelManifest`.

    Raises:
        StorageError: The store cannot be read.
    """
    try:
        model = verify_model(store)
    except ModelIncomplete:
        return None
    return model if model.request == request else None


def verify_model_folder(folder: Path) -> ModelManifest:
    """Check that all files of a model in a local folder exist and have the right SHA-256.

    Raises:
        ModelIncomplete: The manifest is missing or damaged, or files are missing or have another SHA-256.
    """
    hashes = {entry.path: entry.sha256 for entry in describe_folder(folder)}
    return _verify(str(folder), lambda key: Path(folder, key).read_bytes(), "sha256", hashes)


def read_model_folder(folder: Path) -> ModelManifest:
    """Return the manifest of a model in a local folder, after a check of its files.

    The manifest of a model without one, which `train` has not saved, has the format and the files.

    Raises:
        ModelIncomplete: See `verify_model_folder`. Or there is no manifest, and no file that identifies a format.
    """
    if (folder / MODEL_MANIFEST).exists():
        return verify_model_folder(folder)
    if folder.is_file():
        raise ModelIncomplete(
            f"the model {folder} is a file: save it in a folder, as one of {', '.join(FORMATS)} or *.safetensors, and "
            "pass the folder"
        )
    files = describe_folder(folder)
    check_format(str(folder), [entry.path for entry in files])
    return ModelManifest(find_format(folder), files)


def check_format(uri: str, paths: Sequence[str]) -> None:
    """Check that a model without a manifest has a file that identifies its format.

    Args:
        uri: Address of the model, for the error.
        paths: Paths of its files.

    Raises:
        ModelIncomplete: It has none. So the address is not that of a model, or its upload has not ended.
    """
    if format_of(paths) == CUSTOM:
        _refuse_versions(uri, paths)
        raise ModelIncomplete(
            f"{uri} has no {MODEL_MANIFEST}, which train writes, and none of the files {', '.join(FORMATS)} and "
            "*.safetensors: no complete model was saved there"
        )


def _refuse_versions(uri: str, paths: Iterable[str]) -> None:
    """Check that a folder without a model is not that of the versions of a model, which is easily given instead of one.

    Args:
        uri: Address of the folder, for the error.
        paths: Paths of its files.

    Raises:
        ModelIncomplete: It has a model in a numbered folder.
    """
    found = (re.fullmatch(f"([1-9][0-9]{{0,18}})/{MODEL_MANIFEST}", path) for path in paths)
    numbers = sorted((int(match[1]) for match in found if match), reverse=True)
    if numbers:
        listed = ", ".join(map(str, numbers[:_SHOWN_VERSIONS])) + ", …" * (len(numbers) > _SHOWN_VERSIONS)
        alias = join_uri(uri, "@latest").replace("/@", "@")
        raise ModelIncomplete(
            f"{uri} is the folder of the versions {listed} of a model: give one of them, such as "
            f"{join_uri(uri, str(numbers[0]))} or {alias}"
        )


def _verify(
    uri: str, read: Callable[[str], bytes], attribute: Literal["size", "sha256"], values: Mapping[str, object]
) -> ModelManifest:
    """Check the files of a model.

    Args:
        uri: Address of the model, for errors.
        read: Returns the content of a file.
        attribute: The attribute of a FileEntry to compare.
        values: The value of the attribute of each existing file, by path.
    """
    if MODEL_MANIFEST not in values:
        _refuse_versions(uri, values)
        raise ModelIncomplete(f"{uri} has no {MODEL_MANIFEST}: no complete model was saved there")
    try:
        manifest = ModelManifest.from_json(read(MODEL_MANIFEST))
    except ValueError as error:
        raise ModelIncomplete(f"{uri}/{MODEL_MANIFEST}: {error}. Save the model again") from None
    if not manifest.files:
        raise ModelIncomplete(f"the model {uri} is incomplete: its manifest lists no files. Save the model again")
    wrong = [entry.path for entry in manifest.files if values.get(entry.path) != getattr(entry, attribute)]
    if wrong:
        raise ModelIncomplete(
            f"the model {uri} is incomplete: missing files or files with a wrong {attribute}: {', '.join(wrong)}. "
            "Save the model again"
        )
    return manifest
