"""Addresses of the language models that are fine-tuned, and the files that they need."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.model import MODEL_MANIFEST, ReadableStore, is_manifest, verify_model

NEEDED: Mapping[str, tuple[str, ...]] = {
    "config.json": ("config.json",),
    "weights as *.safetensors": ("*.safetensors",),
    "tokenizer (tokenizer.json or tokenizer.model)": (
        "tokenizer.json",
        "tokenizer.model",
        "vocab.json",
        "spiece.model",
    ),
}
"""What the folder of a model must have, with the patterns of the files of which it must have one."""

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
"""Files of a model that are fetched: no pickles, and no code."""

_HUB = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


class HubModel(NamedTuple):
    """A model of the Hugging Face Hub.

    Attributes:
        name: OWNER/NAME.
        revision: A commit, tag or branch.
    """

    name: str
    revision: str


def parse_hub(address: str, parameter: str = "base_model") -> HubModel | None:
    """Return the model of an address hf://OWNER/NAME@REVISION; None for other addresses.

    Args:
        address: Address of a model.
        parameter: Name of the parameter that has the address, for the error. Default: "base_model".

    Raises:
        ValueError: The address has another form.
    """
    if not address.startswith("hf://"):
        return None
    found = _HUB.fullmatch(address)
    if not found or not found["revision"]:
        raise ValueError(
            f"{parameter} is {address!r}; write hf://OWNER/NAME@REVISION, with a commit or tag as revision, so that "
            "the same pipeline trains the same model"
        )
    return HubModel(found["name"], found["revision"])


def hub_hint(address: str) -> str:
    """Return how to name a model of the Hugging Face Hub, if an address looks like its name; else ""."""
    is_name = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", address)
    return f"; for a model of the Hugging Face Hub, write hf://{address}@REVISION" if is_name else ""


def is_in_store(address: str) -> bool:
    """Return whether a base_model is the address of an object store or of a shared folder, such as s3://bucket/model."""
    return "://" in address and not address.startswith("hf://")


def is_fetched(path: str) -> bool:
    """Return whether a file of a model, by its path in the folder, is fetched.

    Files in subfolders are not, nor is model.json, which tells how the model was made.
    """
    return "/" not in path and path != MODEL_MANIFEST and _has_any([path], PATTERNS)


def stored_files(store: ReadableStore) -> tuple[FileEntry, ...]:
    """Return the files of a model of a store that are fetched: those of its model.json, or else all.

    Args:
        store: A Store whose root is the model's folder.

    Returns:
        The files. The SHA-256 is "" without a model.json.

    Raises:
        ModelIncomplete: Files of the model.json are missing or have another size.
        StorageError: The store cannot be read.
    """
    files = tuple(FileEntry(entry.key, entry.size, "") for entry in store.list())
    if any(file.path == MODEL_MANIFEST for file in files) and is_manifest(store.read(MODEL_MANIFEST)):
        files = verify_model(store).files
    return tuple(file for file in files if is_fetched(file.path))


def _has_any(names: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def check_files(address: str, paths: Iterable[str], parameter: str = "base_model") -> None:
    """Check that a folder has a model.

    Args:
        address: Address of the folder, for the error.
        paths: Paths of its files in the folder.
        parameter: Name of the parameter that has the address, for the error. Default: "base_model".

    Raises:
        ValueError: A file is missing, or there is an adapter.
    """
    names = [*filter(is_fetched, paths)]
    if "adapter_config.json" in names:
        raise ValueError(
            f"{parameter} is {address!r}, which has an adapter: name a complete model, such as its subfolder merged, "
            'if there is one, or a model that was saved with export = "merged"'
        )
    missing = [what for what, patterns in NEEDED.items() if not _has_any(names, patterns)]
    if missing:
        raise ValueError(
            f"{parameter} is {address!r}, which has no {' and no '.join(missing)}: save the model and its tokenizer "
            f"there with save_pretrained{hub_hint(address)}"
        )


def model_hash(files: Iterable[FileEntry]) -> str:
    """Return the SHA-256 of the files of a model: of the lines "SHA-256  NAME" of its files, sorted by name."""
    lines = (f"{file.sha256}  {file.path}\n" for file in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def known_hash(files: Iterable[FileEntry]) -> str:
    """Return the `model_hash` of those files of a model that are fetched; "" if the SHA-256 of one is not known."""
    fetched = [file for file in files if is_fetched(file.path)]
    return model_hash(fetched) if fetched and all(file.sha256 for file in fetched) else ""
