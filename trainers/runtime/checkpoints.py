"""Checkpoints in object storage: numbered folders. A checkpoint is complete once its manifest is beside its folder."""

import json
import re
import shutil
from collections.abc import Callable, Set
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from kfp_distributed.storage.errors import ChecksumMismatch, KeyNotFound
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.downloads import observed
from kfp_distributed.trainers.runtime.folder_uploads import leave_out
from kfp_distributed.trainers.runtime.sampling import count_bytes

KEPT = 3
"""Number of complete checkpoints that are kept: the latest, and two more in case it is damaged or cannot be loaded."""

_MANIFEST = re.compile(r"(\d{8})\.json")
_FAILED = re.compile(r"(\d{8})\.failed")
_FOLDER = re.compile(r"(\d{8})/")


class NoUsableCheckpoint(Exception):
    """There are complete checkpoints, but none can be used."""


class StoredCheckpoints(NamedTuple):
    """Names of the checkpoints in a store, such as "00000003", latest first.

    Attributes:
        complete: Checkpoints with a manifest.
        rejected: Checkpoints with a mark that a program failed right after it had restored them.
        folders: Checkpoints with files. Not all of them are complete.
    """

    complete: list[str]
    rejected: list[str]
    folders: list[str]


def list_checkpoints(store: Store) -> StoredCheckpoints:
    """List the checkpoints of a store. It takes one request, however many files they have."""
    names = store.children()
    return StoredCheckpoints(
        *(
            sorted((match[1] for name in names if (match := pattern.fullmatch(name))), reverse=True)
            for pattern in (_MANIFEST, _FAILED, _FOLDER)
        )
    )


def complete_checkpoints(store: Store) -> list[str]:
    """Return the names of the complete checkpoints, such as "00000003", latest first."""
    return list_checkpoints(store).complete


def parse_manifest(text: bytes) -> tuple[list[FileEntry], bool]:
    """Return the files of a checkpoint, and whether that it is complete is a guess.

    Raises:
        KeyError, TypeError, ValueError: The text is not a manifest.
    """
    content = json.loads(text)
    if isinstance(content, list):  # Written by version 0.1.
        content = {"files": content}
    return [FileEntry(**file) for file in content["files"]], bool(content.get("guessed"))


def save_checkpoint(
    store: Store,
    folder: Path,
    check: Callable[[], object] = lambda: None,
    in_use: bool = False,
    guessed: bool = False,
) -> None:
    """Store a folder as the latest checkpoint, and delete all checkpoints except the latest three.

    If the latest one has the same content, it remains the latest. A checkpoint that a program could not load does not
    count. It is deleted when it is older than these three. A file that cannot be stored, such as a broken link, is left
    out, and the log names it.

    Args:
        store: Store of the checkpoints.
        folder: Local folder.
        check: Raises OSError if the folder has changed, so that it does not become a checkpoint. Default: no check.
        in_use: Whether a program may write to the folder during the upload. If so, a copy beside the folder is
            uploaded. Default: false.
        guessed: Whether nothing but the rest of the folder says that it is complete. The manifest records it.
            Default: false.
    """
    stored = list_checkpoints(store)
    complete = stored.complete
    name = f"{int(complete[0]) + 1 if complete else 1:08d}"
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    try:
        if in_use:
            copy.mkdir()
            open_store(str(copy)).upload_folder(folder, on_unsupported=leave_out)
            check()
        source = copy if in_use else folder
        files = store.upload_folder(source, name, on_bytes=count_bytes, on_unsupported=leave_out)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    if not in_use:
        check()
    uploaded, latest = name, complete[0] if complete else ""
    previous, was_guessed = _usable_manifest(store, latest) if latest and latest not in stored.rejected else ([], False)
    if previous == list(files):  # The program has not advanced, so its failures go on to count for restart_limit.
        for file in files:  # They may be damaged there.
            store.copy(store, f"{name}/{file.path}", f"{latest}/{file.path}")
        name, complete, guessed = latest, complete[1:], guessed and was_guessed
    manifest = {"files": [asdict(file) for file in files], "guessed": guessed}
    store.write(f"{name}.json", json.dumps(manifest).encode())
    # A checkpoint that no start gets does not count, but is kept as long as an older one is.
    oldest = [name, *(other for other in complete if other not in stored.rejected)][:KEPT][-1]
    kept = {other for other in (name, *complete) if other >= oldest}
    _delete(store, stored._replace(folders=[uploaded, *stored.folders]), kept)


def _delete(store: Store, stored: StoredCheckpoints, kept: Set[str]) -> None:
    """Delete all checkpoints except those to keep."""
    # Manifests first, so that a partly deleted checkpoint does not look complete.
    marks = {"json": stored.complete, "failed": stored.rejected}
    store.delete([f"{name}.{suffix}" for suffix, names in marks.items() for name in names if name not in kept])
    for name in dict.fromkeys(stored.folders):
        if name not in kept:
            store.delete([entry.key for entry in store.list(f"{name}/")])


def _usable_manifest(store: Store, name: str) -> tuple[list[FileEntry], bool]:
    """Return the manifest of a checkpoint as `parse_manifest` does; no files if it is damaged."""
    try:
        return parse_manifest(store.read(f"{name}.json"))
    except (KeyNotFound, KeyError, TypeError, ValueError):
        return [], False


def restore_checkpoint(store: Store, folder: Path) -> str:
    """Download the latest usable checkpoint into a folder, and delete the folder's previous content.

    A checkpoint is usable if it is complete, undamaged, and no program has failed right after it was restored.

    Args:
        store: Store of the checkpoints.
        folder: Local folder.

    Returns:
        Name of the checkpoint; "" if there is none, and the folder is then empty.

    Raises:
        NoUsableCheckpoint: There are complete checkpoints, but none is usable. The message names them.
    """
    tried: dict[str, str] = {}
    # The list changes while the training that writes the checkpoints goes on.
    while name := next((name for name in complete_checkpoints(store) if name not in tried), ""):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            if store.exists(f"{name}.failed"):
                raise ValueError("its program failed right after it had restored it")
            files, is_guessed = parse_manifest(store.read(f"{name}.json"))
            with observed(f"checkpoint {name}", files) as on_bytes:
                store.download_folder(folder, name, files, on_bytes=on_bytes)
            if is_guessed:
                print(f"restored checkpoint {name}. Its program has not said that it is complete", flush=True)
            return name
        except (KeyNotFound, ChecksumMismatch, KeyError, TypeError, ValueError) as error:
            tried[name] = str(error)
            print(f"cannot use checkpoint {name}, trying the previous one: {error}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if tried:
        causes = "; ".join(f"{name}: {cause}" for name, cause in tried.items())
        raise NoUsableCheckpoint(
            f"none of the checkpoints in {store.uri} can be used ({causes}). Delete them to start over, or restore them"
        )
    return ""


def reject_checkpoint(store: Store, name: str) -> str:
    """Record that a program failed right after it had restored a checkpoint, so that the next start gets another one.

    Args:
        store: Store of the checkpoints.
        name: Name of the checkpoint.

    Returns:
        Name of the checkpoint that the next start gets. "" if there is none, or if a newer one was stored since, which
        means that the restored one was good. Nothing is recorded then. If there is none, the others count as good
        again, because the program has failed after each of them.
    """
    complete, failed, _ = list_checkpoints(store)
    usable = [other for other in complete if other not in {name, *failed}]
    if not usable:  # The program failed after each of them, so the checkpoints are not at fault.
        store.delete([f"{other}.failed" for other in failed])
        return ""
    if usable[0] > name:
        return ""
    store.write(f"{name}.failed", b"")
    return usable[0]
