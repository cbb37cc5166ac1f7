"""The model that a step exports: the files of a local folder, or the objects of a store."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from kfp_distributed.components.model_versions.aliases import resolve
from kfp_distributed.components.model_versions.versions import EXPORT_MANIFEST
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.files import FileEntry, describe_file, list_files, storable_files
from kfp_distributed.storage.model import (
    MODEL_MANIFEST,
    ModelIncomplete,
    ModelManifest,
    read_model_folder,
    verify_model,
    verify_model_folder,
)
from kfp_distributed.storage.object_stores.multipart import is_etag_of
from kfp_distributed.storage.object_stores.s3 import ObjectState, S3Store
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import parse_uri
from kfp_distributed.trainers.runtime.outputs.served_signature import served_signature


@dataclass(frozen=True)
class ModelSource:
    """A complete model.

    Attributes:
        uri: Address of the model, for the manifest and for errors.
        files: Files of the model, sorted by path, with its model.json if it has one. Other files of the folder, such as
            the export.json of an exported version, are not exported.
        folder: Local folder of the files; None if they are read from `store`.
        store: Store whose root is the model's folder; None if the files are in `folder`.
        states: States of the objects in the store.
        manifest: The model.json to add to a model without one; b"" for a model that has it.
    """

    uri: str
    files: tuple[FileEntry, ...]
    folder: Path | None = None
    store: S3Store | None = None
    states: Mapping[str, ObjectState] = field(default_factory=dict)
    manifest: bytes = b""

    def is_on(self, target: Store) -> bool:
        """Return whether the server of another store copies the files by itself."""
        return self.store is not None and target.copies_from(self.store)

    def check_unchanged(self) -> None:
        """Check that the objects are those that were listed at first. Some servers ignore the ETag when they copy.

        Raises:
            ModelIncomplete: An object was replaced or deleted.
        """
        if self.store:
            refuse_changed(self.uri, self.states.values(), _states(self.store).values())


def refuse_changed(where: object, expected: Iterable[Any], found: Iterable[Any]) -> None:
    """Check that files are as they were when the model was checked.

    Args:
        where: Folder or address of the model, for the error.
        expected: The files as they were, each with `path` or `key`.
        found: The files as they are. There may be more.

    Raises:
        ModelIncomplete: A file changed.
    """
    present = set(found)
    changed = [getattr(entry, "path", None) or entry.key for entry in expected if entry not in present]
    if changed:
        raise ModelIncomplete(f"files of the model in {where} changed while they were read: {changed}")


def open_source(path: str, uri: str, target: Store) -> ModelSource:
    """Find a model, and check that it is complete and can be exported.

    Args:
        path: Local folder of the model, which Kubeflow Pipelines has downloaded; "" if there is only the address.
        uri: Address of the model. ROOT/MODEL@ALIAS without a folder is an exported version.
        target: Store to export to. If its server has the model too, the files are not read from the folder.

    Raises:
        ValueError: The address cannot be opened and there is no folder, the model has no such alias, or a file has the
            name of the manifest of the export.
        ModelIncomplete: The model lacks files, or a file differs from model.json.
        StorageError: The store of the model cannot be read, and there is no folder.
    """
    if path:
        return _objects_of_artifact(Path(path), uri, target) or _read_folder(Path(path), uri)
    try:
        open_store(uri)
    except ValueError as error:
        raise ValueError(f"model_uri: {error}. Or pass model instead, which Kubeflow Pipelines downloads.") from None
    store = open_store(resolve(uri))
    if isinstance(store, S3Store):
        return _read_objects(store)
    folder = Path(store.root)
    # Only an artifact may lack model.json: its step has ended.
    return _describe_folder(folder, store.uri, verify_model_folder(folder))


def _objects_of_artifact(folder: Path, uri: str, target: Store) -> ModelSource | None:
    """Return the objects of a model artifact; None if the server of the target does not have this very model."""
    try:
        if parse_uri(uri).scheme == "file" or not target.copies_from(store := open_store(uri)):
            return None
        store = cast(S3Store, store)  # Only these are copied by their server.
        if not (folder / MODEL_MANIFEST).exists():
            return _identical_objects(folder, store)
        source = _read_objects(store)
        if describe_file(folder / MODEL_MANIFEST, MODEL_MANIFEST) in source.files:
            return source
    except (ValueError, OSError, StorageError, ModelIncomplete):
        # The environment may name another server than that of the pipeline root. The folder has the model.
        pass
    return None


def _identical_objects(folder: Path, store: S3Store) -> ModelSource | None:
    """Return the objects of a model without model.json; None if they may differ from the files of the folder."""
    states = _states(store)
    sizes = {path: (folder / path).stat().st_size for path in list_files(folder)}
    if sizes != {key: state.size for key, state in states.items()}:
        return None
    for path, size in sizes.items():
        with (folder / path).open("rb") as file:
            if not is_etag_of(states[path].etag, file, size):
                return None
    return replace(_read_folder(folder, store.uri), folder=None, store=store, states=states)


def _read_folder(folder: Path, uri: str) -> ModelSource:
    return _describe_folder(folder, uri, read_model_folder(folder))


def _describe_folder(folder: Path, uri: str, model: ModelManifest) -> ModelSource:
    _check_names([entry.path for entry in model.files])
    storable_files(folder)  # Refuses links to files outside the folder.
    if (folder / MODEL_MANIFEST).exists():
        manifest = describe_file(folder / MODEL_MANIFEST, MODEL_MANIFEST)
        return ModelSource(uri, tuple(sorted((*model.files, manifest))), folder)
    described = replace(model, signature=served_signature(folder, model.format))
    return ModelSource(uri, model.files, folder, manifest=described.to_json().encode())


def _read_objects(store: S3Store) -> ModelSource:
    states = _states(store)
    listing = _Listing(store, states, store.uri)
    model = verify_model(listing)
    _check_names([entry.path for entry in model.files])
    manifest = FileEntry(MODEL_MANIFEST, listing.states[MODEL_MANIFEST].size, listing.sha256)
    files = tuple(sorted((*model.files, manifest)))
    return ModelSource(
        store.uri, files, store=store, states={entry.path: listing.states[entry.path] for entry in files}
    )


def _states(store: S3Store) -> dict[str, ObjectState]:
    return {state.key: state for state in store.states()}


def _check_names(names: Sequence[str]) -> None:
    if EXPORT_MANIFEST in names:
        raise ValueError(f"the model has a file {EXPORT_MANIFEST}, which is the name of the manifest: rename the file.")


@dataclass
class _Listing:
    """A listed store, of which only model.json is read."""

    store: S3Store
    states: Mapping[str, ObjectState]
    uri: str
    sha256: str = ""

    def list(self) -> Sequence[ObjectState]:
        return list(self.states.values())

    def read(self, key: str) -> bytes:
        content = self.store.read(key)
        self.sha256 = sha256(content).hexdigest()
        return content
