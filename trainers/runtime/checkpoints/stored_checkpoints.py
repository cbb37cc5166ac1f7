"""Checkpoints in object storage: numbered folders. A checkpoint is complete once its manifest is beside its folder."""

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kfp_distributed.storage.errors import ChecksumMismatch, KeyNotFound, StoreAway
from kfp_distributed.storage.files import FileEntry, OnBytes, hash_stream
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.checkpoints.snapshots import leave_out
from kfp_distributed.trainers.runtime.monitoring.downloads import observed
from kfp_distributed.trainers.runtime.monitoring.sampling import count_bytes

KEPT = 3
"""Number of complete checkpoints that are kept: the latest, and two more in case it is damaged or cannot be loaded."""

SERVER_COPY_BYTES = 1 << 20
"""Size in bytes from which a file that has not changed is copied by the server."""

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


class Sharding(NamedTuple):
    """What the manifest of a sharded checkpoint records, of which each rank has stored a part.

    Attributes:
        step: Number of the step after which the training has saved it.
        ranks: Number of ranks that have saved it. Any number can load it.
        folder: Name of the folder in that of the checkpoint with the files.
    """

    step: int
    ranks: int
    folder: str


class CheckpointNumbers:
    """Numbers of the checkpoints that this process begins, so that those of the two kinds differ.

    Attributes:
        unfinished: Names of the checkpoints that are not stored yet. Their files must not be deleted.
    """

    def __init__(self) -> None:
        self.unfinished: set[str] = set()
        self._lock, self._newest = threading.Lock(), 0

    def begin(self, newest: int) -> str:
        """Return the name of the next checkpoint of one folder.

        Args:
            newest: Number of the newest complete checkpoint.
        """
        with self._lock:
            number = max(newest, *map(int, self.unfinished), 0) + 1
            self._newest = max(self._newest, number)
            self.unfinished.add(name := f"{number:08d}")
            return name

    def begin_in_fork(self) -> None:
        """Use a lock of this process, which is a fork."""
        self._lock = threading.Lock()

    def begin_sharded(self, newest: int) -> str:
        """Return the name of the next sharded checkpoint.

        Args:
            newest: Number of the newest checkpoint in the store when the process started.
        """
        with self._lock:
            self._newest = max(self._newest, newest) + 1
            self.unfinished.add(name := f"{self._newest:08d}")
            return name


checkpoint_numbers = CheckpointNumbers()
"""Those of this process."""
# A thread of the parent that held the lock is not in a fork.
os.register_at_fork(after_in_child=checkpoint_numbers.begin_in_fork)


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
    """Return the files of a checkpoint, and whether its completeness was guessed.

    Raises:
        KeyError, TypeError, ValueError: The text is not a manifest.
    """
    content = json.loads(text)
    if isinstance(content, list):  # Written by version 0.1.
        content = {"files": content}
    return [FileEntry(**file) for file in content["files"]], bool(content.get("guessed"))


def parse_sharding(text: bytes) -> Sharding | None:
    """Return what the manifest of a sharded checkpoint records; None for a checkpoint of another kind.

    Raises:
        KeyError, TypeError, ValueError: The text is not a manifest.
    """
    content = json.loads(text)
    sharding = content.get("sharding") if isinstance(content, dict) else None
    return Sharding(**sharding) if sharding else None


def save_checkpoint(
    store: Store,
    folder: Path,
    check: Callable[[], object] = lambda: None,
    guessed: bool = False,
    on_bytes: OnBytes = count_bytes,
) -> None:
    """Store a folder as the latest checkpoint, and delete all checkpoints except the latest three.

    A large file that the latest checkpoint has, too, is copied by the server instead of being sent.
    If the latest one has the same content, it remains the latest. A checkpoint that a program could not load does not
    count. It is deleted when it is older than these three. A file that cannot be stored, such as a broken link, is left
    out, and the log names it.

    Args:
        store: Store of the checkpoints.
        folder: Local folder.
        check: Raises OSError if the folder has changed, so that it does not become a checkpoint. Default: no check.
        guessed: Whether nothing but the rest of the folder says that it is complete. The manifest records it.
            Default: false.
        on_bytes: See `Store.upload`. Default: counts them for the samples of this process.
    """
    stored = list_checkpoints(store)
    complete = stored.complete
    latest = complete[0] if complete else ""
    previous, was_guessed = _usable_manifest(store, latest) if latest and latest not in stored.rejected else ([], False)
    transfer = partial(_store_file, store, latest, previous)
    name = checkpoint_numbers.begin(int(latest or 0))
    try:
        files = store.upload_folder(folder, name, on_bytes=on_bytes, on_unsupported=leave_out, transfer=transfer)
        check()
    finally:  # The next one may have its number.
        checkpoint_numbers.unfinished.discard(name)
    uploaded = name
    if previous == list(files):  # The program has not advanced, so its failures go on to count for restart_limit.
        for file in files:  # They may be damaged there.
            if not _is_copied(store, f"{name}/{file.path}", f"{latest}/{file.path}"):
                store.upload(folder / file.path, f"{latest}/{file.path}", on_bytes)
        name, complete, guessed = latest, complete[1:], guessed and was_guessed
    deletable = [other for other in stored.folders if other not in checkpoint_numbers.unfinished]
    stored = stored._replace(complete=complete, folders=[uploaded, *deletable])
    _publish(store, stored, name, {"files": [asdict(file) for file in files], "guessed": guessed})


