"""Exports a model as a new version, which becomes visible completely or not at all.

An object store cannot make several objects appear at once. So the order matters in which readers look at them:

- TensorFlow Serving sees a version as soon as any object exists under its number. It picks the highest number without
  looking inside, loads saved_model.pb, and retries a failed load for some minutes.
- KServe's storage initializer copies the model's folder when a server starts. TensorFlow Serving reads the copy.
- Triton sees a version as TensorFlow Serving does, and loads model.onnx.
- Our own tools, and people, consider a version complete if it has a saved_model.pb or a model.onnx.

So no object exists under the number before all bytes are in the store. Then they are copied inside the store: first the
files, then the manifest that lists them, and saved_model.pb or model.onnx last. That last object is the commit. Before
it exists, nothing under the number can be loaded. After that, everything is there.
"""

import json
import random
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from kfp_distributed.components.artifacts import Artifact
from kfp_distributed.components.export_model.claims import CLAIMS, Claim, clear_dead, hold, keys_below
from kfp_distributed.storage.buckets import require_bucket
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.model import FORMATS, ModelIncomplete, verify_model_folder
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.placeholders import refuse_placeholders
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.task_folder import parse_task_folder
from kfp_distributed.storage.uri import join_uri

EXPORT_MANIFEST = "export.json"
# TensorFlow Serving reads a version's folder name as int64.
_LARGEST_VERSION = 2**63 - 1
_ATTEMPTS = 8
_ADVICE = "give another version, or 0 for the next free number."


class Exported(NamedTuple):
    """Address and number of an exported version."""

    uri: str
    version: int


def run_export(
    model_path: str,
    model_uri: str,
    model_name: str,
    bucket: str,
    version: int,
    metrics: Mapping[str, Any],
    manifest: Artifact,
) -> Exported:
    """Export a model as a new version.

    Args:
        model_path: Folder of the model and its model.json.
        model_uri: Address of this folder, for the manifest.
        model_name: Name of the model.
        bucket: Bucket, URI or folder (see `export_root`). A bucket must exist.
        version: Number of the version; 0 for the next free number.
        metrics: Metrics for the manifest. Values that are not finite numbers are left out.
        manifest: Output artifact for a copy of export.json. Its URI has the ID of the run.

    Returns:
        Address and number of the exported version.

    Raises:
        ValueError: A name is not allowed, a value has a placeholder, the bucket does not exist, the version exists,
            another export has claimed it, or no server can load the model's format.
        ModelIncomplete: The model lacks files, or a file differs from model.json.
        StorageError: The store refuses a request or does not answer. The uploaded files are deleted.
        LeaseLost: No bytes moved for too long. A later export deletes the uploaded files.
    """
    refuse_placeholders({"model_name": model_name, "bucket": bucket})
    check_request(model_name, version)
    source_run = parse_task_folder(manifest.uri).run_id
    folder = Path(model_path)
    files = check_model(folder, model_uri)
    store = open_store(export_root(bucket))
    require_bucket(store, "bucket", bucket)
    clear_dead(store, model_name)
    description = {"metrics": finite_numbers(metrics), "source_run": source_run, "source_uri": model_uri}
    for _ in range(_ATTEMPTS):
        used = [*keys_below(store, f"{model_name}/"), *keys_below(store, f"{CLAIMS}/{model_name}/")]
        claim = Claim(model_name, version or next_version(used))
        uri = join_uri(store.uri, claim.target)
        with hold(store, claim, source_run) as state:
            if state == "free":
                text = publish(store, claim, folder, files, description)
                Path(manifest.path).write_text(text, encoding="utf-8")
                print(f"exported {uri}")
                return Exported(uri, claim.version)
        if version and state == "exists":
            raise ValueError(f"{uri} exists already and is never overwritten: {_ADVICE}")
        time.sleep(random.uniform(0, 1))  # Exports that began together try again at different times.
    raise ValueError(
        f"{uri} is being exported: {_ADVICE} If that export was killed, wait two hours or delete {claim.siblings}"
    )


