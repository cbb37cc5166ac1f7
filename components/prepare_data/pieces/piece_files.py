"""Rows of a source on the disk, in random order, with bounded memory.

Each row gets a random number, its key, from 0 to 1. The rows whose keys are in the same part of that range are a piece,
which is a file and fits into memory. Sorted by their keys, the rows of all pieces in turn are in random order: every
order is equally likely, and it depends on the seed, the chunk of the row and its number there alone. It depends neither
on the number of the pieces nor on the batches in which the rows are added.

The number of the pieces depends on the expected bytes alone, so what is found piece by piece does not depend on the
processes that work on them.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
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
    """Rows that are added in any order, and read from the `files` of the pieces.

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
        self._count = piece_count(expected_bytes, piece_bytes)
        self._rows = np.zeros(self._count, np.int64)
        self._seed = seed
        self.begin_chunk(0)
        self._schema: pa.Schema | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def begin_chunk(self, number: int) -> None:
        """Begin with a chunk of the rows, whose keys depend on no other chunk.

        Args:
            number: Number of the chunk. The first one is 0, with which the pieces begin.
        """
        # Another stream of random numbers than that of the split.
        self._generator = np.random.default_rng((self._seed, 2, number))

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, all of one schema."""
        keys = self._generator.random(rows.num_rows)
        # The key is the last column. Its name may be that of another column, because columns are read by position.
        batch = pa.RecordBatch.from_arrays([*rows.columns, pa.array(keys)], schema=_with_key(rows.schema))
        self._schema = batch.schema
        self._rows += np.bincount(self._piece_of(keys), minlength=self._count)
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= WAITING_BYTES:
            self.flush()

    def _piece_of(self, keys: NDArray[np.float64]) -> NDArray[np.uint16]:
        return (keys * self._count).astype(np.uint16)

    @property
    def rows(self) -> int:
        """Number of the rows that were added."""
        return int(self._rows.sum())

    def flush(self) -> None:
        """Append the rows that wait in memory to their pieces."""
        if not self._waiting:
            return
        # Divided only now: a few rows for each of many pieces would need more memory for their columns than for values.
        rows = pa.concat_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        pieces = self._piece_of(rows.columns[-1].to_numpy())
        order = np.argsort(pieces, kind="stable")
        edges = np.searchsorted(pieces[order], np.arange(self._count + 1))
        for piece in np.flatnonzero(np.diff(edges)).tolist():
            numbers = pa.array(order[edges[piece] : edges[piece + 1]])
            # Opened for each write, because there may be more pieces than a process may open files.
            with _piece_path(self._folder, piece).open("ab") as stream:
                stream.write(rows.take(numbers).serialize())

    def files(self) -> "PieceFiles":
        """Return the files of the pieces, with all rows that were added."""
        self.flush()
        return PieceFiles(self._folder, self._schema or pa.schema([]), self._rows.copy())

    def joined(self, path: Path) -> NDArray[np.int64]:
        """Move the pieces into one file, one after the other.

        Args:
            path: Path of the new file.

        Returns:
            Where each piece begins, and where the last one ends, [pieces + 1].
        """
        self.flush()
        sizes = np.zeros(self._count + 1, np.int64)
        with path.open("wb") as target:
            for piece in np.flatnonzero(self._rows).tolist():
                file = _piece_path(self._folder, piece)
                sizes[piece + 1] = file.stat().st_size
                with file.open("rb") as source:
                    shutil.copyfileobj(source, target)
                file.unlink()
        return np.cumsum(sizes)

    def delete(self) -> None:
        """Delete the rows."""
        shutil.rmtree(self._folder)


@dataclass(frozen=True)
class PieceFiles:
    """The files of the pieces, which any process of this machine can read.

    Attributes:
        folder: Folder of the files. What is found about a piece is kept here, too.
        schema: The columns. The key is the last one.
        rows: Number of rows of each piece, [pieces].
    """

    folder: Path
    schema: pa.Schema
    rows: NDArray[np.int64]

    @property
    def numbers(self) -> list[int]:
        """Numbers of the pieces that have rows, in order."""
        return [int(piece) for piece in np.flatnonzero(self.rows)]

    def read(self, piece: int, names: Sequence[str] | None = None) -> tuple[pa.RecordBatch, NDArray[np.float64]]:
        """Return the rows of a piece in the order in which they were added, and their keys.

        Args:
            piece: Number of the piece, which has rows.
            names: Names of the columns to read. Default: all columns.
        """
        last = len(self.schema) - 1
        columns = [*range(last)] if names is None else [*map(self.schema.names.index, names)]
        rows = pa.concat_batches(self._batches(piece, [*columns, last]))
        return rows.select(range(len(columns))), rows.columns[-1].to_numpy()

    def at_once(self, names: Sequence[str] | None = None) -> int:
        """Return how many pieces that follow each other one task should read.

        Args:
            names: Names of the columns that it reads. Default: all columns.
        """
        return 1

    def delete_rows(self) -> None:
        """Delete the rows, when nothing reads them any more, so that others get their space."""
        shutil.rmtree(self.folder)

    def keep(self, name: str, data: bytes) -> None:
        """Keep what was found about a piece beside the rows."""
        # tofile() has no errno in its error for a full disk.
        (self.folder / name).write_bytes(data)

    def kept(self, name: str) -> bytes:
        """Return what was kept under a name."""
        return (self.folder / name).read_bytes()

    def _batches(self, piece: int, columns: list[int]) -> list[pa.RecordBatch]:
        with pa.OSFile(str(_piece_path(self.folder, piece))) as stream:
            return read_batches(stream, self.schema, columns)


def read_batches(stream: pa.NativeFile, schema: pa.Schema, columns: list[int]) -> list[pa.RecordBatch]:
    """Return some columns of all batches of a stream."""
    batches, size = [], stream.size()
    while stream.tell() < size:
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(stream), schema)
        batches.append(batch.select(columns))
    return batches


def piece_count(expected_bytes: int, piece_bytes: int = PIECE_BYTES) -> int:
    """Return the number of the pieces of so many bytes."""
    return min(_MOST_PIECES, max(1, -(-expected_bytes // piece_bytes)))


def order_by_key(keys: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Return the random order of the rows of a piece."""
    return np.argsort(keys).astype(np.uint32)


def _piece_path(folder: Path, piece: int) -> Path:
    return folder / f"piece-{piece}"


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
