"""One interface to object storage and local folders."""

from __future__ import annotations

import errno
import posixpath
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Protocol

from kfp_distributed.storage.errors import ChecksumMismatch, StorageError
from kfp_distributed.storage.files import (
    FileEntry,
    OnBytes,
    ignore_bytes,
    raise_unsupported,
    relative_path,
    storable_files,
    unfinished_file,
)
from kfp_distributed.storage.parallel import PARALLEL_TRANSFERS, run_in_parallel

BYTES = "application/octet-stream"
"""The default content type of an object."""


@dataclass(frozen=True, order=True)
class Entry:
    """One stored object: its key relative to the store's root and its size in bytes."""

    key: str
    size: int


@dataclass(frozen=True)
class ObjectRange:
    """A range of the bytes of an object.

    Attributes:
        data: The bytes.
        size: Size of the complete object in bytes.
        etag: Changes when the object is replaced. "" if the server does not report it.
    """

    data: bytes | bytearray
    size: int
    etag: str


class Store(Protocol):
    """Objects under a root: an S3 bucket, a key prefix in a bucket, or a local folder.

    Keys are relative to the root. The key "" is the root itself as one object. Every method raises StorageError if the
    store fails, and KeyNotFound if an object that must exist does not exist. Writes are atomic: readers see a complete
    object or none.
    """

    uri: str
    root: Path | str
    endpoint: str = ""
    bucket: str = ""
    parallel_uploads: int = PARALLEL_TRANSFERS

    def list(self, prefix: str = "") -> list[Entry]:
        """Return all objects whose key starts with `prefix`, sorted by key. The prefix need not be a folder."""

    def children(self, folder: str = "") -> Sequence[str]:
        """Return the names of the objects and folders directly in a folder, sorted. "/" ends the name of a folder.

        It takes as long as one level has names, however many objects the folders in it have. SeaweedFS still lists a
        folder for minutes after its last object was deleted. `has_objects` tells such a folder.

        Args:
            folder: The folder. Default: the root.
        """

    def has_objects(self, prefix: str) -> bool:
        """Return whether there is an object whose key begins with a prefix."""
        return bool(self.list(prefix))

    def exists(self, key: str) -> bool:
        """Return whether the object exists."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. Keys that do not exist are ignored."""

    def abort_uploads(self) -> None:
        """Delete the parts of unfinished uploads below the root, which a killed process leaves.

        No other process may be uploading there. Not all servers list unfinished uploads. A bucket's own root is left
        alone, because it may have uploads of others.
        """

    def bucket_exists(self) -> bool:
        """Return whether the bucket or the local folder exists."""

    def make_bucket(self) -> None:
        """Create the bucket or the local folder if it does not exist."""

    def was_written_before(self, key: str, size: int, other: str) -> bool:
        """Return whether an object has a size and was not written after another one, so that a server can copy it.

        Args:
            key: Key of the object.
            size: Size in bytes.
            other: Key of the other object.

        Returns:
            False also if one of them does not exist, or if the store does not copy on its side.
        """
        return False

    def read_into(self, key: str, target: BinaryIO, on_bytes: OnBytes = ignore_bytes) -> FileEntry:
        """Write the content of an object to an open file, whose former content is lost.

        Args:
            key: Key of the object.
            target: A file that can be sought and truncated.
            on_bytes: As of `download`. Default: none.

        Returns:
            The object's size and SHA-256.
        """

    def read_range(
        self, key: str, offset: int, length: int, etag: str = "", on_bytes: OnBytes = ignore_bytes
    ) -> ObjectRange:
        """Return a range of the bytes of an object.

        Args:
            key: Key of the object.
            offset: Position of the first byte, from 0.
            length: Number of bytes, at least 1.
            etag: `etag` of an earlier range of the object. Default: not checked.
            on_bytes: As of `download`. Default: none.

        Raises:
            ChecksumMismatch: The object has another ETag: it was replaced.
            StorageError: The object ends before the range, or the server does not support ranges.
        """

    def write_from(
        self, key: str, source: BinaryIO, content_type: str = BYTES, on_bytes: OnBytes = ignore_bytes
    ) -> FileEntry:
        """Create or replace an object from an open file, starting at the file's first byte.

        Args:
            key: Key of the object.
            source: A file that can be sought. It must not change meanwhile.
            content_type: Its media type, which local folders ignore. Default: application/octet-stream.
            on_bytes: As of `upload`, but not called after the upload. Default: none.

        Returns:
            The object's size and SHA-256.
        """

    def _key(self, key: str) -> str:
        """Return the full key or path of a key that is relative to the root."""
        return "/".join(part for part in (str(self.root), key) if part)

    def _error(self, key: str, cause: str, kind: type[StorageError] = StorageError) -> StorageError:
        return kind(self.endpoint, self.bucket, self._key(key), cause)

    def _check_etag(self, key: str, etag: str, expected: str) -> None:
        """Raise ChecksumMismatch if a range belongs to another object than the ranges before it."""
        # A listing has it without quotes.
        if expected and etag.replace('"', "") != expected.replace('"', ""):
            raise self._replaced(key, f"read: its ETag is {etag or 'not reported'}, and was", expected)

    def _replaced(self, key: str, action: str, etag: str) -> StorageError:
        """Return the error for an object that was replaced while it was read or copied."""
        cause = (
            f"the object was replaced while it was {action} {etag}. Start again, and write new data under another key"
        )
        return self._error(key, cause, ChecksumMismatch)

    def _short(self, key: str, offset: int, length: int, answer: str) -> StorageError:
        """Return the error for an answer that is not the requested range."""
        return self._error(
            key,
            f"requested {length} bytes from byte {offset} on, but {answer}: check that the object is complete and that "
            "the server supports ranges (the header Range of HTTP)",
        )

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Convert exceptions of the store and the local disk to StorageError."""
        try:
            yield
        except (OSError, ValueError) as error:
            is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = "the local disk is full, free space or use another folder: " * is_full
            raise self._error(key, f"{advice}{error}") from None

    def read(self, key: str) -> bytes:
        """Return the content of an object. All of it is held in memory."""
        self.read_into(key, data := BytesIO())
        return data.getvalue()

    def write(self, key: str, data: bytes, content_type: str = BYTES) -> None:
        """Create or replace an object. Local folders ignore the content type."""
        self.write_from(key, BytesIO(data), content_type)

    def upload(self, file: Path | str, key: str, on_bytes: OnBytes = ignore_bytes) -> FileEntry:
        """Upload a local file. The file must not change during the upload.

        Args:
            file: The local file.
            key: Key of the object.
            on_bytes: Callback with the number of bytes of each block that is sent. It is also called with 0 for each
                block that is only hashed, and after the upload. An exception in it ends the upload. Default: none.

        Returns:
            The file's size and SHA-256.
        """
        with Path(file).open("rb") as source:
            entry = self.write_from(key, source, on_bytes=on_bytes)
        on_bytes(0)
        return entry

    def download(
        self, key: str, file: Path | str, expected: FileEntry | None = None, on_bytes: OnBytes = ignore_bytes
    ) -> FileEntry:
        """Download an object to a local file. The file is written atomically.

        Args:
            key: Key of the object.
            file: The local file. Its folder is created, and an existing file is replaced.
            expected: The size and SHA-256 that the object must have. Default: not checked.
            on_bytes: Callback with the number of bytes of each block that arrived. After a broken connection the
                object is sent again, and its bytes count again. Default: none.

        Raises:
            ChecksumMismatch: The object has another size or SHA-256. No file is written.
        """
        with self._errors(key), unfinished_file(Path(file)) as target:
            entry = self.read_into(key, target, on_bytes)
            if expected and entry != replace(expected, path=key):
                cause = (
                    f"the object is damaged or was replaced: it has {entry.size} bytes and SHA-256 {entry.sha256}, "
                    f"expected {expected.size} bytes and SHA-256 {expected.sha256}. Create it again"
                )
                raise self._error(key, cause, ChecksumMismatch)
        return entry

    def copies_from(self, source: Store) -> bool:
        """Return whether the server copies objects of another store to this one by itself."""
        return False

    def copy(self, source: Store, source_key: str, key: str, etag: str = "", size: int = -1) -> None:
        """Copy an object of any store to this store. The server copies it if `copies_from(source)`.

        Args:
            source: Store of the object.
            source_key: Key of the object.
            key: Key of the copy.
            etag: ETag that the object must have if the server copies it. Some servers ignore it. Default: not checked.
            size: Size of the object in bytes, if it is known. Default: the server is asked for it.

        Raises:
            ChecksumMismatch: The object has another ETag: it was replaced.
        """
        with tempfile.TemporaryFile() as file:
            source.read_into(source_key, file)
            self.write_from(key, file)

    def upload_folder(
        self,
        folder: Path | str,
        prefix: str = "",
        *,
        on_bytes: OnBytes = ignore_bytes,
        on_unsupported: Callable[[str], object] = raise_unsupported,
        transfer: Callable[[Path, str, OnBytes], FileEntry] | None = None,
    ) -> tuple[FileEntry, ...]:
        """Upload all files below a folder concurrently. After a failure no further upload starts.

        Args:
            folder: The local folder. Empty folders are skipped. Symbolic links to targets inside it are followed.
            prefix: The target folder in the store.
            on_bytes: See `upload`. Several threads call it concurrently.
            on_unsupported: See `storable_files`.
            transfer: Stores a file, with the arguments of `upload`. Default: `upload`.

        Returns:
            The uploaded files, sorted by path relative to the folder.

        Raises:
            NotADirectoryError: The folder does not exist.
            UnsupportedFileError: An entry cannot be stored, and `on_unsupported` is the default. Nothing is uploaded.
        """
        if not Path(folder).is_dir():
            raise NotADirectoryError(f"{folder} is not a folder: pass an existing folder")
        return _in_parallel(
            lambda path: (transfer or self.upload)(Path(folder, path), posixpath.join(prefix, path), on_bytes),
            storable_files(folder, on_unsupported),
            self.parallel_uploads,
        )

    def download_folder(
        self,
        folder: Path | str,
        prefix: str = "",
        expected: Iterable[FileEntry] | None = None,
        *,
        on_bytes: OnBytes = ignore_bytes,
    ) -> tuple[FileEntry, ...]:
        """Download all objects of a folder of the store concurrently. After a failure no further download starts.

        Complete files that were downloaded before a failure are kept.

        Args:
            folder: The local folder. Created even if there is nothing to download.
            prefix: The folder in the store.
            expected: The files to download, with paths relative to `prefix`. Their size and SHA-256 are checked.
                Default: all files, unchecked.
            on_bytes: See `download`. Several threads call it concurrently.

        Returns:
            The downloaded files, sorted by path relative to the folder.

        Raises:
            StorageError: The store fails, or a key is not a safe path (such as "../x"). Unsafe keys are rejected
                before the first download.
        """
        start = posixpath.join(prefix, "")
        entries: Mapping[str, FileEntry | None] = (
            {entry.key[len(start) :]: None for entry in self.list(start)}
            if expected is None
            else {entry.path: entry for entry in expected}
        )
        for path in entries:
            with self._errors(start + path):
                relative_path(path)
        Path(folder).mkdir(parents=True, exist_ok=True)
        return _in_parallel(
            lambda path: self.download(start + path, Path(folder, path), entries[path], on_bytes), sorted(entries)
        )


def _in_parallel(
    transfer: Callable[[str], FileEntry], paths: Sequence[str], threads: int = PARALLEL_TRANSFERS
) -> tuple[FileEntry, ...]:
    files = run_in_parallel(transfer, paths, threads)
    return tuple(replace(entry, path=path) for path, entry in zip(paths, files, strict=True))
