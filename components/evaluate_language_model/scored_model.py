"""The model that is scored: what its replicas fetch, and the data that trained it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelIncomplete, ModelManifest, is_manifest, verify_model
from kfp_distributed.storage.model_format import HUGGING_FACE
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.uri import join_uri
from kfp_distributed.trainers.programs.base_model import is_in_store, known_hash, parse_hub

_MERGED = "merged/"
"""Folder of the complete model in one that `language_model` has saved with export = "both"."""


class ScoredModel(NamedTuple):
    """A language model.

    Attributes:
        parameters: base_model, sha256, adapter and adapter_sha256 of `LanguageEvaluationParameters`.
        training_data: As of the manifest of the model, with those of the models that it comes from, as far as known.
    """

    parameters: Mapping[str, str]
    training_data: tuple[Mapping[str, Any], ...]


def read_model(address: str) -> ScoredModel:
    """Return the model of an address.

    Args:
        address: Address of a store, hf://OWNER/NAME@REVISION, or a folder.

    Raises:
        ValueError: The address has another form, or the model is none of texts.
        ModelIncomplete: Files of the model are missing.
        StorageError: The store cannot be read.
    """
    address, manifest = (address, None) if parse_hub(address, "model_uri") else _find(address)
    if not is_in_store(address) and Path(address).is_dir():
        address = str(Path(address).absolute())  # Each replica has a working directory of its own.
    if manifest is None:
        return ScoredModel({"base_model": address}, ())
    if manifest.format != HUGGING_FACE:
        raise ValueError(
            f'model_uri is {address!r}, a model of the format "{manifest.format}": evaluate_language_model takes '
            "those of language_model, of import_model and of the library transformers; evaluate takes others"
        )
    base = manifest.base
    folder = _MERGED if base.get("kind") == "both" else ""
    own = [file for file in manifest.files if file.path.startswith(folder)]
    sha256 = known_hash(replace(file, path=file.path.removeprefix(folder)) for file in own)
    if base.get("kind") == "adapter":
        parameters = {"base_model": base["base_model"], "sha256": base["sha256"]}
        parameters |= {"adapter": address, "adapter_sha256": sha256}
    else:
        parameters = {"base_model": join_uri(address, folder) if folder else address, "sha256": sha256}
    return ScoredModel(parameters, (*manifest.training_data, *_training_data_of_base(base, {address})))


def _training_data_of_base(base: Mapping[str, str], seen: set[str]) -> tuple[Mapping[str, Any], ...]:
    """Return the training data of the model that a model comes from; {} for what is not known of it."""
    address = base.get("base_model", "")
    if not address or address in seen:
        return ()
    if parse_hub(address):  # Nobody has a record of it.
        return ()
    try:
        _, manifest = _find(address)
    except (ModelIncomplete, StorageError):  # It may have been deleted since a model was merged.
        manifest = None
    if manifest is None:
        return ({},)
    return (*manifest.training_data, *_training_data_of_base(manifest.base, {*seen, address}))


def _find(address: str) -> tuple[str, ModelManifest | None]:
    """Return the address and the manifest of a model; None if no manifest can be seen.

    The folder merged of a model with an adapter and a complete model is that model.
    """
    if not is_in_store(address) and not Path(address).is_dir():
        return address, None
    above, _, name = address.rstrip("/").rpartition("/")
    for place in (address, above) if f"{name}/" == _MERGED else (address,):
        if (store := open_store(place)).exists(MODEL_MANIFEST) and is_manifest(store.read(MODEL_MANIFEST)):
            manifest = verify_model(store)
            if place == address or manifest.base.get("kind") == "both":
                return place, manifest
    return address, None
