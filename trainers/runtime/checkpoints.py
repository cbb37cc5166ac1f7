"""Checkpoints in object storage: numbered folders. A checkpoint is complete once its manifest is beside its folder."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from kfp_distributed.storage.errors import ChecksumMismatch, KeyNotFound
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.downloads import observed
from kfp_distributed.trainers.runtime.sampling import count_bytes
from kfp_distributed.trainers.runtime.sync import leave_out

KEPT = 2
"""Number of complete checkpoints that are kept: the latest, and the previous one in case the latest is damaged."""


def complete_checkpoints(store: Store) -> list[str]:
    """Return the names of the complete checkpoints, such as "00000003", latest first."""
    return sorted((entry.key[:8] for entry in store.list() if entry.key[8:] == ".json"), reverse=True)


def save_checkpoint(
    store: Store, folder: Path, check: Callable[[], object] = lambda: None, at_rest: bool = False
) -> None:
    """Store a folder as the latest checkpoint, and delete all checkpoints except the latest two.

    A file that cannot be stored, such as a broken link, is left out, and the log names it.

    Args:
        store: Store of the checkpoints.
        folder: Local folder.
        check: Raises OSError if the folder has changed, so that it does not become a checkpoint. Default: no check.
        at_rest: Whether a program may write to the folder during the upload. If so, a copy beside the folder is
            uploaded. Default: false.
    """
    complete = complete_checkpoints(store)
    name = f"{int(complete[0]) + 1 if complete else 1:08d}"
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    try:
        if at_rest:
            copy.mkdir()
            open_store(str(copy)).upload_folder(folder, on_unsupported=leave_out)
            check()
        source = copy if at_rest else folder
        files = store.upload_folder(source, name, on_bytes=count_bytes, on_unsupported=leave_out)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    if not at_rest:
        check()
    store.write(f"{name}.json", json.dumps([asdict(file) for file in files]).encode())
    kept = [name, *complete][:KEPT]
    old = [entry.key for entry in store.list() if entry.key[:8] not in kept]
    # Manifests first, so that a partly deleted checkpoint does not look complete.
    store.delete([key for key in old if "/" not in key])
    store.delete([key for key in old if "/" in key])


def restore_checkpoint(store: Store, folder: Path) -> str:
    """Download the latest complete and undamaged checkpoint into a folder, and delete the folder's previous content.

    Args:
        store: Store of the checkpoints.
        folder: Local folder.

    Returns:
        Name of the checkpoint; "" if there is none, and the folder is then empty.
    """
    for name in complete_checkpoints(store):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            files = [FileEntry(**file) for file in json.loads(store.read(f"{name}.json"))]
            with observed(f"checkpoint {name}", files) as on_bytes:
                store.download_folder(folder, name, files, on_bytes=on_bytes)
            return name
        except (KeyNotFound, ChecksumMismatch, TypeError, ValueError) as error:
            print(f"cannot use checkpoint {name}, trying the previous one: {error}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return ""
