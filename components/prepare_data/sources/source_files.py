"""The files of a source, and what is left out of its folder."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

from kfp_distributed.components.prepare_data.sources.left_out import LeftOut, reason_to_leave_out
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath, StoredPath
from kfp_distributed.storage.uri import join_uri

DELIMITED = {".csv", ".tsv", ".data", ".txt"}
"""Texts of rows. Beside images and other tables, .data and .txt may be anything."""
TABLES = {".csv", ".tsv", ".parquet", ".arrow", ".npz"}
JSON_LINES = {".jsonl", ".ndjson", ".json"}
_COMPRESSED = {".gz", ".zst"}


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source.

    Attributes:
        path: The source's file or folder.
        files: The files that are data, and the folders beside them, sorted.
        left_out: What is left out.
    """

    path: SourcePath
    files: tuple[SourcePath, ...]
    left_out: tuple[LeftOut, ...] = ()


def list_folder(folder: SourcePath, source: SourcePath) -> SourceFiles:
    """Return the entries of a folder.

    Args:
        folder: The folder.
        source: The source that has the folder. Names of what is left out are relative to it.
    """
    data, left_out = [], []
    for path, is_folder in _entries(folder):
        if reason := reason_to_leave_out(path.name, is_folder=is_folder):
            left_out.append(LeftOut(relative_name(path, source), reason))
        else:
            data.append(path)
    return SourceFiles(folder, tuple(data), tuple(left_out))


def _entries(folder: SourcePath) -> list[tuple[SourcePath, bool]]:
    """Return the entries of a folder by name, and whether each is a folder."""
    if isinstance(folder, StoredPath):
        return [(entry, entry.is_dir()) for entry in sorted(folder.children(), key=lambda entry: entry.name)]
    # Unlike Path.is_dir, os.scandir needs no request for each file, of which there may be a million.
    with os.scandir(folder) as entries:
        return [(folder / entry.name, entry.is_dir()) for entry in sorted(entries, key=lambda entry: entry.name)]


def relative_name(path: SourcePath, source: SourcePath) -> str:
    """Return the path of a file or folder below a source. A folder's ends with "/"."""
    return below(path, source).as_posix() + "/" * path.is_dir()


def below(path: SourcePath, source: SourcePath) -> PurePath:
    """Return the path of a file or folder below a source."""
    if isinstance(path, StoredPath) and isinstance(source, StoredPath):
        return path.relative_to(source)
    if isinstance(path, StoredPath) or isinstance(source, StoredPath):
        raise TypeError(f"{path} and {source} are not of the same source")
    return path.relative_to(source)


def ending(file: SourcePath) -> str:
    """Return the ending of a file's name, in small letters and without that of a compression."""
    name = PurePosixPath(file.name)
    return (name.with_suffix("") if name.suffix.lower() in _COMPRESSED else name).suffix.lower()


def source_states(path: SourcePath) -> Iterator[tuple[str, int, int | str]]:
    """Yield the path, the size, and the time of the last change or the ETag of each file."""
    if isinstance(path, StoredPath):
        yield from ((join_uri(path.uri, file.key), file.size, file.etag) for file in path.objects())
        return
    folders = [(str(path.parent), (), (path.name,))] if path.is_file() else sorted(os.walk(path))
    for folder, _, names in folders:
        for name in sorted(names):
            file = Path(folder, name)
            try:
                state = file.stat()
            except FileNotFoundError:
                # The step that reads a link to nothing names it in its error.
                state = file.lstat()
            yield str(file), state.st_size, state.st_mtime_ns
