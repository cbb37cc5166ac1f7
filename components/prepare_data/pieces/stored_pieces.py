"""Pieces whose rows are in objects of a store, one object for each chunk of the source.

A source of 10 GB has 160 chunks and 600 pieces. So a task reads several pieces that follow each other, by one request
for each chunk.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.pieces.piece_codes import with_codes
from kfp_distributed.components.prepare_data.pieces.piece_files import PieceFiles, read_batches
from kfp_distributed.components.worker_pool.stored_tasks import stored
from kfp_distributed.storage.parallel import run_in_parallel

AHEAD_BYTES = 2**25
"""Bytes of rows that a task reads at once. If it needs some columns only, it reads twice as many, and keeps these."""
_MOST_AT_ONCE = 32


@dataclass(frozen=True)
class StoredChunk:
    """The rows of a chunk in an object.

    Attributes:
        key: Key of the object.
        offsets: Where the rows of each piece begin, and where the last ones end, [pieces + 1].
        codes: The code of all chunks for each code of the chunk, by column. Columns with equal codes have none.
    """

    key: str
    offsets: NDArray[np.int64]
    codes: Mapping[str, NDArray[np.int32]]


@dataclass(frozen=True)
class StoredPieces(PieceFiles):
    """The rows of the pieces in a store, which any process that reaches the store can read.

    Attributes:
        folder: Not used.
        scratch: Address of the store.
        prefix: Beginning of the keys for what is found about a piece.
        chunks: The chunks in their order.
        ahead_bytes: Bytes of rows that a task reads at once.
    """

    scratch: str
    prefix: str
    chunks: tuple[StoredChunk, ...]
    ahead_bytes: int

    def at_once(self, names: Sequence[str] | None = None) -> int:
        """See `PieceFiles`."""
        return self._at_once(is_all=names is None)

    def _at_once(self, *, is_all: bool) -> int:
        of_piece = sum(int(chunk.offsets[-1]) for chunk in self.chunks) // len(self.rows)
        most = self.ahead_bytes * (1 if is_all else 2)
        return min(_MOST_AT_ONCE, max(1, most // max(1, of_piece)))

    def delete_rows(self) -> None:
        """See `PieceFiles`. What was kept stays."""
        stored(self.scratch).delete([chunk.key for chunk in self.chunks])

    def keep(self, name: str, data: bytes) -> None:
        """See `PieceFiles`."""
        stored(self.scratch).write(self.prefix + name, data)

    def kept(self, name: str) -> bytes:
        """See `PieceFiles`."""
        return stored(self.scratch).read(self.prefix + name)

    def _batches(self, piece: int, columns: list[int]) -> list[pa.RecordBatch]:
        """Return some columns of the rows of a piece. Those of the pieces that follow are read with them."""
        of: tuple[str | int, ...] = (self.scratch, self.prefix, *columns)
        if _ahead.of != of or piece not in _ahead.batches:
            _ahead.of, _ahead.batches = of, {}  # The memory is needed for the next ones.
            _ahead.batches = self._read_ahead(piece, columns)
        return _ahead.batches.pop(piece)

    def _read_ahead(self, piece: int, columns: list[int]) -> dict[int, list[pa.RecordBatch]]:
        """Return some columns of a piece and of those that follow, whose ranges are read from all chunks at once."""
        is_all = len(columns) == len(self.schema)
        end = min(piece + self._at_once(is_all=is_all), len(self.rows))
        chunks = [chunk for chunk in self.chunks if chunk.offsets[piece] < chunk.offsets[end]]

        def read(chunk: StoredChunk) -> list[list[pa.RecordBatch]]:
            edges = chunk.offsets[piece : end + 1].tolist()
            data = memoryview(stored(self.scratch).read_range(chunk.key, edges[0], edges[-1] - edges[0]).data)
            return [of_piece(chunk, data[a - edges[0] : b - edges[0]]) for a, b in pairwise(edges)]

        def of_piece(chunk: StoredChunk, data: memoryview) -> list[pa.RecordBatch]:
            batches = read_batches(pa.BufferReader(data), self.schema, columns)
            if batches and not is_all:  # A copy, which keeps no other column in memory.
                batches = [pa.concat_batches([*batches, batches[0][:0]])]
            return [with_codes(batch, chunk.codes) for batch in batches]

        found = run_in_parallel(read, chunks)
        return {piece + index: [*chain.from_iterable(of)] for index, of in enumerate(zip(*found, strict=True))}


class _Ahead(threading.local):
    """Pieces that were read and are next, for each thread that runs tasks.

    Attributes:
        of: Scratch, prefix and columns of the pieces.
        batches: Rows of each piece.
    """

    def __init__(self) -> None:
        self.of: tuple[str | int, ...] = ()
        self.batches: dict[int, list[pa.RecordBatch]] = {}


_ahead = _Ahead()
