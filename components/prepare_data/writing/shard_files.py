"""Writes rows into Parquet files, many of them at once or each by itself, with bounded memory.

The bytes of a file depend on its rows, on the parts in which they come, and on the number of files. So they are equal
whether all files are written in one pass, or each one by itself in any process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

GROUP_BYTES = 2**23
"""Largest size of a row group, of which a reader holds one in memory."""
PENDING_BYTES = 2**26
"""Rows of all files that wait for a row group. With 8 files, each can have one of 8 MiB."""
SMALLEST_GROUP_BYTES = 2**17
"""Smaller row groups would have more bytes about their rows than rows. The most shards, 512, wait for so many each."""


def group_bytes(files: int) -> int:
    """Return from how many bytes on the rows of a file are written, if so many files are written at once."""
    return max(SMALLEST_GROUP_BYTES, min(GROUP_BYTES, PENDING_BYTES // max(1, files)))


class ShardFile:
    """A Parquet file that is open for writing. It is created with its first row.

    Args:
        path: Path of the file.
        texts: Names of the columns with repeated values, which are stored once for each row group.
        size: Bytes of rows that are written together. A part is not divided before it is complete.
    """

    def __init__(self, path: Path, texts: Sequence[str], size: int) -> None:
        self._path, self._texts, self._size = path, [*texts], size
        self._writer: pq.ParquetWriter | None = None
        self._schema: pa.Schema | None = None
        self._pending: list[pa.Buffer] = []
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Append the rows of the file in a piece."""
        # A slice would keep all rows of the piece in memory until it is written. Joined with no rows it becomes a copy,
        # and as a message it has no bits that mark no missing value, so that its size depends on the values alone.
        message = pa.concat_batches([rows, rows[:0]]).serialize()
        self._schema = rows.schema
        self._pending.append(message)
        self._bytes += pa.ipc.read_message(message).body.size
        if self._bytes >= self._size:
            self._write()

    def close(self) -> None:
        """Write the rows that wait, and close the file."""
        if self._pending:
            self._write()
        if self._writer:
            self._writer.close()

    def abandon(self) -> None:
        """Close the file after an error. Writing its end would fail with the same error."""
        if self._writer and self._writer.file_handle:
            self._writer.file_handle.close()

    def _write(self) -> None:
        """Write the rows that wait, in row groups of equal numbers of rows."""
        rows = pa.Table.from_batches([pa.ipc.read_record_batch(message, self._schema) for message in self._pending])
        size, self._pending, self._bytes = self._bytes, [], 0
        if self._writer is None:
            # Without a dictionary, which numbers that rarely repeat do not need, a write takes a third of the time.
            # Whoever reads a part of a file cannot check the SHA-256 of the file, but the checksums of pages.
            self._writer = pq.ParquetWriter(
                self._path, rows.schema, use_dictionary=self._texts, write_page_checksum=True
            )
        self._writer.write_table(rows, row_group_size=-(-len(rows) // _groups(rows, size)))


class ShardFiles:
    """Parquet files that are open for writing at once.

    Args:
        files: Paths of the files.
        texts: Names of the columns with repeated values, which are stored once for each row group.
        size: Bytes of rows of a file that are written together, see `group_bytes`.
    """

    def __init__(self, files: Sequence[Path], texts: Sequence[str], size: int) -> None:
        self._files = [ShardFile(path, texts, size) for path in files]

    def __enter__(self) -> ShardFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                for file in self._files:
                    file.close()
        finally:
            for file in self._files:
                file.abandon()

    def add(self, rows: pa.RecordBatch, targets: NDArray[np.integer]) -> None:
        """Append the rows of a piece to the files.

        Args:
            rows: The rows, sorted by their files.
            targets: Index of each row's file.
        """
        edges = np.searchsorted(targets, np.arange(len(self._files) + 1))
        for file in np.flatnonzero(np.diff(edges)).tolist():
            self._files[file].add(rows[edges[file] : edges[file + 1]])


def write_shard(path: Path, parts: Iterable[pa.RecordBatch], texts: Sequence[str], size: int) -> None:
    """Write one file by itself, with the bytes that it has among others.

    Args:
        path: Path of the file.
        parts: Its rows in each piece that has any, in the order of the pieces.
        texts: Names of the columns with repeated values.
        size: Bytes of rows that are written together, see `group_bytes`.
    """
    with ShardFiles([path], texts, size) as file:
        for rows in parts:
            file.add(rows, np.zeros(rows.num_rows, np.uint16))


def _groups(rows: pa.Table, size: int) -> int:
    """Return the number of row groups for rows that wait, so that none is larger than GROUP_BYTES.

    Parquet stores 8-bit numbers as 32-bit ones before the compression, and a write takes twelve times their memory.
    """
    small = sum(field.type.list_size for field in rows.schema if _is_of_bytes(field.type)) * len(rows)
    return int(max(1, -(-(size + 3 * small) // GROUP_BYTES)))


def _is_of_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) and kind.value_type == pa.uint8())
