"""Copies the files of a language model into a store. model.json is written last."""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from kfp_distributed.components.import_model.origin import Origin, open_origin
from kfp_distributed.storage.files import FileEntry, describe_file
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelIncomplete, ModelManifest, verify_model
from kfp_distributed.storage.model_format import HUGGING_FACE
from kfp_distributed.storage.object_stores.buckets import require_bucket
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import parse_uri
from kfp_distributed.trainers.programs.base_model import check_files, is_in_store, model_hash, parse_hub
from kfp_distributed.trainers.programs.weight_files import INDEX, check_weight_file

UNFINISHED = "unfinished-import"
"""Object in the folder of a model while it is imported, with the source. Without it, files of a folder without
model.json are those of somebody else."""


def copy_model(source: str, target: str) -> None:
    """Copy a model, unless the target has it already.

    One file after the other goes through the disk of this process.

    Args:
        source: See `open_origin`.
        target: Address of the folder of the stored model.

    Raises:
        ValueError: The source has no complete language model, the target has something else, its bucket does not
            exist, or an address is not valid.
        OSError: The source cannot be read, or a file arrived damaged.
        StorageError: A store fails.
        ModelIncomplete: The source has a model.json and lacks files of it.
    """
    _check_target(target)
    store = open_store(target)
    if store.bucket:
        require_bucket(store, "target", target)
    stored = _complete_model(store)
    if stored and parse_hub(source, "source") and _source(stored) == source:
        print(f"{target} already has the model {source}", flush=True)
        return
    origin = open_origin(source)
    check_files(source, [file.path for file in origin.files], "source")
    with TemporaryDirectory() as folder:
        if stored:
            _refuse_other(target, stored, origin, Path(folder))
            print(f"{target} already has the model {origin.address}", flush=True)
        else:
            _start(source, origin, store)
            _copy(origin, store, Path(folder))


def _check_target(target: str) -> None:
    if not (is_in_store(target) and parse_uri(target).key.strip("/")):
        raise ValueError(
            f"target is {target!r}; allowed is the address of a folder that the replicas can read, such as "
            "s3://models/NAME or file:///shared/models/NAME"
        )


def _complete_model(store: Store) -> ModelManifest | None:
    try:
        return verify_model(store)
    except ModelIncomplete:
        return None


def _source(stored: ModelManifest) -> str:
    """Return the address from which a model was imported; "" for one that was trained, whose base_model is its base."""
    is_imported = stored.base.get("sha256") == model_hash(stored.files)
    return stored.base.get("base_model", "") if is_imported else ""


def _refuse_other(target: str, stored: ModelManifest, origin: Origin, folder: Path) -> None:
    """Check that a stored model is the one to import.

    Raises:
        ValueError: It is another model, or the files at the source have changed.
    """
    address = _source(stored)
    if address == origin.address and (origin.is_fixed or _files(origin, folder) == stored.files):
        return
    what = f"an earlier state of {address}" if address == origin.address else f"another model ({address or 'trained'})"
    raise ValueError(f"target {target} has {what}: import {origin.address} to another target, or delete the folder")


def _files(origin: Origin, folder: Path) -> tuple[FileEntry, ...]:
    """Return the files of a model with their SHA-256. Those that the origin does not know are downloaded for it."""
    return tuple(
        sorted(file if file.sha256 else _transfer(origin, file, folder, describe_file) for file in origin.files)
    )


def _start(source: str, origin: Origin, store: Store) -> None:
    """Mark the folder of a model as one that is being imported, and delete what an earlier attempt has left.

    Raises:
        ValueError: The folder has files of somebody else, or of the import of another source.
    """
    keys = {entry.key for entry in store.list()}
    unfinished = store.read(UNFINISHED).decode() if UNFINISHED in keys else ""
    if keys and unfinished != source:
        what = f"an unfinished import of {unfinished}" if unfinished else f"other files, such as {min(keys)}"
        raise ValueError(f"target {store.uri} has {what}: name another target, or delete the folder")
    store.write(UNFINISHED, source.encode())
    store.delete(keys - {UNFINISHED} - {file.path for file in origin.files})


def _copy(origin: Origin, store: Store, folder: Path) -> None:
    """Copy the files of a model and write its model.json."""
    begin, size = time.monotonic(), sum(file.size for file in origin.files) / (1 << 30)
    print(f"importing {origin.address}: {len(origin.files)} files, {size:.2f} GiB", flush=True)
    # The index is checked before weights are stored. Without config.json, the trainer takes no folder for a model.
    files = sorted(origin.files, key=lambda file: (file.path != INDEX, file.path == "config.json", file.path))
    copied = tuple(sorted(_transfer(origin, file, folder, store.upload) for file in files))
    base = {"kind": "full", "base_model": origin.address, "sha256": model_hash(copied)}
    store.write(MODEL_MANIFEST, ModelManifest(HUGGING_FACE, copied, base=base).to_json().encode())
    store.delete([UNFINISHED])
    print(f"imported {origin.address} to {store.uri} in {time.monotonic() - begin:.0f} s", flush=True)


def _transfer(origin: Origin, file: FileEntry, folder: Path, use: Callable[[Path, str], FileEntry]) -> FileEntry:
    """Download a file, use it, and delete it.

    Args:
        origin: The model.
        file: A file of the model.
        folder: Local folder for the file.
        use: Uploads or hashes the local file under a name.

    Raises:
        ValueError: The file is not complete, or names files of weights that are not there.
        OSError: The file arrived damaged, or has changed.
    """
    print(f"{file.path}: {file.size / (1 << 20):.1f} MiB", flush=True)
    local = origin.fetch(file, folder)
    check_weight_file(origin.address, local, {file.path for file in origin.files}, "source")
    entry = use(local, file.path)
    local.unlink()
    if entry.sha256 != (file.sha256 or entry.sha256):
        raise OSError(
            f"{file.path} of {origin.address} arrived damaged: it has the SHA-256 {entry.sha256}, expected "
            f"{file.sha256}. Run the step again"
        )
    return entry
