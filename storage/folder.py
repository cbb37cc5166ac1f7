"""A local folder as a store."""

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.files import (
    FileEntry,
    OnBytes,
    hash_stream,
    ignore_bytes,
    link_file,
    list_children,
    list_files,
    relative_path,
    unfinished_file,
)
from kfp_distributed.storage.store import BYTES, Entry, ObjectRange, Store


class FolderStore(Store):
    """The files below a folder. Unfinished files are not listed."""

    def __init__(self, root: Path | str, uri: str = "") -> None:
        self.root, self.uri = Path(root).absolute(), uri or str(root)

    def list(self, prefix: str = "") -> list[Entry]:
        """See Store."""
        entries = []
        with self._errors(prefix):
            for path in list_files(self.root):
                if path.startswith(prefix):
                    with contextlib.suppress(FileNotFoundError):  # Deleted since list_files().
                        entries.append(Entry(path, (self.root / path).stat().st_size))
        return entries

    def children(self, folder: str = "") -> Sequence[str]:
        """See Store."""
        with self._errors(folder):
            return list_children(self._path(folder))

    def exists(self, key: str) -> bool:
        """See Store."""
        with self._errors(key):
            return self._path(key).is_file()

    def delete(self, keys: Iterable[str]) -> None:
        """See Store. Folders that become empty are deleted too, because an object store has no folders."""
        for key in keys:
            with self._errors(key):
                path = self._path(key)
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                for parent in path.parents:
                    if self.root in parent.parents:
                        parent.rmdir()

    def abort_uploads(self) -> None:
        """See Store. The parts of a file are never stored by themselves."""

    def bucket_exists(self) -> bool:
        """See Store."""
        return self.root.is_dir()

    def make_bucket(self) -> None:
        """See Store."""
        with self._errors(""):
            self.root.mkdir(parents=True, exist_ok=True)

    def copy(self, source: Store, source_key: str, key: str, etag: str = "", size: int = -1) -> None:
        """See Store. A copy within the store is a hard link where the file system has them."""
        if source is self and not self._path(source_key).is_symlink():
            with contextlib.suppress(OSError, ValueError):
                return link_file(self._path(source_key), self._path(key))
        return super().copy(source, source_key, key, etag, size)

    def read_into(self, key: str, target: BinaryIO, on_bytes: OnBytes = ignore_bytes) -> FileEntry:
        """See Store."""
        with self._errors(key):
            path = self._path(key)
            if not path.is_file():
                raise self._error(key, "the file does not exist, check its path", KeyNotFound)
            with path.open("rb") as source:
                return hash_stream(source, key, target, on_bytes)

    def read_range(
        self, key: str, offset: int, length: int, etag: str = "", on_bytes: OnBytes = ignore_bytes
    ) -> ObjectRange:
        """See Store."""
        with self._errors(key):
            path = self._path(key)
            if not path.is_file():
                raise self._error(key, "the file does not exist, check its path", KeyNotFound)
            with path.open("rb") as source:
                state = os.fstat(source.fileno())
                tag = f"{state.st_ino:x}-{state.st_mtime_ns:x}-{state.st_size:x}"
                self._check_etag(key, tag, etag)
                source.seek(offset)
                data = source.read(length)
        if len(data) != length:
            raise self._short(key, offset, length, f"the file has {state.st_size} bytes")
        on_bytes(length)
        return ObjectRange(data, state.st_size, tag)

    def write_from(
        self, key: str, source: BinaryIO, content_type: str = BYTES, on_bytes: OnBytes = ignore_bytes
    ) -> FileEntry:
        """See Store."""
        source.seek(0)
        with self._errors(key), unfinished_file(self._path(key)) as target:
            return hash_stream(source, key, target, on_bytes)

    def _path(self, key: str) -> Path:
        return Path(self._key(key and relative_path(key)))
