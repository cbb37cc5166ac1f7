"""The folder of the model: the input artifact, or a download."""

from pathlib import Path

from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.storage.kubeflow.credentials import Credentials
from kfp_distributed.storage.model import (
    MODEL_MANIFEST,
    ModelIncomplete,
    ModelManifest,
    check_format,
    read_model_folder,
    verify_model,
)
from kfp_distributed.storage.model_format import format_of, refuse_language_model
from kfp_distributed.storage.opener import open_store


def download_model(
    uri: str,
    folder: Path,
    is_artifact: bool = False,
    credentials: Credentials | None = None,
    takes_language_models: bool = False,
) -> ModelManifest:
    """Download a model, and return its manifest.

    Args:
        uri: Address of the folder with model.json. Without it, nothing tells that an upload has ended.
        folder: Folder for the files, which may not exist.
        is_artifact: Whether it is an artifact, whose step has ended. It may lack model.json. Default: False.
        credentials: Credentials of the object store. Default: those of the environment.
        takes_language_models: Whether the model may be a language model. Default: False.

    Raises:
        ValueError: The address is not valid, or the model is a language model that is not taken.
        ModelIncomplete: There is no model, or files are missing.
        ChecksumMismatch: A file differs from model.json.
        StorageError: The store cannot be read.
    """
    store = open_store(uri, credentials)
    if is_artifact and not store.exists(MODEL_MANIFEST):
        names = [entry.key for entry in store.list()]
        check_format(without_secrets(uri), names)
        refuse_language_model(format_of(names))
        print(f"downloading the model {without_secrets(uri)}", flush=True)
        store.download_folder(folder)
        return read_model_folder(folder)
    try:
        manifest = verify_model(store)
    except ModelIncomplete as error:
        raise ModelIncomplete(
            f"model_uri {without_secrets(uri)}: {error}. Give the address of a model of train, or of an exported "
            "version such as s3://models/digits/3"
        ) from None
    if not takes_language_models:
        refuse_language_model(manifest.format)
    print(f"downloading the model {without_secrets(uri)}", flush=True)
    store.download_folder(folder, expected=manifest.files)
    return manifest