def check_model(folder: Path, uri: str) -> tuple[FileEntry, ...]:
    """Check that a model can be exported, and return its files.

    Args:
        folder: Folder of the model and its model.json.
        uri: Address of this folder, for the error.

    Raises:
        ValueError: The model's format cannot be served, or a file has the name of the export's manifest.
        ModelIncomplete: The model lacks files, or a file differs from model.json.
    """
    files = verify_model_folder(folder).files
    if not FORMATS.keys() & {entry.path for entry in files}:
        raise ValueError(f"the model in {uri} has no {' or '.join(FORMATS)}: other formats cannot be exported.")
    if (folder / EXPORT_MANIFEST).exists():
        raise ValueError(f"the model has a file {EXPORT_MANIFEST}, which is the name of the manifest: rename the file.")
    return files


def publish(
    store: Store, claim: Claim, folder: Path, expected: Iterable[FileEntry], description: Mapping[str, Any]
) -> str:
    """Upload a model's files and make them visible as a version.

    Args:
        store: Store to export to.
        claim: Claim to the number of the version.
        folder: Folder of the model.
        expected: Files of the model.
        description: Entries of the manifest beside name, number, time and files.

    Returns:
        The text of the manifest.

    Raises:
        ModelIncomplete: A file changed since it was checked.
        StorageError: The store refuses a request or does not answer.
        LeaseLost: No bytes moved for too long.
    """
    staged = f"{claim.folder}files/"
    files = store.upload_folder(folder, staged, on_bytes=lambda _: claim.keep_alive(store))
    changed = [entry.path for entry in expected if entry not in files]
    if changed:
        raise ModelIncomplete(f"files of the model in {folder} changed while they were read: {changed}")
    manifest = {
        "model_name": claim.model_name,
        "version": claim.version,
        "exported_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **description,
        "files": [asdict(entry) for entry in files],
    }
    text = json.dumps(manifest, indent=1)
    store.write(staged + EXPORT_MANIFEST, text.encode())
    for path in sorted(
        [*(entry.path for entry in files), EXPORT_MANIFEST], key=lambda path: (path in FORMATS, path == EXPORT_MANIFEST)
    ):
        claim.keep_alive(store)  # The previous copy moved bytes.
        store.copy(store, staged + path, claim.target + path)
    return text


def export_root(bucket: str) -> str:
    """Return the URI of the folder for exports.

    Args:
        bucket: A bucket's name ("models"), optionally with a prefix ("models/team-a"), a URI (s3://, minio://,
            file://) or a path that begins with / or a dot.
    """
    return bucket if "://" in bucket or bucket.startswith(("/", ".")) else f"s3://{bucket}"


def check_request(model_name: str, version: int) -> None:
    """Check the name and the number that a user asks for.

    Raises:
        ValueError: One of them is not allowed.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", model_name):
        raise ValueError(
            f"model_name={model_name!r} is not allowed: 1 to 128 letters, digits, dots, hyphens and underscores, "
            "the first a letter or a digit."
        )
    if not 0 <= version <= _LARGEST_VERSION:
        raise ValueError(f"version={version} is not allowed: give 1 or more, or 0 for the next free number.")


def next_version(keys: Iterable[str]) -> int:
    """Return the number after the highest one in use.

    Args:
        keys: Keys of versions and of claims. Folders whose names are not numbers are ignored.
    """
    numbers = (re.match(r"(?:\.exports/)?[^/]+/([0-9]+)/", key) for key in keys)
    return max((int(number[1]) for number in numbers if number), default=0) + 1


def finite_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are finite numbers, which JSON can hold."""
    largest = sys.float_info.max  # An integer may be too large for `math.isfinite`.
    return {name: value for name, value in values.items() if type(value) in (int, float) and abs(value) <= largest}
