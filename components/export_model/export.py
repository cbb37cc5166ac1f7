"""Exports a model as a new version, which becomes visible completely or not at all.

An object store cannot make several objects appear at once. So the order matters in which readers look at them:

- TensorFlow Serving sees a version as soon as any object exists under its number. It picks the highest number without
  looking inside, loads saved_model.pb, and retries a failed load for some minutes.
- KServe's storage initializer copies the model's folder when a server starts. TensorFlow Serving reads the copy.
- Triton sees a version as TensorFlow Serving does, and loads model.onnx or model.pt.
- Our own tools, and people, consider a version complete if it has export.json and each of these files that it lists.

So no object exists under the number before all bytes are in the store. If the model is on the same server, they are.
Otherwise they are uploaded beside the claim first. Then the server copies them: first the files, then the manifest that
lists them, and saved_model.pb, model.onnx or model.pt last. That last object is the commit. Before it exists, nothing
under the number can be loaded. After that, everything is there. A model of another format has none of these files, so
that the manifest is the last object and the commit.
"""

import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, cast

from kfp_distributed.components.export_model.model_source import ModelSource, open_source, refuse_changed
from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.model_versions.addresses import (
    check_alias,
    check_model_name,
    default_export_root,
    export_root,
    parse_alias_address,
)
from kfp_distributed.components.model_versions.aliases import deleted_versions, deletion_record, set_alias
from kfp_distributed.components.model_versions.claims import CLAIMS, Claim, clear_dead, hold, task_key
from kfp_distributed.components.model_versions.deletion import apply_retention, finish_deletions
from kfp_distributed.components.model_versions.versions import (
    EXPORT_MANIFEST,
    LARGEST_VERSION,
    next_version,
    read_complete,
)
from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.files import FileEntry, hash_stream
from kfp_distributed.storage.kubeflow.placeholders import refuse_placeholders
from kfp_distributed.storage.kubeflow.task_folder import parse_task_folder
from kfp_distributed.storage.model import MODEL_MANIFEST
from kfp_distributed.storage.model_format import SERVED_FILES
from kfp_distributed.storage.object_stores.buckets import require_bucket
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.parallel import PARALLEL_REQUESTS, PARALLEL_TRANSFERS, run_in_parallel
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri, uri_beside

_ATTEMPTS = 8
_ADVICE = "give another version, or 0 for the next free number."


class Exported(NamedTuple):
    """Address and number of an exported version."""

    uri: str
    version: int


class _Described(NamedTuple):
    """An exported version, and the text of its manifest."""

    exported: Exported
    manifest: str


