"""Writes rows into Parquet files, many of them at once, in row groups that are as large as bounded memory allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

GROUP_BYTES = 2**23
"""Size of a row group, of which a reader holds one in memory."""
PENDING_BYTES = 2**26
"""Rows of all files that wait for a row group. With 8 files, each can have one of 8 MiB."""


class ShardFiles:
    """Parquet files that are open for writing. A file is created with its first row.

    Args:
        files: Paths of the files.
        texts: Names of the columns with repeated values, which are stored once for each row group.
    """

    def __init__(self, files: Sequence[Path], texts: Sequence[str]) -> None:
        self._files, self._texts = files, list(texts)
        self._writers: dict[int, pq.ParquetWriter] = {}
        self._pending: dict[int, list[pa.RecordBatch]] = {}
        self._bytes = np.zeros(len(files), np.int64)

    def __enter__(self) -> ShardFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            for file in [*self._pending]:
                self._write(file)
        for writer in self._writers.values():
            # After a failed write, closing a file would fail with the same error.
            if error is None:
                writer.close()
            else:
                writer.file_handle and writer.file_handle.close()

    def add(self, rows: pa.RecordBatch, targets: NDArray[np.integer]) -> None:
        """Append rows to the files.

        Args:
            rows: The rows, sorted by their files.
            targets: Index of each row's file.
        """
        edges = np.searchsorted(targets, np.arange(len(self._files) + 1))
        for file in np.flatnonzero(np.diff(edges)).tolist():
            # Joined with no rows, because a slice alone would keep all rows in memory until it is written.
            part = pa.concat_batches([rows[edges[file] : edges[file + 1]], rows[:0]])
            self._pending.setdefault(file, []).append(part)
            self._bytes[file] += part.nbytes
            if self._bytes[file] >= GROUP_BYTES:
                self._write(file)
        while self._bytes.sum() >= PENDING_BYTES:
            self._write(int(self._bytes.argmax()))

    def _write(self, file: int) -> None:
        """Write the rows of a file that wait."""
        rows = pa.Table.from_batches(self._pending.pop(file))
        self._bytes[file] = 0
        if file not in self._writers:
            # Without a dictionary, which numbers that rarely repeat do not need, a write takes a third of the time.
            self._writers[file] = pq.ParquetWriter(self._files[file], rows.schema, use_dictionary=self._texts)
        self._writers[file].write_table(rows, row_group_size=-(-len(rows) // _groups(rows)))


def _groups(rows: pa.Table) -> int:
    """Return the number of row groups for rows that wait: one, and up to four for 8-bit numbers.

    Parquet stores 8-bit numbers as 32-bit ones before the compression, and a write takes twelve times their memory.
    """
    small = sum(field.type.list_size for field in rows.schema if _is_of_bytes(field.type)) * len(rows)
    return int(max(1, (rows.nbytes + 3 * small) // max(1, rows.nbytes)))


def _is_of_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) and kind.value_type == pa.uint8())
