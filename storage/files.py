"""Files and folders with their sizes and SHA-256, and files that become visible whole or not at all."""

import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# How the names of files begin that are still being written.
_UNFINISHED = ".kfp-distributed-"
# Far more deletions of its folder than a file meets; it ends the attempts where no folder can be made at all.
_CREATE_ATTEMPTS = 100


@dataclass(frozen=True, order=True)
class FileEntry:
    """One file of a folder: its path relative to the folder (with "/"), its size in bytes, its SHA-256 in hex."""

    path: str
    size: int
    sha256: str


def hash_stream(source: BinaryIO, path: str, target: BinaryIO | None = None) -> FileEntry:
    """Describe the bytes of a stream as the file `path`, and copy them where a target is given; 1 MiB at a time."""
    digest, size = hashlib.sha256(), 0
    while data := source.read(1 << 20):
        digest.update(data)
        size += len(data)
        if target:
            target.write(data)
    return FileEntry(path, size, digest.hexdigest())


def describe_file(file: Path | str, path: str) -> FileEntry:
    """A file's size and SHA-256 under the name `path`."""
    with Path(file).open("rb") as source:
        return hash_stream(source, path)


def sha256_of(file: Path | str) -> str:
    """The SHA-256 of a file in hex."""
    return describe_file(file, "").sha256


def list_files(folder: Path | str) -> list[str]:
    """The relative paths (with "/") of all files below a folder, sorted, without those still being written."""
    return sorted(
        Path(parent, name).relative_to(folder).as_posix()
        for parent, _, names in os.walk(folder)
        for name in names
        if not name.startswith(_UNFINISHED) and Path(parent, name).is_file()
    )


class UnsupportedFileError(OSError):
    """A folder has something that cannot be stored: a dangling link, a link that leads outside, a FIFO, a device."""


def raise_unsupported(reason: str) -> None:
    """Raise an UnsupportedFileError."""
    raise UnsupportedFileError(reason)


def storable_files(folder: Path | str, on_unsupported: Callable[[str], object] = raise_unsupported) -> list[str]:
    """The relative paths (with "/") of all files below a folder, sorted, without those still being written.

    A link inside the folder to a file or folder inside it counts as what it leads to.

    Args:
        folder: The folder.
        on_unsupported: Called with the reason for each entry that cannot be stored. The reason names the entry and says
            what to do. Without an exception the entry is left out.

    Raises:
        UnsupportedFileError: By default, where an entry cannot be stored.
    """
    root = Path(folder).resolve()
    return sorted(path.relative_to(root).as_posix() for path in _walk(root, root, (), on_unsupported))


def _walk(
    root: Path, folder: Path, parents: tuple[Path, ...], on_unsupported: Callable[[str], object]
) -> Iterator[Path]:
    """Yield the files below a folder of `root`; `parents` are the folders that led here, their links resolved."""
    parents = (*parents, folder.resolve())
    for entry in folder.iterdir():
        if entry.name.startswith(_UNFINISHED):
            continue
        try:
            reason = _unsupported(root, entry, parents)
            if reason:
                on_unsupported(reason)
            elif entry.is_dir():
                yield from _walk(root, entry, parents, on_unsupported)
            else:
                yield entry
        except FileNotFoundError:  # Deleted meanwhile.
            continue


def _unsupported(root: Path, entry: Path, parents: tuple[Path, ...]) -> str:
    """Return why an entry cannot be stored, and what to do; "" for a file, a folder and a link to one inside `root`."""
    if entry.is_symlink():
        name = f"{entry} is a link to {entry.readlink()}"
        if not entry.exists():
            return f"{name}, which does not exist, so it cannot be stored: delete the link"
        target = entry.resolve()
        if target in parents:
            return f"{name}, a folder that contains the link, so it cannot be stored: delete the link"
        if root not in target.parents:
            return f"{name}, which is not inside {root}, so it cannot be stored: copy the file or folder instead"
    mode = entry.stat().st_mode
    if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
        return ""
    kind = "FIFO" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
    return f"{entry} is a {kind}, which cannot be stored: delete it, or make it in another folder"


def describe_folder(folder: Path | str) -> tuple[FileEntry, ...]:
    """Every file below a folder with size and SHA-256, sorted by path."""
    return tuple(describe_file(Path(folder, path), path) for path in list_files(folder))


def relative_path(key: str) -> str:
    """Return a key unchanged if, as a path, it stays below the folder it is joined to.

    Raises:
        ValueError: The key is empty or absolute, or has a part that is empty, "." or "..", or holds a NUL character.
    """
    if "\0" in key or {"", ".", ".."} & {*key.split("/")}:
        raise ValueError(f"the key {key!r} is no relative path: its parts must not be empty, '.' or '..'")
    return key


@contextmanager
def unfinished_file(file: Path) -> Iterator[BinaryIO]:
    """Write a file that appears under its name when the block ends well, and leaves nothing behind when it does not.

    Args:
        file: The file. Its folder is made where it is missing, an older file is replaced.
    """
    temporary = file.with_name(_UNFINISHED + secrets.token_hex(8))
    stream = _create(temporary)
    try:
        with stream:
            yield stream
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _create(file: Path) -> BinaryIO:
    """Create a file and its folder, even while another process deletes that folder whenever it is empty."""
    for _ in range(_CREATE_ATTEMPTS):
        # FileExistsError: the folder was there when mkdir() made it, and was deleted before mkdir() looked again.
        with suppress(FileNotFoundError, FileExistsError):
            file.parent.mkdir(parents=True, exist_ok=True)
            return file.open("xb")
    file.parent.mkdir(parents=True, exist_ok=True)
    return file.open("xb")
