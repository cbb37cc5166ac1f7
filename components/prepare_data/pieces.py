"""Rows of a source on the disk, in random order, with bounded memory.

Each row gets a random number, its key, from 0 to 1. The rows whose keys are in the same part of that range are a piece,
which is a file and fits into memory. Sorted by their keys, the rows of all pieces in turn are in random order: every
order is equally likely, and it depends on the seed and the number of the row alone. It depends neither on the number of
the pieces nor on the batches in which the rows are added.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

PIECE_BYTES = 2**24
"""Approximate size of a piece. It is in memory three times while it is sorted: as read, joined and sorted."""

_MOST_PIECES = 2048
WAITING_BYTES = 2**25
"""Rows that wait in memory to be appended to their pieces. With the most pieces, 16 KiB are appended at once."""


class Pieces:
    """Rows that are added in any order and read in random order.

    Args:
        folder: Folder for the pieces, which may not exist. Its disk needs as much space as the rows.
        expected_bytes: Approximate size of all rows, for the number of the pieces. Pieces are larger if there are more.
        seed: Seed of the order.
        piece_bytes: Approximate size of a piece. Default: 16 MiB.

    Attributes:
        expected_bytes: Approximate size of all rows.
    """

    def __init__(self, folder: Path, expected_bytes: int, seed: int, piece_bytes: int = PIECE_BYTES) -> None:
        self._folder, self.expected_bytes = folder, expected_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._count = min(_MOST_PIECES, max(1, -(-expected_bytes // piece_bytes)))
        # Another stream of random numbers than that of the split.
        self._generator = np.random.default_rng((seed, 2))
        self._schema: pa.Schema | None = None
        self._pending: dict[int, list[pa.RecordBatch]] = {}
        self._pending_bytes = 0
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, all of one schema."""
        keys = self._generator.random(rows.num_rows)
        pieces = (keys * self._count).astype(np.uint16)
        order = np.argsort(pieces, kind="stable")
        # The key is the last column. Its name may be that of another column, because columns are read by position.
        batch = pa.RecordBatch.from_arrays([*rows.columns, pa.array(keys)], schema=_with_key(rows.schema))
        self._schema, self.rows = batch.schema, self.rows + rows.num_rows
        edges = np.searchsorted(pieces[order], np.arange(self._count + 1))
        batch = batch.take(pa.array(order))
        for piece in np.flatnonzero(np.diff(edges)).tolist():
            self._pending.setdefault(piece, []).append(batch[edges[piece] : edges[piece + 1]])
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Append the rows that wait in memory to their pieces."""
        # Opened for each write, because there may be more pieces than a process may open files.
        for piece, batches in self._pending.items():
            with self._path(piece).open("ab") as stream:
                stream.write(pa.concat_batches(batches).serialize())
        self._pending, self._pending_bytes = {}, 0

    def read(
        self,
        names: Sequence[str] | None = None,
        *,
        in_order: bool = True,
        reorder: Callable[[NDArray[np.uint32]], NDArray[np.uint32]] = lambda order: order,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each piece, sorted by their keys. The keys themselves are left out.

        Args:
            names: Names of the columns to read. Default: all columns.
            in_order: Whether the rows are sorted by their keys. Default: true.
            reorder: Function that changes the order of the rows of a piece before they are sorted. Default: no change.
        """
        self.flush()
        columns = None if names is None or self._schema is None else [*map(self._schema.names.index, names)]
        for piece in range(self._count):
            path = self._path(piece)
            if path.exists():
                rows = pa.concat_batches(self._read(path, columns))
                keys, rows = rows.columns[-1], rows.select(range(len(rows.columns) - 1))
                yield rows.take(pa.array(reorder(self._order(piece, keys)))) if in_order else rows

    def _order(self, piece: int, keys: pa.DoubleArray) -> NDArray[np.uint32]:
        """Return the order of the rows of a piece by their keys. It is kept on the disk: sorting takes longer."""
        path = self._folder / f"order-{piece}"
        if path.exists():
            return np.fromfile(path, np.uint32)
        order = np.argsort(keys.to_numpy()).astype(np.uint32)
        path.write_bytes(order.tobytes())  # tofile() has no errno in its error for a full disk.
        return order

    def delete(self) -> None:
        """Delete the rows."""
        shutil.rmtree(self._folder)

    def _path(self, piece: int) -> Path:
        return self._folder / f"piece-{piece}"

    def _read(self, path: Path, columns: Sequence[int] | None) -> list[pa.RecordBatch]:
        batches = []
        with pa.OSFile(str(path)) as stream:
            size = stream.size()
            while stream.tell() < size:
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(stream), self._schema)
                batches.append(batch if columns is None else batch.select([*columns, batch.num_columns - 1]))
        return batches


def _with_key(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field("key", pa.float64()))


def row_bytes(schema: pa.Schema) -> int:
    """Return the bytes of a row, without the bits that mark missing values. Values of any length count as 32."""
    return sum(_value_bytes(field.type) for field in schema)


def _value_bytes(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _value_bytes(kind.value_type)
    try:
        return int(kind.bit_width + 7) // 8
    except ValueError:  # It has no fixed width.
        return 32
