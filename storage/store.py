"""One interface to object storage and local folders."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO, FileIO
from pathlib import Path
from typing import BinaryIO, Protocol

from kfp_distributed.storage.errors import ChecksumMismatch, StorageError
from kfp_distributed.storage.files import FileEntry, raise_unsupported, relative_path, storable_files, unfinished_file

# Files on their way at a time. More did not help against one server; each takes up to one part of memory (s3.py).
PARALLEL_TRANSFERS = 8

BYTES = "application/octet-stream"
"""The content type of an object whose writer names none."""


@dataclass(frozen=True, order=True)
class Entry:
    """One stored object: its key relative to the store's root and its size in bytes."""

    key: str
    size: int


class Store(Protocol):
    """Objects under one root, which is an S3 bucket, a key prefix in it, or a local folder.

    Keys are relative to the root. The key "" means the root itself as one object. Every method raises StorageError
    where the store cannot do what it should, and KeyNotFound where an object that must exist does not. An object is
    visible under its key whole or not at all.
    """

    uri: str
    root: Path | str
    endpoint: str = ""
    bucket: str = ""

    def list(self, prefix: str = "") -> list[Entry]:
        """All objects whose key starts with `prefix` (any string, not only a folder), sorted by key."""

    def exists(self, key: str) -> bool:
        """Whether there is an object of that key."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that do not exist are passed over."""

    def make_bucket(self) -> None:
        """Create the bucket, or the local folder, where there is none."""

    def _fetch(self, key: str, target: BinaryIO) -> FileEntry:
        """Write an object's bytes to an empty file."""

    def _send(self, key: str, source: BinaryIO, content_type: str = BYTES) -> FileEntry:
        """Create or replace an object from a whole file."""

    def _key(self, key: str) -> str:
        """The whole key or path of a key relative to the root."""
        return "/".join(part for part in (str(self.root), key) if part)

    def _error(self, key: str, cause: str, kind: type[StorageError] = StorageError) -> StorageError:
        return kind(self.endpoint, self.bucket, self._key(key), cause)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Turn what the store and the local disk raise into the store's own errors."""
        try:
            yield
        except (OSError, ValueError) as error:
            raise self._error(key, str(error)) from None

    def read(self, key: str) -> bytes:
        """The object's bytes, all in memory."""
        self._fetch(key, data := BytesIO())
        return data.getvalue()

    def write(self, key: str, data: bytes, content_type: str = BYTES) -> None:
        """Create or replace an object. A local folder keeps no content type."""
        self._send(key, BytesIO(data), content_type)

    def upload(self, file: Path | str, key: str, on_bytes: Callable[[], None] | None = None) -> FileEntry:
        """Store a local file, which must not change meanwhile.

        Args:
            file: The local file.
            key: The object.
            on_bytes: Called for each block that is read from the file and when all is stored. What it raises ends the
                upload.

        Returns:
            The file's size and SHA-256.
        """
        if on_bytes is None:
            with Path(file).open("rb") as source:
                return self._send(key, source)
        with _ObservedFile(file, on_bytes) as source:
            entry = self._send(key, source)
        on_bytes()
        return entry

    def download(self, key: str, file: Path | str, expected: FileEntry | None = None) -> FileEntry:
        """Fetch an object into a local file, which appears whole or not at all.

        Args:
            key: The object.
            file: The file; its folder is made, an older file is replaced.
            expected: The size and SHA-256 it must have.

        Raises:
            ChecksumMismatch: It has another size or SHA-256; there is no file then.
        """
        with self._errors(key), unfinished_file(Path(file)) as target:
            found = self._fetch(key, target)
            if expected and found != replace(expected, path=key):
                cause = (
                    f"is damaged: it has {found.size} bytes and SHA-256 {found.sha256}, "
                    f"not {expected.size} and {expected.sha256}"
                )
                raise self._error(key, cause, ChecksumMismatch)
        return found

    def copy(self, source: Store, source_key: str, key: str) -> None:
        """Copy an object of another store (or this one) here; inside the server where both are on the same one."""
        with tempfile.TemporaryFile() as file:
            source._fetch(source_key, file)
            self._send(key, file)

    def upload_folder(
        self,
        folder: Path | str,
        prefix: str = "",
        *,
        on_bytes: Callable[[], None] | None = None,
        on_unsupported: Callable[[str], object] = raise_unsupported,
    ) -> tuple[FileEntry, ...]:
        """Store all files below a folder, several at a time; after a failure no further one is begun.

        Args:
            folder: The local folder. Empty folders in it are not stored; links inside it are followed.
            prefix: The folder of the store they go to.
            on_bytes: See `upload`; several threads call it at a time.
            on_unsupported: See `storable_files`.

        Returns:
            What was stored, sorted by path relative to the folder.

        Raises:
            NotADirectoryError: There is no such folder.
            UnsupportedFileError: By default, where an entry cannot be stored; nothing is stored then.
        """
        if not Path(folder).is_dir():
            raise NotADirectoryError(f"{folder} is not a folder")
        return _in_parallel(
            lambda path: self.upload(Path(folder, path), posixpath.join(prefix, path), on_bytes),
            storable_files(folder, on_unsupported),
        )

    def download_folder(
        self, folder: Path | str, prefix: str = "", expected: Iterable[FileEntry] | None = None
    ) -> tuple[FileEntry, ...]:
        """Fetch all objects of one folder of the store, several at a time; after a failure no further one is begun.

        Args:
            folder: The local folder; it is made, also where there is nothing to fetch.
            prefix: The folder of the store.
            expected: Fetch exactly these, their paths relative to `prefix`, and check size and SHA-256.

        Returns:
            What was fetched, sorted by path relative to the folder. After an error the files that had come whole stay.

        Raises:
            StorageError: Also for a key that is no safe path (such as "../x"), before anything is fetched.
        """
        start = posixpath.join(prefix, "")
        wanted: Mapping[str, FileEntry | None] = (
            {entry.key[len(start) :]: None for entry in self.list(start)}
            if expected is None
            else {entry.path: entry for entry in expected}
        )
        for path in wanted:
            with self._errors(start + path):
                relative_path(path)
        Path(folder).mkdir(parents=True, exist_ok=True)
        return _in_parallel(lambda path: self.download(start + path, Path(folder, path), wanted[path]), sorted(wanted))


class _ObservedFile(FileIO):
    """A local file that reports each block that is read from it."""

    def __init__(self, file: Path | str, on_bytes: Callable[[], None]) -> None:
        super().__init__(file)
        self._on_bytes = on_bytes

    def read(self, size: int | None = -1) -> bytes:
        """Read as FileIO does; nothing is reported at the end of the file."""
        data = super().read(-1 if size is None else size) or b""
        if data:
            self._on_bytes()
        return data


def _in_parallel(transfer: Callable[[str], FileEntry], paths: Sequence[str]) -> tuple[FileEntry, ...]:
    with ThreadPoolExecutor(PARALLEL_TRANSFERS) as pool:
        return tuple(replace(entry, path=path) for path, entry in zip(paths, pool.map(transfer, paths), strict=True))
