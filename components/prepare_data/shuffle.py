"""Writes rows into Parquet files, each in random order, with bounded memory and without a sorted copy in memory.

Each file's rows are first thrown into pieces at random, on the disk. A piece fits into memory. Then the pieces are
permuted one by one and appended to the file. Every order of a file's rows is equally likely, whatever the order of the
source is.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

# A piece is in memory three times while it is permuted: as read, joined and permuted.
PIECE_BYTES = 2**25
# Rows that wait in memory to be appended to their pieces. With 512 files, 64 KiB are appended at once.
_PENDING_BYTES = 2**25
# A reader holds one row group in memory.
_GROUP_BYTES = 2**23


class ShuffledFiles:
    """Parquet files whose rows are added in any order and written in random order.

    Args:
        files: Paths of the files. A file without rows is not written.
        rows: Number of rows that each file will get, to choose the number of its pieces.
        schema: Columns of the rows, all of fixed width.
        scratch: Empty folder for the pieces. It needs as much space as the rows.
        seed: Seed of the order.
        piece_bytes: Approximate size of a piece. Another size gives another order. Default: 32 MiB.
    """

    def __init__(
        self,
        files: Sequence[Path],
        rows: Sequence[int],
        schema: pa.Schema,
        scratch: Path,
        seed: int,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._files, self._schema, self._scratch = files, schema, scratch
        # Another stream of random numbers than that of the split, which must not depend on the size of a piece.
        self._generator = np.random.default_rng((seed, 2))
        self._row_bytes = row_bytes(schema)
        sizes = [math.ceil(count * self._row_bytes / piece_bytes) for count in rows]
        self._pieces = np.maximum(sizes, 1)
        self._first_piece = np.concatenate([[0], np.cumsum(self._pieces)])
        self._pending: dict[int, list[pa.RecordBatch]] = {}
        self._pending_bytes = 0

    def add(self, rows: pa.RecordBatch, targets: NDArray[np.intp]) -> None:
        """Add rows.

        Args:
            rows: The rows.
            targets: Index of each row's file.
        """
        draws = self._generator.random(rows.num_rows) * self._pieces[targets]
        pieces = self._first_piece[targets] + draws.astype(np.intp)
        order = np.argsort(pieces, kind="stable")
        sorted_rows, sorted_pieces = rows.take(pa.array(order)), pieces[order]
        numbers, starts = np.unique(sorted_pieces, return_index=True)
        for piece, start, stop in zip(numbers.tolist(), starts, [*starts[1:], rows.num_rows], strict=True):
            self._pending.setdefault(piece, []).append(sorted_rows[start:stop])
        self._pending_bytes += rows.num_rows * self._row_bytes
        if self._pending_bytes >= _PENDING_BYTES:
            self._append()

    def write(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Write the files, and delete the pieces.

        Args:
            change: Changes values of rows before they are written. The columns and the order stay.
        """
        self._append()
        group_rows = max(1, _GROUP_BYTES // self._row_bytes)
        for target, file in enumerate(self._files):
            pieces = range(self._first_piece[target], self._first_piece[target + 1])
            paths = [path for piece in pieces if (path := self._path(piece)).exists()]
            if not paths:
                continue
            with pq.ParquetWriter(file, self._schema) as writer:
                for path in paths:
                    rows = pa.Table.from_batches(self._read(path)).combine_chunks()
                    path.unlink()
                    order = pa.array(self._generator.permutation(len(rows)))
                    writer.write_table(change(rows.take(order)), row_group_size=group_rows)

    def _path(self, piece: int) -> Path:
        return self._scratch / f"piece-{piece}"

    def _append(self) -> None:
        # Opened for each write, because there may be more pieces than a process may open files.
        for piece, batches in self._pending.items():
            with self._path(piece).open("ab") as stream:
                stream.write(pa.concat_batches(batches).serialize())
        self._pending, self._pending_bytes = {}, 0

    def _read(self, path: Path) -> list[pa.RecordBatch]:
        batches = []
        with pa.OSFile(str(path)) as stream:
            size = stream.size()
            while stream.tell() < size:
                batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(stream), self._schema))
        return batches


def row_bytes(schema: pa.Schema) -> int:
    """Return the bytes of a row of columns of fixed width, without the bits that mark missing values."""
    return sum(_value_bytes(field.type) for field in schema)


def _value_bytes(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _value_bytes(kind.value_type)
    return int(kind.bit_width + 7) // 8
