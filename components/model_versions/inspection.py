"""Describes exported versions: what a model has, what a version consists of, and whether its files are intact."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from kfp_distributed.components.model_versions.addresses import check_model_name
from kfp_distributed.components.model_versions.aliases import deleted_versions, read_aliases
from kfp_distributed.components.model_versions.claims import Claim
from kfp_distributed.components.model_versions.versions import (
    EXPORT_MANIFEST,
    VersionRefused,
    is_unfinished,
    manifest_problem,
    read_complete,
    version_numbers,
)
from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.model import MODEL_MANIFEST
from kfp_distributed.storage.model_format import SERVED_FILES, format_of
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri

VersionState = Literal["complete", "incomplete", "deleting", "unreadable", "other tool"]


@dataclass(frozen=True)
class VersionSummary:
    """An exported version in a list.

    Attributes:
        version: Its number.
        state: "complete"; "incomplete" while it is exported, or after a killed export; "deleting"; "unreadable" if its
            export.json is not JSON; or "other tool".
        aliases: Aliases that name it.
        exported_at: Time of the export in ISO 8601; "" if unknown, as all that follow.
        format: Format of the model, such as "saved_model".
        size: Size of all files in bytes.
        metrics: Metrics in export.json.
        problem: Why export.json cannot be read, and what to do; "" if it can, or if there is none.
    """

    version: int
    state: VersionState
    aliases: tuple[str, ...]
    exported_at: str
    format: str
    size: int
    metrics: dict[str, float]
    problem: str = ""


def list_models(store: Store) -> list[str]:
    """Return the names of the models in a folder for exports: its folders that have numbered folders."""
    names = [folder[:-1] for folder in store.children() if folder.endswith("/") and _is_model_name(folder[:-1])]
    return [name for name in names if version_numbers(store.children(name)) and store.has_objects(f"{name}/")]


def list_versions(store: Store, model_name: str) -> list[VersionSummary]:
    """Return the versions of a model, the highest number first."""
    aliases, deleted = read_aliases(store, model_name), deleted_versions(store, model_name)
    summaries = []
    for number in version_numbers(store.children(model_name)):
        target = Claim(model_name, number).target
        manifest = read_complete(store, target)
        if not manifest and not store.has_objects(target):
            continue
        state: VersionState = "complete"
        problem = ""
        if number in deleted:
            state = "deleting"
        elif not manifest and (problem := manifest_problem(store, target)):
            state = "unreadable"
        elif not manifest:
            state = "incomplete" if is_unfinished(store, target) else "other tool"
        names = tuple(name for name, version in aliases.items() if version == number)
        summaries.append(_summary(number, state, names, manifest or {}, problem))
    return summaries


def _summary(
    number: int, state: VersionState, aliases: tuple[str, ...], manifest: dict[str, Any], problem: str
) -> VersionSummary:
    files = manifest.get("files", [])
    return VersionSummary(
        number,
        state,
        aliases,
        str(manifest.get("exported_at", "")),
        format_of(entry["path"] for entry in files) if files else "",
        sum(entry["size"] for entry in files),
        manifest.get("metrics") or {},
        problem,
    )


def describe_version(store: Store, model_name: str, version: int) -> dict[str, Any]:
    """Return what is known about a version: its export.json, its aliases and its model.json without files.

    Raises:
        VersionRefused: It is not a complete version.
        StorageError: The store refuses a request or does not answer.
    """
    target = Claim(model_name, version).target
    manifest = read_complete(store, target)
    uri = join_uri(store.uri, target)
    if not manifest:
        listing = f"{uri} is not a complete version of export_model: kfp-distributed models list shows them"
        raise VersionRefused(manifest_problem(store, target) or listing)
    try:
        model = json.loads(store.read(target + MODEL_MANIFEST))
    except (KeyNotFound, ValueError):
        model = {}
    names = [name for name, number in read_aliases(store, model_name).items() if number == version]
    return {"uri": uri, "aliases": names, **manifest, "model": {k: v for k, v in model.items() if k != "files"}}


class FileCheck(NamedTuple):
    """What differs between the files of a version and its export.json.

    Attributes:
        damage: What is wrong, one sentence each.
        unlisted: Paths of the files that export.json does not list. Readers ignore them. Those that model servers load
            are damage instead.
    """

    damage: list[str]
    unlisted: list[str]


def check_files(store: Store, model_name: str, version: int, read_content: bool) -> FileCheck:
    """Compare the files of a version with its export.json.

    Args:
        store: Store of the exports.
        model_name: Name of the model.
        version: Number of the version.
        read_content: Whether to read all bytes and to compare their SHA-256. They are not stored.

    Raises:
        VersionRefused: It is not a complete version.
        StorageError: The store refuses a request or does not answer.
    """
    target = Claim(model_name, version).target
    expected = [FileEntry(**entry) for entry in describe_version(store, model_name, version)["files"]]
    sizes = {entry.key.removeprefix(target): entry.size for entry in store.list(target)}
    damage = []
    for file in expected:
        size = sizes.get(file.path)
        if size is None:
            damage.append(f"{file.path} is missing")
        elif size != file.size:
            damage.append(f"{file.path} has {size} bytes instead of {file.size}")
        elif read_content and (sha256 := _hash(store, target + file.path)) != file.sha256:
            damage.append(f"{file.path} has the SHA-256 {sha256} instead of {file.sha256}")
    unlisted = sizes.keys() - {file.path for file in expected} - {EXPORT_MANIFEST}
    damage += [
        f"{path} is not listed in {EXPORT_MANIFEST}, and model servers may load it: delete it"
        for path in sorted(unlisted & {*SERVED_FILES})
    ]
    return FileCheck(damage, sorted(unlisted - {*SERVED_FILES}))


def compare_versions(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the differences of two versions as rows: what, its value in each, and the difference of numbers. Pure.

    Args:
        first: Result of `describe_version`.
        second: That of the other version.
    """
    rows = []
    parts: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("metric", first["metrics"], second["metrics"]),
        ("", _origin(first), _origin(second)),
        ("file", _hashes(first), _hashes(second)),
    )
    for kind, left, right in parts:
        for name in [*left, *(name for name in right if name not in left)]:
            pair = left.get(name), right.get(name)
            if pair[0] == pair[1] and kind == "file":
                continue
            numbers = [value for value in pair if isinstance(value, int | float)]
            difference = f"{numbers[1] - numbers[0]:+.6g}" if kind == "metric" and len(numbers) == 2 else ""
            cells = [_cell(value) for value in pair]
            rows.append((f"{kind} {name}".strip(), *cells, difference))
    return cast(list[tuple[str, str, str, str]], rows)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    # A SHA-256 is shown by its beginning.
    return "" if value is None else str(value)[:12] if len(str(value)) == 64 else str(value)


def _origin(version: dict[str, Any]) -> dict[str, str]:
    trained: Sequence[dict[str, Any]] = version["model"].get("training_data") or [{}]
    return {
        "exported_at": str(version.get("exported_at", "")),
        "run": str(version.get("source_run", "")),
        "job": str(version["model"].get("job", "")),
        "dataset": str(trained[-1].get("source", "")),
        "content": str(trained[-1].get("content", "")),
    }


def _hashes(version: dict[str, Any]) -> dict[str, str]:
    return {entry["path"]: entry["sha256"] for entry in version["files"]}


def _hash(store: Store, key: str) -> str:
    return store.read_into(key, cast(Any, _Discarded())).sha256


class _Discarded(io.RawIOBase):
    """A file that forgets what is written."""

    def write(self, data: Any, /) -> int:  # noqa: ANN401
        return len(data)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return offset

    def truncate(self, size: int | None = None, /) -> int:
        return size or 0


def _is_model_name(name: str) -> bool:
    try:
        check_model_name(name)
    except ValueError:
        return False
    return True
