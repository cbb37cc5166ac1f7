"""Objects of a store as the files and folders of a source. Readers read the ranges that they need."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from kfp_distributed.storage.errors import ChecksumMismatch, KeyNotFound, StorageError, StoreAway
from kfp_distributed.storage.files import relative_path
from kfp_distributed.storage.object_stores.s3 import ObjectState
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import parse_uri

FIRST_BYTES = 2**16
"""Bytes of the first request after a seek. Each request that follows the one before has twice as many."""

MOST_BYTES = 2**23
"""The most bytes of a request, and of a file that are in memory."""


class StoredSize(NamedTuple):
    """What `os.stat_result` says about a file: its size in bytes."""

    st_size: int


@dataclass(frozen=True, slots=True)
class StoredPath:
    """An object or a folder of a store, as it was listed. It has the methods of pathlib.Path that readers use.

    Attributes:
        uri: Address of the source.
        key: Key relative to the address; "" for the source itself.
        size: Size of the object in bytes.
        etag: ETag of the object. Each range that is read must be of an object with this ETag.
        entries: Objects and folders in the folder; None for an object.
    """

    uri: str
    key: str
    size: int = 0
    etag: str = ""
    entries: tuple[StoredPath, ...] | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Last part of the key."""
        return self._path.name

    @property
    def suffix(self) -> str:
        """Ending of the name with its dot."""
        return self._path.suffix

    @property
    def parent(self) -> PurePosixPath:
        """Path of the folder, without what is in it."""
        return self._path.parent

    @property
    def _path(self) -> PurePosixPath:
        location = parse_uri(self.uri)
        return PurePosixPath(location.bucket, location.key, self.key)

    def __lt__(self, other: StoredPath) -> bool:
        """Compare as paths do: folder by folder."""
        return (self.uri, self.key.split("/")) < (other.uri, other.key.split("/"))

    def is_dir(self) -> bool:
        """Return whether it is a folder."""
        return self.entries is not None

    def is_file(self) -> bool:
        """Return whether it is an object."""
        return self.entries is None

    def children(self) -> tuple[StoredPath, ...]:
        """Return the objects and folders in a folder.

        Raises:
            NotADirectoryError: It is an object.
        """
        if self.entries is None:
            raise NotADirectoryError(f"{self.name} is an object")
        return self.entries

    def objects(self) -> Iterator[StoredPath]:
        """Yield the object, or the objects below the folder, sorted."""
        if self.entries is None:
            yield self
            return
        for entry in sorted(self.entries):
            yield from entry.objects()

    def relative_to(self, other: StoredPath) -> PurePosixPath:
        """Return the path below a folder of the same source."""
        return PurePosixPath(self.key).relative_to(other.key)

    def stat(self) -> StoredSize:
        """Return the size of an object.

        Raises:
            IsADirectoryError: It is a folder.
        """
        self._refuse_folder()
        return StoredSize(self.size)

    def open(self, mode: Literal["rb"] = "rb", first_bytes: int = FIRST_BYTES) -> RangeStream:
        """Open an object.

        Args:
            mode: Only reading of bytes is possible.
            first_bytes: Bytes of the first request after a seek. Default: 64 KiB.

        Raises:
            IsADirectoryError: It is a folder.
        """
        self._refuse_folder()
        return RangeStream(self, first_bytes)

    def read_bytes(self) -> bytes:
        """Return the content of an object.

        Raises:
            IsADirectoryError: It is a folder.
            StorageError: The store fails, or the object was replaced.
        """
        return self.open().read()

    def _refuse_folder(self) -> None:
        if self.is_dir():
            raise IsADirectoryError(f"{self.name} is a folder")


SourcePath = Path | StoredPath
"""A file or folder of a source: on a disk, or in a store."""


def stored_tree(uri: str, states: Iterable[ObjectState]) -> StoredPath:
    """Return the object at an address, or the folder of the objects below it.

    Args:
        uri: The address.
        states: What `S3Store.states` has returned, at least one.

    Raises:
        ValueError: A key is no relative path, or the server reports no ETag.
    """
    entries: dict[str, list[StoredPath]] = {"": []}
    for state in states:
        if not state.etag:
            raise ValueError(
                f"the object store reports no ETag of {state.key or uri!r}, so that tasks would not notice its "
                "replacement: prepare the source without an engine, which downloads it"
            )
        if not state.key:
            return StoredPath(uri, "", state.size, state.etag)
        folder, _, _ = relative_path(state.key).rpartition("/")
        entries.setdefault(folder, []).append(StoredPath(uri, state.key, state.size, state.etag))
        while folder:
            folder, _, _ = folder.rpartition("/")
            entries.setdefault(folder, [])
    # Those in others come first.
    for key in sorted(entries, key=lambda key: -len(key.split("/"))):
        if key:
            entries[key.rpartition("/")[0]].append(StoredPath(uri, key, entries=tuple(entries[key])))
    return StoredPath(uri, "", entries=tuple(entries[""]))


class RangeStream(io.RawIOBase):
    """The content of an object, of which at most MOST_BYTES are read at once.

    Args:
        file: The object.
        first_bytes: Bytes of the first request after a seek.
    """

    def __init__(self, file: StoredPath, first_bytes: int = FIRST_BYTES) -> None:
        self._file, self._first = file, first_bytes
        self._position, self._begin, self._data, self._step = 0, 0, memoryview(b""), first_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative position {start + offset}")
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes: fewer than `size` only at the end.

        Raises:
            StorageError: The store fails, or the object was replaced.
        """
        left = max(0, self._file.size - self._position)
        buffer = bytearray(left if size is None or size < 0 else min(size, left))
        self.readinto(buffer)
        return bytes(buffer)

    def readall(self) -> bytes:
        """Return all bytes from the position."""
        return self.read()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # any writable buffer
        """Fill a buffer, which stays partly empty only at the end, and return the number of bytes.

        Raises:
            StorageError: The store fails, or the object was replaced.
        """
        target = memoryview(buffer).cast("B")
        size, done = min(len(target), max(0, self._file.size - self._position)), 0
        while done < size:
            data = self._data_at(self._position, size - done)[: size - done]
            target[done : done + len(data)] = data
            done += len(data)
            self._position += len(data)
        return size

    def _data_at(self, position: int, wanted: int) -> memoryview:
        """Return bytes from a position on, at least one."""
        end = self._begin + len(self._data)
        if not self._begin <= position < end:
            is_next = position == end and position > 0
            self._step = min(2 * self._step, MOST_BYTES) if is_next else self._first
            length = min(max(wanted, self._step), MOST_BYTES, self._file.size - position)
            self._begin, self._data = position, memoryview(_read_range(self._file, position, length))
        return self._data[position - self._begin :]


def _read_range(file: StoredPath, offset: int, length: int) -> bytes | bytearray:
    store = _store(file.uri)
    try:
        return store.read_range(file.key, offset, length, file.etag).data
    except (StoreAway, KeyNotFound, ChecksumMismatch):
        raise
    except StorageError:  # A shorter object of the same key may not have the range. Then its ETag says so.
        store.read_range(file.key, 0, 1, file.etag)
        raise


@lru_cache(maxsize=8)
def _store(uri: str) -> Store:
    """Return the store of an address. A process opens it once."""
    return open_store(uri)
