"""The exported version that a model server loads: its address, number and format."""

import re
from dataclasses import replace
from typing import NamedTuple

from kfp_distributed.components.model_versions.versions import (
    CONFIGURATION,
    LANGUAGE_MODEL,
    LARGEST_VERSION,
    SERVED_FORMATS,
    read_complete,
)
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.model_format import HUGGING_FACE, format_of
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import parse_uri, uri_beside

_EXAMPLE = "give the output uri of export_model, such as s3://models/digits/3, or an alias, such as s3://models/digits@production"


_MERGED = "merged/"
"""Folder of the complete model in one that `language_model` has saved with export = "both"."""


class ExportedVersion(NamedTuple):
    """An exported version of a model.

    Attributes:
        uri: Address of the version without a slash at its end, such as "s3://models/digits/3".
        model_name: Name of the model, such as "digits".
        number: Number of the version.
        model_format: KServe's name of the format: "tensorflow", "onnx" or "huggingface".
        files: Those of its files that are served.
        folder: Prefix of the files in the store. Default: "", which means that of the address, with "merged/" for a
            language model that was exported beside its adapter.
    """

    uri: str
    model_name: str
    number: int
    model_format: str
    files: tuple[FileEntry, ...] = ()
    folder: str = ""


class VersionMissing(ValueError):
    """An address is that of a version which was never complete or was deleted. The message says what to give."""


def parse_version_uri(model_uri: str) -> tuple[str, str, int]:
    """Return the address, the name of the model and the number of the version. Pure.

    Args:
        model_uri: Address of an exported version. A "?" ends it: Kubeflow Pipelines appends a store's settings there.

    Raises:
        ValueError: The address is not that of an exported version.
    """
    location, shown = parse_uri(model_uri), without_secrets(model_uri)
    key = location.key.rstrip("/")
    folder, _, number = key.rpartition("/")
    name = folder.rpartition("/")[2]
    if not name or not re.fullmatch("[1-9][0-9]{0,18}", number) or int(number) > LARGEST_VERSION:
        raise ValueError(f"model_uri={shown!r} does not end with the name of a model and a version number: {_EXAMPLE}")
    return (f"s3://{location.bucket}/{key}" if location.bucket else key), name, int(number)


def check_in_store(model_uri: str) -> None:
    """Check that an address is in an object store.

    Raises:
        ValueError: It is not.
    """
    if parse_uri(model_uri).scheme != "s3":
        shown = without_secrets(model_uri)
        raise ValueError(f"model_uri={shown!r} is not in an object store, from which KServe loads models: {_EXAMPLE}")


def open_exports(model_uri: str) -> Store:
    """Return the store of the folder for exports that has a version. No request is sent.

    Raises:
        ValueError: The settings of the store are wrong.
    """
    return open_store(uri_beside(uri_beside(model_uri)))


def find_version(model_uri: str) -> tuple[ExportedVersion, Store]:
    """Find an exported version and the store of its folder for exports. It is complete, so that a server can load it.

    Args:
        model_uri: Address of the version, as `parse_version_uri` takes it.

    Raises:
        VersionMissing: There is no complete version at the address.
        ValueError: The address is not that of a version, or no server loads its format.
        StorageError: The store cannot be read.
    """
    uri, name, number = parse_version_uri(model_uri)
    store = open_exports(model_uri)
    manifest = read_complete(store, f"{name}/{number}/")
    if manifest is None:
        raise VersionMissing(f"model_uri={uri!r} is not a complete version of export_model: {_EXAMPLE}")
    files = tuple(FileEntry(**entry) for entry in manifest["files"])
    formats = [file.path for file in files if file.path in SERVED_FORMATS]
    if not formats and format_of(file.path for file in files) == HUGGING_FACE:
        return _language_model(uri, name, number, files), store
    if len(formats) != 1:
        held = " and ".join(sorted(formats)) or "no model that a server loads"
        raise ValueError(f"model_uri={uri!r} has {held}: deploy_model needs either {' or '.join(SERVED_FORMATS)}")
    return ExportedVersion(uri, name, number, SERVED_FORMATS[formats[0]], files), store


def _language_model(uri: str, name: str, number: int, files: tuple[FileEntry, ...]) -> ExportedVersion:
    """Return the complete model of a version of a language model.

    Raises:
        ValueError: It is an adapter alone.
    """
    for folder in ("", _MERGED):
        own = tuple(
            replace(file, path=file.path.removeprefix(folder)) for file in files if file.path.startswith(folder)
        )
        if any(file.path == CONFIGURATION for file in own):
            place = f"{name}/{number}/{folder}" if folder else ""
            return ExportedVersion(uri, name, number, LANGUAGE_MODEL, own, place)
    raise ValueError(
        f"model_uri={uri!r} is an adapter, which the huggingface runtime of KServe does not add to its base model: "
        'train with "export": "merged" or "both", and export that model'
    )
