"""The files of a source, and what is left out of its folder."""

import os
from dataclasses import dataclass
from pathlib import Path

from kfp_distributed.components.prepare_data.left_out import LeftOut, reason_to_leave_out

TABLES = {".csv", ".parquet", ".arrow", ".npz"}
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

    path: Path
    files: tuple[Path, ...]
    left_out: tuple[LeftOut, ...] = ()


def list_folder(folder: Path, source: Path) -> SourceFiles:
    """Return the entries of a folder.

    Args:
        folder: The folder.
        source: The source that has the folder. Names of what is left out are relative to it.
    """
    data, left_out = [], []
    # Unlike Path.is_dir, os.scandir needs no request for each file, of which there may be a million.
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = folder / entry.name
            if reason := reason_to_leave_out(entry.name, is_folder=entry.is_dir()):
                left_out.append(LeftOut(relative_name(path, source), reason))
            else:
                data.append(path)
    return SourceFiles(folder, tuple(data), tuple(left_out))


def relative_name(path: Path, source: Path) -> str:
    """Return the path of a file or folder below a source. A folder's ends with "/"."""
    return path.relative_to(source).as_posix() + "/" * path.is_dir()


def ending(file: Path) -> str:
    """Return the ending of a file's name, in small letters and without that of a compression."""
    is_compressed = file.suffix.lower() in _COMPRESSED
    return (file.with_suffix("") if is_compressed else file).suffix.lower()