def run_export(
    model_path: str,
    model_uri: str,
    model_name: str,
    bucket: str,
    version: int,
    metrics: Mapping[str, Any],
    manifest: Artifact,
    aliases: Sequence[str] = (),
    keep: int = 0,
) -> Exported:
    """Export a model as a new version.

    Args:
        model_path: Local folder of the model and its model.json; "" if there is only the address.
        model_uri: Address of the model, also an exported version or ROOT/MODEL@ALIAS. If its server is that of
            `bucket`, the server copies the files.
        model_name: Name of the model.
        bucket: Bucket, URI or folder (see `export_root`). A bucket must exist. "" for `default_export_root`.
        version: Number of the version; 0 for the next free number.
        metrics: Metrics for the manifest. Values that are not finite numbers are left out.
        manifest: Output artifact for a copy of export.json. Its URI has the ID of the run.
        aliases: Aliases that move to the version after it is complete. Default: none.
        keep: Number of the newest complete versions to keep; 0 for all. Versions with aliases stay too. Default: 0.

    Returns:
        Address and number of the exported version.

    Raises:
        ValueError: A name is not allowed, a value has a placeholder, the bucket or the alias does not exist, the
            version exists, or another export has claimed it.
        ModelIncomplete: The model lacks files, or a file differs from model.json.
        StorageError: The store refuses a request or does not answer. The uploaded files are deleted.
        LeaseLost: No bytes moved for too long. A later export deletes the uploaded files.
    """
    refuse_placeholders({"model_name": model_name, "bucket": bucket})
    check_model_name(model_name)
    check_version(version)
    for alias in aliases:
        check_alias(alias)
    if keep < 0:
        raise ValueError(f"keep={keep} is not allowed: give the number of versions to keep, or 0 for all.")
    task = parse_task_folder(manifest.uri)
    store = open_store(export_root(bucket) if bucket else default_export_root(manifest.uri))
    request = Claim(model_name, version, task=task_key(task.uri) if task.is_unique else "")
    # The account of a profile may not ask for the bucket of the pipeline root, which exists.
    is_in_root_bucket = not bucket and bool(store.bucket)
    earlier = _find_exported(store, request) if request.task and (is_in_root_bucket or store.bucket_exists()) else None
    source = open_source(model_path, _pin_alias(model_uri, earlier.manifest) if earlier else model_uri, store)
    if not is_in_root_bucket:
        require_bucket(store, "bucket", bucket)
    clear_dead(store, model_name)
    finish_deletions(store, model_name)
    if earlier and {*source.files} <= {FileEntry(**entry) for entry in json.loads(earlier.manifest)["files"]}:
        exported, text = earlier
        print(f"an earlier attempt of this task exported {exported.uri}")
    else:
        description = {
            "metrics": finite_numbers(metrics),
            "source_run": task.run_id,
            "source_task": task.uri,
            "source_uri": source.uri,
        }
        exported, text = _export_as_free_number(store, request, source, description)
        print(f"exported {exported.uri}")
    Path(manifest.path).write_text(text, encoding="utf-8")
    for alias in aliases:
        set_alias(store, model_name, exported.version, alias)
        print(f"{alias} is {exported.uri}")
    if keep:
        apply_retention(store, model_name, keep, exported.version)
    return exported


def _export_as_free_number(
    store: Store, request: Claim, source: ModelSource, description: Mapping[str, Any]
) -> _Described:
    """Claim a number and export the model under it.

    Args:
        store: Store to export to.
        request: Name of the model, number of the version or 0 for the next free one, and ID of the task.
        source: The model.
        description: See `publish`.

    Returns:
        The version.

    Raises:
        ValueError: The version exists, or another export has claimed it.
    """
    name, version = request.model_name, request.version
    for _ in range(_ATTEMPTS):
        claim = Claim(name, version or _free_version(store, name), task=request.task)
        uri = join_uri(store.uri, claim.target)
        with hold(store, claim, description["source_run"]) as state:
            was_deleted = state == "free" and store.exists(deletion_record(name, claim.version))
            if was_deleted and version:
                raise ValueError(f"{uri} was deleted, and its number is not used again: {_ADVICE}")
            if state == "free" and not was_deleted:
                return _Described(Exported(uri, claim.version), publish(store, claim, source, description))
        if version and state == "exists":
            raise ValueError(f"{uri} exists already and is never overwritten: {_ADVICE}")
        time.sleep(random.uniform(0, 1))  # Exports that began together try again at different times.
    raise ValueError(
        f"{uri} is being exported: {_ADVICE} If that export was killed, wait two hours or delete {claim.siblings} and "
        f"what it left in {claim.target}"
    )


def _free_version(store: Store, model_name: str) -> int:
    deleted = [f"{number}/" for number in deleted_versions(store, model_name)]
    return next_version([*store.children(model_name), *store.children(f"{CLAIMS}/{model_name}"), *deleted])


def _find_exported(store: Store, request: Claim) -> _Described | None:
    """Return the complete version that an earlier attempt of a task exported; None if there is none.

    Kubeflow Pipelines and Argo start a step again, for example if its pod was deleted after the export.
    """
    name = request.model_name
    try:
        version = int(store.read(request.record))
    except (KeyNotFound, ValueError):
        return None
    target = Claim(name, version).target
    manifest = read_complete(store, target)
    if not manifest or store.exists(deletion_record(name, version)):
        return None
    # Another task may have got the number of a killed attempt whose claim somebody deleted.
    if task_key(str(manifest.get("source_task", ""))) != request.task:
        return None
    return _Described(Exported(join_uri(store.uri, target), version), store.read(target + EXPORT_MANIFEST).decode())


