"""Deletes exported versions: one, those that a killed deletion left, or all but the newest.

A record of the deletion is written first and stays, so that the number is never used again. Then the key files are
deleted, such as those that servers load, so that nobody takes the version for complete, and export.json last. What a
killed deletion leaves, the next export or deletion of the model deletes.
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

from kfp_distributed.components.model_versions.aliases import (
    deleted_versions,
    deletion_record,
    hold_version,
    no_version,
    read_aliases,
)
from kfp_distributed.components.model_versions.claims import Claim, task_key, task_record
from kfp_distributed.components.model_versions.versions import (
    EXPORT_MANIFEST,
    VersionRefused,
    is_unfinished,
    key_files,
    read_complete,
    version_numbers,
)
from kfp_distributed.storage.errors import KeyNotFound, StorageError
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri


def delete_version(store: Store, model_name: str, version: int) -> None:
    """Delete a version, or finish a deletion that was interrupted.

    Raises:
        VersionRefused: The version does not exist, has an alias, is of another tool, or is being changed.
        StorageError: The store refuses a request or does not answer. The next export or deletion goes on.
    """
    with hold_version(store, model_name, version, "deletes the version") as claim:
        check_deletable(store, model_name, version)
        claim.check_time()
        manifest = read_complete(store, claim.target) or {}
        store.write(deletion_record(model_name, version), datetime.now(UTC).isoformat().encode())
        keys = [entry.key for entry in store.list(claim.target)]
        # Of a complete version those of the manifest, because somebody may have added files.
        files = {entry["path"] for entry in manifest.get("files", [])}
        files = files or {key.removeprefix(claim.target) for key in keys} - {EXPORT_MANIFEST}
        first = [claim.target + file for file in key_files(files)]
        last = claim.target + EXPORT_MANIFEST
        store.delete(first)
        _forget_task(store, model_name, version, str(manifest.get("source_task", "")))
        store.delete([key for key in keys if key not in {*first, last}])
        store.delete([last])


def check_deletable(store: Store, model_name: str, version: int) -> None:
    """Check that a version exists, is one of export_model and has no alias.

    Raises:
        VersionRefused: It does not, is not, or has one.
    """
    target = Claim(model_name, version).target
    uri = join_uri(store.uri, target)
    names = [name for name, number in read_aliases(store, model_name).items() if number == version]
    if names:
        raise VersionRefused(f"{uri} has the alias {', '.join(names)}: move or remove it first")
    if not _is_own(store, target):
        if not any(True for _ in store.list(target)):
            raise no_version(uri)
        raise VersionRefused(f"{uri} is not a version of export_model: delete it with the tool that made it")


def finish_deletions(store: Store, model_name: str) -> None:
    """Delete what interrupted deletions left. A failure is a line of the log."""
    deleted = deleted_versions(store, model_name)
    numbers = deleted & set(version_numbers(store.children(model_name))) if deleted else ()
    # A version of another tool may have got the number since.
    left = [number for number in numbers if _is_own(store, Claim(model_name, number).target)]
    _delete_all(store, model_name, left)


def surplus_versions(complete: Iterable[int], keep: int, spared: Iterable[int]) -> list[int]:
    """Return the versions that retention deletes, the highest first. Pure.

    Args:
        complete: Numbers of the complete versions.
        keep: Number of the newest versions to keep, at least 1.
        spared: Numbers that are kept too: those with an alias, and the one just exported.
    """
    return [number for number in sorted(complete, reverse=True)[keep:] if number not in set(spared)]


def find_surplus(store: Store, model_name: str, keep: int, exported: int = 0) -> list[int]:
    """Return the versions that retention deletes: complete ones of export_model without an alias.

    Args:
        store: Store of the exports.
        model_name: Name of the model.
        keep: Number of the newest complete versions to keep, at least 1.
        exported: Number of a version to keep too. Default: none.
    """
    deleted = deleted_versions(store, model_name)
    numbers = [number for number in version_numbers(store.children(model_name)) if number not in deleted]
    complete = [number for number in numbers if read_complete(store, Claim(model_name, number).target)]
    return surplus_versions(complete, keep, {*read_aliases(store, model_name).values(), exported})


def apply_retention(store: Store, model_name: str, keep: int, exported: int) -> None:
    """Delete all complete versions but the newest ones. A failure is a line of the log.

    Args:
        store: Store of the exports.
        model_name: Name of the model.
        keep: Number of the newest complete versions to keep, at least 1.
        exported: Number of the version just exported, which is kept.
    """
    try:
        _delete_all(store, model_name, find_surplus(store, model_name, keep, exported))
    except StorageError as error:
        print(f"WARNING Old versions of {model_name} stay until a later export: {error}", flush=True)


def _is_own(store: Store, target: str) -> bool:
    """Return whether a version is one of export_model: complete, or without key files, which are deleted first."""
    if read_complete(store, target):
        return True
    return store.exists(target + EXPORT_MANIFEST) and is_unfinished(store, target)


def _delete_all(store: Store, model_name: str, versions: Iterable[int]) -> None:
    for version in versions:
        uri = join_uri(store.uri, Claim(model_name, version).target)
        try:
            delete_version(store, model_name, version)
            print(f"deleted {uri}", flush=True)
        except (VersionRefused, StorageError) as error:
            print(f"WARNING {uri} stays until a later export deletes it: {error}", flush=True)


def _forget_task(store: Store, model_name: str, version: int, source_task: str) -> None:
    """Delete the record of the task that exported a version."""
    record = task_record(model_name, task_key(source_task))
    with suppress(KeyNotFound):
        if store.read(record) == str(version).encode():
            store.delete([record])
