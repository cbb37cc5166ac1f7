"""Checkpoints in object storage: numbered folders, each complete from the moment its manifest is beside it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from kfp_distributed.storage.errors import ChecksumMismatch, KeyNotFound
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.sync import leave_out

KEPT = 2
"""How many complete checkpoints stay: the newest, and one before it in case the newest is damaged."""


def complete_checkpoints(store: Store) -> list[str]:
    """Return the names of the complete checkpoints, such as "00000003", the newest first."""
    return sorted((entry.key[:8] for entry in store.list() if entry.key[8:] == ".json"), reverse=True)


def save_checkpoint(
    store: Store, folder: Path, check: Callable[[], object] = lambda: None, at_rest: bool = False
) -> None:
    """Store a folder as the newest checkpoint, then delete what is older than the newest two.

    What cannot be stored, such as a link that leads nowhere, is left out with a line in the log.

    Args:
        store: Where the checkpoints are.
        folder: The local folder.
        check: Raises OSError where the folder is another one by now, which then becomes no checkpoint.
        at_rest: Whether a program may go on writing into it: a copy beside it is what is stored, for an upload may take
            longer than the folder rests.
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
        files = store.upload_folder(copy if at_rest else folder, name, on_unsupported=leave_out)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    if not at_rest:
        check()
    store.write(f"{name}.json", json.dumps([asdict(file) for file in files]).encode())
    kept = [name, *complete][:KEPT]
    old = [entry.key for entry in store.list() if entry.key[:8] not in kept]
    # Manifests first: what is half deleted must not look complete.
    store.delete([key for key in old if "/" not in key])
    store.delete([key for key in old if "/" in key])


def restore_checkpoint(store: Store, folder: Path) -> str:
    """Fetch the newest checkpoint that is complete and whole into a folder, whose old content goes.

    Returns:
        The checkpoint's name, or "" where there is none; the folder is then empty.
    """
    for name in complete_checkpoints(store):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            files = json.loads(store.read(f"{name}.json"))
            store.download_folder(folder, name, [FileEntry(**file) for file in files])
            return name
        except (KeyNotFound, ChecksumMismatch, TypeError, ValueError) as error:
            print(f"checkpoint {name} cannot be used, trying the one before: {error}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return ""
