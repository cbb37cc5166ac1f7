"""Reads the row groups of a Parquet shard from a store, without a download of the file."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kfp_distributed.storage.dataset import Shard
from kfp_distributed.storage.errors import ChecksumMismatch, KeyNotFound, StorageError, StoreAway, one_line
from kfp_distributed.storage.files import OnBytes, ignore_bytes
from kfp_distributed.storage.store import Store

if TYPE_CHECKING:  # The `train` step runs without Arrow.
    import pyarrow as pa
    import pyarrow.parquet as pq

TAIL_BYTES = 64 * 2**10
"""Bytes of the first request, as many as Arrow reads first. They have the footer of 8 row groups with 66 columns. A
longer footer needs a second request."""

WHOLE_BYTES = 2**20
"""Shards of at most so many bytes are read with one request."""


class ShardReader:
    """A Parquet file in a store. Several threads may read its row groups at the same time.

    The SHA-256 of the file cannot be checked on a part of it. Instead, the checksum of each page is checked if the file
    has them (`prepare_data` writes them), and every range must belong to the same object.

    Args:
        store: The store of the dataset's folder.
        shard: The file.
        on_bytes: Callback for the bytes that arrive, as of `Store.download`. Default: none.
        etag: `etag` of an earlier reader of the file. Default: "", any object.

    Attributes:
        etag: ETag of the object that was read; "" before that, or if the server does not report it.
    """

    def __init__(self, store: Store, shard: Shard, on_bytes: OnBytes = ignore_bytes, etag: str = "") -> None:
        self.shard, self.etag, self._store, self._on_bytes = shard, etag, store, on_bytes
        self._lock, self._footer = threading.Lock(), _Footer(None)

    def group_rows(self) -> tuple[int, ...]:
        """Return the number of rows of each row group. The first call reads the footer.

        Raises:
            StorageError: The store fails.
            ChecksumMismatch: The file is damaged or was replaced.
        """
        metadata = self._metadata()
        return tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))

    def read_group(self, group: int, columns: list[str]) -> pa.Table:
        """Return the rows of a row group. It takes one request.

        Args:
            group: Number of the row group, from 0.
            columns: Names of the columns to return, in their order.

        Raises:
            StorageError: The store fails.
            ChecksumMismatch: The file is damaged or was replaced.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        metadata = self._metadata()
        begin, end = _extent(metadata, group)
        ranges = self._footer.file or _RangeFile(self.shard.size, begin, self._read(begin, end - begin))
        with self._damage():
            # A file object of its own for each thread, because reading moves its position.
            source = pa.PythonFile(ranges.copy(), "r")
            file = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
            table: pa.Table = file.read_row_group(group, columns=columns)
            if table.column_names != columns:
                raise ValueError(f"it has the columns {table.column_names[:9]}, expected {columns[:9]}")
        return table

    def _metadata(self) -> pq.FileMetaData:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self._lock:
            if self._footer.metadata is None:
                size = self.shard.size
                length = size if size <= WHOLE_BYTES else min(size, TAIL_BYTES)
                tail = self._read(size - length, length)
                with self._damage():
                    footer = int.from_bytes(tail[-8:-4], "little") + 8
                    if tail[-4:] != b"PAR1" or footer > size:
                        raise ValueError("it does not end as a Parquet file")
                if footer > length:
                    tail = self._read(size - footer, footer - length) + tail
                ranges = _RangeFile(size, size - len(tail), tail)
                with self._damage():
                    metadata = pq.read_metadata(pa.PythonFile(ranges.copy(), "r"))
                    if metadata.num_rows != self.shard.rows:
                        raise ValueError(f"it has {metadata.num_rows} rows, and the manifest {self.shard.rows}")
                self._footer = _Footer(metadata, ranges if len(tail) == size else None)
            return self._footer.metadata

    def _read(self, offset: int, length: int) -> bytes | bytearray:
        try:
            part = self._store.read_range(self.shard.path, offset, length, self.etag, self._on_bytes)
        except (StoreAway, KeyNotFound, ChecksumMismatch):
            raise
        except StorageError:  # A shard that has become shorter may not have the range.
            with suppress(StoreAway):
                for entry in self._store.list(self.shard.path):
                    if entry.key == self.shard.path:
                        self._check_size(entry.size)
            raise
        self.etag = part.etag
        self._check_size(part.size)
        return part.data

    def _check_size(self, size: int) -> None:
        if size != self.shard.size:
            raise self._error(f"it has {size} bytes, and the manifest {self.shard.size}")

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Convert the errors of a Parquet reader to one that names the shard."""
        try:
            yield
        except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError.
            raise self._error(one_line(error)) from None

    def _error(self, cause: str) -> ChecksumMismatch:
        store = self._store
        key = "/".join(part for part in (str(store.root), self.shard.path) if part)
        text = f"the shard is damaged or was replaced: {cause}. Run prepare_data again"
        return ChecksumMismatch(store.endpoint, store.bucket, key, text)


class _Footer:
    """The metadata of a file; and the file, if it was read with the footer."""

    def __init__(self, metadata: pq.FileMetaData | None, file: _RangeFile | None = None) -> None:
        self.metadata, self.file = metadata, file


class _RangeFile(io.RawIOBase):
    """A file of which only a range is in memory, for a reader that needs no other one.

    Args:
        size: Size of the file in bytes.
        begin: Position of the range in the file.
        data: Content of the range.
    """

    def __init__(self, size: int, begin: int, data: bytes | bytearray | memoryview) -> None:
        self._size, self._begin, self._data, self._position = size, begin, memoryview(data), 0

    def copy(self) -> _RangeFile:
        """Return another file object of the same file, at the position 0."""
        return _RangeFile(self._size, self._begin, self._data)

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
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int = -1) -> memoryview:  # type: ignore[override]  # Arrow takes any buffer, without a copy.
        """Return the next bytes.

        Raises:
            ValueError: They are not in the range: the footer names other positions than those of its row group.
        """
        begin = self._position - self._begin
        end = (self._size if size < 0 else min(self._size, self._position + size)) - self._begin
        if begin < 0 or end > len(self._data):
            raise ValueError(f"bytes {self._position} to {end + self._begin} are outside of the row group")
        self._position = end + self._begin
        return self._data[begin:end]


def _extent(metadata: pq.FileMetaData, group: int) -> tuple[int, int]:
    """Return the position in the file of the first byte of a row group, and that after its last one."""
    row_group = metadata.row_group(group)
    begins, ends = [], []
    for index in range(row_group.num_columns):
        column = row_group.column(index)
        begin = column.data_page_offset
        if column.dictionary_page_offset is not None:
            begin = min(begin, column.dictionary_page_offset)
        begins.append(begin)
        ends.append(begin + column.total_compressed_size)
    return min(begins), max(ends)