def publish_sharded(store: Store, name: str, files: Sequence[FileEntry], sharding: Sharding) -> None:
    """Write the manifest of a sharded checkpoint, which makes it complete, and delete all except the latest three.

    Args:
        store: Store of the checkpoints.
        name: Name of the checkpoint, which is newer than all complete ones.
        files: The files of all ranks, with paths relative to the folder of the checkpoint.
        sharding: What the manifest records.
    """
    manifest = {"files": [asdict(file) for file in files], "guessed": False, "sharding": sharding._asdict()}
    stored = list_checkpoints(store)
    # The folders of newer checkpoints are those that other ranks upload already.
    older = [other for other in stored.folders if other < name and other not in checkpoint_numbers.unfinished]
    _publish(
        store,
        stored._replace(complete=[other for other in stored.complete if other != name], folders=older),
        name,
        manifest,
    )


def _publish(store: Store, stored: StoredCheckpoints, name: str, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a checkpoint, and delete the others except the latest.

    Args:
        store: Store of the checkpoints.
        stored: The other checkpoints, and the folders that may be deleted.
        name: Name of the checkpoint.
        manifest: Content of its manifest.
    """
    store.write(f"{name}.json", json.dumps(manifest).encode())
    # A checkpoint that no start gets does not count, but is kept as long as an older one is.
    oldest = [name, *(other for other in stored.complete if other not in {name, *stored.rejected})][:KEPT][-1]
    _delete(store, stored, {other for other in (name, *stored.complete) if other >= oldest})


def _store_file(
    store: Store, latest: str, previous: Sequence[FileEntry], file: Path, key: str, on_bytes: OnBytes
) -> FileEntry:
    """Store a file of a checkpoint. The server copies it if the latest checkpoint has a file of the same content.

    Args:
        store: Store of the checkpoints.
        latest: Name of the latest checkpoint.
        previous: Its files.
        file: The file.
        key: Key of the file in the store.
        on_bytes: See `Store.upload`.
    """
    size = file.stat().st_size
    # Small files are sent in one request, as a copy is.
    if size >= SERVER_COPY_BYTES and any(size == entry.size for entry in previous):
        with file.open("rb") as stream:
            content = hash_stream(stream, key, on_bytes=lambda _: on_bytes(0))
        for entry in previous:
            source = f"{latest}/{entry.path}"
            # What was replaced after the checkpoint was complete may be damaged.
            is_same = (entry.size, entry.sha256) == (content.size, content.sha256)
            if is_same and store.was_written_before(source, size, f"{latest}.json") and _is_copied(store, source, key):
                on_bytes(0)
                return content
    return store.upload(file, key, on_bytes)


def _is_copied(store: Store, source: str, key: str) -> bool:
    """Copy an object. Return False if there was no answer in time: a server sends nothing until a copy is done."""
    try:
        store.copy(store, source, key)
    except StoreAway:
        return False
    return True


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
    A sharded one is not downloaded: each rank reads what it needs of it when the program calls `load_sharded`.

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
            manifest = store.read(f"{name}.json")
            if parse_sharding(manifest):
                folder.mkdir(parents=True)
                print(f"checkpoint {name} is sharded. The program reads it with load_sharded()", flush=True)
                return name
            files, is_guessed = parse_manifest(manifest)
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
        raise _none_usable(store, tried)
    return ""


def newest_sharded(store: Store, tried: dict[str, str]) -> tuple[str, bytes] | None:
    """Return name and manifest of the newest sharded checkpoint that can be used; None if there is none at all.

    Args:
        store: Store of the checkpoints.
        tried: Causes by the names of checkpoints that cannot be used. Damaged manifests are added.

    Raises:
        NoUsableCheckpoint: There are checkpoints, but none is usable. The message names them.
        StorageError: The store fails.
    """
    stored = list_checkpoints(store)
    for name in stored.complete:
        if name in tried or name in stored.rejected:
            continue
        manifest = store.read(f"{name}.json")
        try:
            if parse_sharding(manifest):
                return name, manifest
            print(f"checkpoint {name} is of another kind: load_sharded() tries the previous one", flush=True)
        except (KeyError, TypeError, ValueError) as error:
            tried[name] = f"its manifest is damaged: {error}"
            print(f"cannot use checkpoint {name}, trying the previous one: {tried[name]}", flush=True)
    if tried:
        raise _none_usable(store, tried)
    return None


def _none_usable(store: Store, tried: Mapping[str, str]) -> NoUsableCheckpoint:
    causes = "; ".join(f"{name}: {cause}" for name, cause in tried.items())
    return NoUsableCheckpoint(
        f"none of the checkpoints in {store.uri} can be used ({causes}). Delete them to start over, or restore them"
    )


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