def _pin_alias(model_uri: str, manifest: str) -> str:
    """Return the version that an alias named for an earlier attempt of the task; any other address unchanged.

    Args:
        model_uri: Address of the model.
        manifest: Text of the manifest of the version that the earlier attempt exported.
    """
    address, source = parse_alias_address(model_uri), str(json.loads(manifest).get("source_uri", ""))
    is_pinned = address and uri_beside(source) == join_uri(address.root, address.model_name)
    return source if is_pinned else model_uri


def publish(store: Store, claim: Claim, source: ModelSource, description: Mapping[str, Any]) -> str:
    """Make a model's files visible as a version, after uploading those that the server does not have.

    Args:
        store: Store to export to.
        claim: Claim to the number of the version.
        source: The model.
        description: Entries of the manifest beside name, number, time and files.

    Returns:
        The text of the manifest.

    Raises:
        ModelIncomplete: A file changed since it was checked.
        StorageError: The store refuses a request or does not answer.
        LeaseLost: No bytes moved for too long.
    """
    origin: Store = source.store or store
    prefix, files = "", source.files
    if not source.is_on(store):
        origin, prefix = store, f"{claim.folder}files/"
        _upload(store, claim, source, prefix)
    paths = [entry.path for entry in files]
    if source.manifest:
        files = tuple(sorted((*files, hash_stream(BytesIO(source.manifest), MODEL_MANIFEST))))
    sizes = {entry.path: entry.size for entry in files}

    def copy(path: str) -> None:
        claim.keep_alive(store)  # The previous copy moved bytes.
        etag = source.states[path].etag if origin is source.store else ""
        store.copy(origin, prefix + path, claim.target + path, etag, sizes[path])

    manifest = {
        "model_name": claim.model_name,
        "version": claim.version,
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **description,
        "files": [asdict(entry) for entry in files],
    }
    text = json.dumps(manifest, indent=1)
    run_in_parallel(copy, [path for path in paths if path not in SERVED_FILES], PARALLEL_REQUESTS)
    source.check_unchanged()
    claim.keep_alive(store)
    if source.manifest:
        store.write(claim.target + MODEL_MANIFEST, source.manifest)
    store.write(claim.target + EXPORT_MANIFEST, text.encode())
    for path in sorted({*SERVED_FILES} & {*paths}):
        copy(path)
    return text


def _upload(store: Store, claim: Claim, source: ModelSource, staged: str) -> None:
    """Upload a model's files to a folder of a store."""

    def note(_: int) -> None:
        claim.keep_alive(store)

    def transfer(entry: FileEntry) -> FileEntry:
        if source.folder:
            read = store.upload(source.folder / entry.path, staged + entry.path, note)
            return replace(read, path=entry.path)
        with TemporaryFile() as file:
            read = origin.read_into(entry.path, file, note)
            store.write_from(staged + entry.path, file, on_bytes=note)
        return read

    origin = cast(Store, source.store)
    threads = store.parallel_uploads if source.folder else PARALLEL_TRANSFERS
    refuse_changed(source.folder or source.uri, source.files, run_in_parallel(transfer, source.files, threads))


def check_version(version: int) -> None:
    """Check the number that a user asks for.

    Raises:
        ValueError: It is not allowed.
    """
    if not 0 <= version <= LARGEST_VERSION:
        raise ValueError(f"version={version} is not allowed: give 1 or more, or 0 for the next free number.")


def finite_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are finite numbers, which JSON can hold."""
    largest = sys.float_info.max  # An integer may be too large for `math.isfinite`.
    return {name: value for name, value in values.items() if type(value) in (int, float) and abs(value) <= largest}
