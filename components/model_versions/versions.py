"""The versions of a model in a store: their numbers, and which of them are complete."""

import json
import re
from collections.abc import Iterable
from typing import Any

from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.model_format import SERVED_FILES
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri

EXPORT_MANIFEST = "export.json"
LARGEST_VERSION = 2**63 - 1
"""TensorFlow Serving reads a version's folder name as int64."""

# Model servers know these formats by other names than the manifest of a model.
SERVED_FORMATS = {"saved_model.pb": "tensorflow", "model.onnx": "onnx"}
"""KServe's names of the formats that can be deployed, by the file that identifies each."""

LANGUAGE_MODEL, CONFIGURATION = "huggingface", "config.json"
"""The same of language models, in whose folder this file is. Models of other formats may have such a file, too."""


class VersionRefused(ValueError):
    """A version does not exist, is incomplete, or cannot be changed now. The message says what to do."""


def version_numbers(folders: Iterable[str]) -> list[int]:
    """Return the numbers of versions, the highest first.

    Args:
        folders: Names of the folders of a model, each with "/" at its end. Names that export_model does not give are
            ignored, such as "007/".
    """
    numbers = (int(folder[:-1]) for folder in folders if re.fullmatch("[1-9][0-9]{0,18}/", folder))
    return sorted((number for number in numbers if number <= LARGEST_VERSION), reverse=True)


def read_complete(store: Store, target: str) -> dict[str, Any] | None:
    """Return the content of export.json of a complete version.

    A version is complete with its key files: see `key_files`.

    Args:
        store: Store of the version.
        target: Prefix of the version.

    Returns:
        None if the version does not exist, is incomplete, or its export.json is of another tool.
    """
    manifest = _read_manifest(store, target)
    return manifest if manifest and all(store.exists(target + file) for file in _key_files(manifest)) else None


def manifest_problem(store: Store, target: str) -> str:
    """Return why the export.json of a version cannot be read, and what to do; "" if it is JSON or does not exist.

    Args:
        store: Store of the version.
        target: Prefix of the version.
    """
    try:
        json.loads(store.read(target + EXPORT_MANIFEST))
    except KeyNotFound:
        return ""
    except ValueError as error:
        uri = join_uri(store.uri, target, EXPORT_MANIFEST)
        return f"{uri} is not JSON ({error}): restore it from a backup, or export the model again"
    return ""


def is_unfinished(store: Store, target: str) -> bool:
    """Return whether the objects under a number, if any, are those that a failed export left.

    An export writes export.json before the first file that servers load, and after all others. So a version that has
    such a file and no export.json is of another tool. One with export.json and its key files is complete.

    Args:
        store: Store of the version.
        target: Prefix of the version.
    """
    if store.exists(target + EXPORT_MANIFEST):
        manifest = _read_manifest(store, target)
        return manifest is not None and not all(store.exists(target + file) for file in _key_files(manifest))
    return not any(store.exists(target + file) for file in SERVED_FILES)


def next_version(folders: Iterable[str]) -> int:
    """Return the number after the highest one in use.

    Args:
        folders: Names of the folders of versions and of claims, each with "/" at its end. Names that are not numbers
            that servers can load are ignored.

    Raises:
        ValueError: The highest number that servers can load is in use.
    """
    numbers = [int(match[1]) for match in (re.fullmatch(r"0*([0-9]{1,19})/", folder) for folder in folders) if match]
    highest = max((number for number in numbers if number <= LARGEST_VERSION), default=0)
    if highest == LARGEST_VERSION:
        raise ValueError(f"version {LARGEST_VERSION} exists, which is the largest number: give a free number.")
    return highest + 1


def _read_manifest(store: Store, target: str) -> dict[str, Any] | None:
    """Return the content of export.json; None if there is none, or it is not one of this component."""
    try:
        manifest: dict[str, Any] = json.loads(store.read(target + EXPORT_MANIFEST))
        files = [FileEntry(**entry) for entry in manifest["files"]]
        is_own = bool(files) and isinstance(manifest["metrics"], dict)
    except (KeyNotFound, ValueError, TypeError, KeyError):
        return None
    return manifest if is_own else None


def key_files(paths: Iterable[str]) -> set[str]:
    """Return the files of a version without which it is incomplete: they are deleted first.

    Those that servers load are also exported last. If there are none, export.json is exported last, and the first file
    by name is a key file.

    Args:
        paths: The files that export.json lists.
    """
    names = {*paths}
    return names & {*SERVED_FILES} or {*sorted(names)[:1]}


def _key_files(manifest: dict[str, Any]) -> set[str]:
    return key_files(entry["path"] for entry in manifest["files"])
