"""The model that is scored: what its replicas fetch, and the data that trained it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelIncomplete, ModelManifest, verify_model
from kfp_distributed.storage.model_format import HUGGING_FACE
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.uri import join_uri
from kfp_distributed.trainers.programs.base_model import is_in_store, parse_hub


class ScoredModel(NamedTuple):
    """A language model.

    Attributes:
        parameters: base_model, adapter and sha256 of `LanguageEvaluationParameters`.
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
    manifest = None if parse_hub(address, "model_uri") else _manifest(address)
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
    parameters = {"base_model": address}
    if base.get("kind") == "both":
        parameters = {"base_model": join_uri(address, "merged")}
    elif base.get("kind") == "adapter":
        parameters = {"base_model": base["base_model"], "adapter": address, "sha256": base["sha256"]}
    return ScoredModel(parameters, (*manifest.training_data, *_training_data_of_base(base, {address})))


def _training_data_of_base(base: Mapping[str, str], seen: set[str]) -> tuple[Mapping[str, Any], ...]:
    address = base.get("base_model", "")
    if not is_in_store(address) or address in seen:
        return ()
    try:
        manifest = _manifest(address)
    except (ModelIncomplete, StorageError):  # It may have been deleted since a model was merged.
        return ()
    return (*manifest.training_data, *_training_data_of_base(manifest.base, {*seen, address})) if manifest else ()


def _manifest(address: str) -> ModelManifest | None:
    """Return the manifest of a model; None if there is none, or the folder is one of the replicas alone."""
    if not is_in_store(address) and not Path(address).is_dir():
        return None
    store = open_store(address)
    return verify_model(store) if store.exists(MODEL_MANIFEST) else None
