"""List and hash the files of a folder, and write files atomically."""

import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

OnBytes = Callable[[int], object]
"""Callback for each block of a transfer, with the number of bytes that it moved."""

# Prefix of the names of files that are being written.
_UNFINISHED = ".kfp-distributed-"
# Another process deletes the folder far fewer times. The limit ends the attempts if the folder cannot be created.
_CREATE_ATTEMPTS = 100


@dataclass(frozen=True, order=True)
class FileEntry:
    """A file of a folder: its path relative to the folder (with "/"), its size in bytes and its SHA-256 in hex."""

    path: str
    size: int
    sha256: str


class _Readable(Protocol):
    """A stream of which the next bytes can be read."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, and none at the end."""


def ignore_bytes(count: int) -> None:
    """Do nothing with the number of bytes that a block moved."""


def hash_stream(
    source: BinaryIO, path: str, target: BinaryIO | None = None, on_bytes: OnBytes = ignore_bytes
) -> FileEntry:
    """Return size and SHA-256 of a stream under the name `path`, and copy the stream to `target` if given.

    The stream is read in blocks of 1 MiB. `on_bytes` is called after each of them.
    """
    digest, size = hashlib.sha256(), 0
    while data := source.read(1 << 20):
        digest.update(data)
        size += len(data)
        if target:
            target.write(data)
        on_bytes(len(data))
    return FileEntry(path, size, digest.hexdigest())


def read_exactly(source: _Readable, length: int, on_bytes: OnBytes = ignore_bytes) -> bytearray:
    """Return the next bytes of a stream, read in blocks of 1 MiB. `on_bytes` is called after each of them.

    Raises:
        ValueError: The stream ends earlier.
    """
    data, done = bytearray(length), 0
    while done < length:
        block = source.read(min(1 << 20, length - done))
        if not block:
            raise ValueError(f"the content ended after {done} of {length} bytes")
        data[done : done + len(block)] = block
        done += len(block)
        on_bytes(len(block))
    return data


def describe_file(file: Path | str, path: str) -> FileEntry:
    """Return size and SHA-256 of a file under the name `path`."""
    with Path(file).open("rb") as source:
        return hash_stream(source, path)


def sha256_of(file: Path | str) -> str:
    """Return the SHA-256 of a file in hex."""
    return describe_file(file, "").sha256


def list_files(folder: Path | str) -> list[str]:
    """Return the relative paths (with "/") of all files below a folder, sorted. Unfinished files are skipped."""
    return sorted(
        Path(parent, name).relative_to(folder).as_posix()
        for parent, _, names in os.walk(folder)
        for name in names
        if not name.startswith(_UNFINISHED) and Path(parent, name).is_file()
    )


def list_children(folder: Path | str) -> list[str]:
    """Return the names of the files and folders in a folder, sorted. "/" ends the name of a folder.

    Unfinished files, folders without a file, and links to folders are skipped, as `list_files` does.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries if _has_file(entry))
    return []


def _has_file(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a finished file, or a folder with one. Ends at the first one."""
    if entry.is_dir(follow_symlinks=False):
        with suppress(OSError), os.scandir(entry) as entries:
            return any(map(_has_file, entries))
        return False
    return not entry.name.startswith(_UNFINISHED) and entry.is_file()


class UnsupportedFileError(OSError):
    """An entry of a folder cannot be stored: a broken link, a link to a target outside, a FIFO, socket or device."""


def raise_unsupported(reason: str) -> None:
    """Raise an UnsupportedFileError."""
    raise UnsupportedFileError(reason)


def storable_files(folder: Path | str, on_unsupported: Callable[[str], object] = raise_unsupported) -> list[str]:
    """Return the relative paths (with "/") of all files below a folder, sorted. Unfinished files are skipped.

    Symbolic links to targets inside the folder are followed.

    Args:
        folder: The folder.
        on_unsupported: Callback for each entry that cannot be stored. Its argument is the reason, with the entry's path
            and what to do. If the callback returns, the entry is skipped. Default: raises UnsupportedFileError.

    Raises:
        UnsupportedFileError: An entry cannot be stored, and `on_unsupported` is the default.
    """
    root = Path(folder).resolve()
    return sorted(path.relative_to(root).as_posix() for path in _walk(root, root, (), on_unsupported))


def _walk(
    root: Path, folder: Path, parents: tuple[Path, ...], on_unsupported: Callable[[str], object]
) -> Iterator[Path]:
    """Yield the files below a folder of `root`.

    Args:
        root: The folder that limits the targets of links.
        folder: `root` or a folder in it.
        parents: The folders from `root` to the parent of `folder`, with links resolved.
        on_unsupported: See `storable_files`.
    """
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
        except FileNotFoundError:  # Deleted since iterdir() listed it.
            continue


def _unsupported(root: Path, entry: Path, parents: tuple[Path, ...]) -> str:
    """Return why an entry cannot be stored, and what to do.

    Returns "" for a file, for a folder, and for a link to one inside `root`.
    """
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
    return f"{entry} is a {kind}, which cannot be stored: delete it or create it in another folder"


def describe_folder(folder: Path | str) -> tuple[FileEntry, ...]:
    """Return size and SHA-256 of every file below a folder, sorted by path."""
    return tuple(describe_file(Path(folder, path), path) for path in list_files(folder))


def relative_path(key: str) -> str:
    """Return a key unchanged if it is a safe relative path, which cannot leave the folder that it is joined to.

    Raises:
        ValueError: The key is empty or absolute, has a part that is empty, "." or "..", or contains a NUL character.
    """
    if "\0" in key or {"", ".", ".."} & {*key.split("/")}:
        raise ValueError(f"the key {key!r} is not a relative path: its parts must not be empty, '.' or '..'")
    return key


@contextmanager
def unfinished_file(file: Path) -> Iterator[BinaryIO]:
    """Write a file atomically: it gets its name when the block succeeds, and is deleted when the block raises.

    Args:
        file: The file. Its folder is created if it does not exist. An existing file is replaced.
    """
    temporary = file.with_name(_UNFINISHED + secrets.token_hex(8))
    stream = _create(temporary)
    try:
        with stream:
            yield stream
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def link_file(source: Path, file: Path) -> None:
    """Create or replace a file atomically by a hard link. Its folder is created if it does not exist.

    Raises:
        OSError: The source does not exist, or its file system has no hard links, or is another one.
    """
    temporary = file.with_name(_UNFINISHED + secrets.token_hex(8))
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.hardlink_to(source)
        temporary.replace(file)
    finally:
        # A file that replaces another link to itself keeps its name.
        temporary.unlink(missing_ok=True)


def _create(file: Path) -> BinaryIO:
    """Create a file and its folder, even if another process deletes the folder whenever it is empty."""
    for _ in range(_CREATE_ATTEMPTS):
        # FileExistsError: the folder existed when mkdir() created it, and was deleted before mkdir() checked its type.
        with suppress(FileNotFoundError, FileExistsError):
            file.parent.mkdir(parents=True, exist_ok=True)
            return file.open("xb")
    file.parent.mkdir(parents=True, exist_ok=True)
    return file.open("xb")
