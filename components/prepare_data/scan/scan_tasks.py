"""The pass over a source by tasks: each one scans a chunk, and stores its rows divided by piece."""

import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.source import Source
from kfp_distributed.components.prepare_data.pieces.piece_codes import PieceCodes
from kfp_distributed.components.prepare_data.pieces.piece_files import PIECE_BYTES, PieceFiles, Pieces, piece_count
from kfp_distributed.components.prepare_data.pieces.stored_pieces import AHEAD_BYTES, StoredChunk, StoredPieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.scan.chunk_scan import ChunkScan, scan_chunk
from kfp_distributed.components.prepare_data.scan.scan_result import Scan
from kfp_distributed.components.prepare_data.scan.scanner import ROWS_PER_LOG_LINE, Merge
from kfp_distributed.components.prepare_data.scan.split_keys import DRAWN, FIXED_SPLIT
from kfp_distributed.components.prepare_data.sources.chunks import CHUNK_BYTES, Chunk
from kfp_distributed.components.prepare_data.sources.read_rows import RejectedRows
from kfp_distributed.components.worker_pool.piece_tasks import run_here
from kfp_distributed.components.worker_pool.stored_tasks import StoredTasks, stored


@dataclass(frozen=True)
class _ScanWork:
    """What is needed to scan any chunk of a source.

    Attributes:
        source: The source.
        options: Options of reading.
        policy: What becomes of rows that cannot be used.
        split: Split of all rows, which is recorded for each; None to record none.
        scratch: Address of the scratch.
        prefix: Beginning of the keys of the chunks.
        pieces: Number of the pieces.
    """

    source: Source
    options: Options
    policy: Literal["refuse", "skip"]
    split: int | None
    scratch: str
    prefix: str
    pieces: int


@dataclass(frozen=True)
class _ScannedChunk:
    """What a task found.

    Attributes:
        scan: What the rows have shown.
        late: What the reader has noted, see `LateFindings`.
        schema: Columns of the pieces; None if there are no usable rows.
        offsets: See `StoredChunk`.
        rows: Rows of each piece, [pieces].
    """

    scan: ChunkScan
    late: Any
    schema: pa.Schema | None
    offsets: NDArray[np.int64]
    rows: NDArray[np.int64]


def _scan_stored(work: _ScanWork, item: tuple[int, Chunk]) -> _ScannedChunk:
    """Scan a chunk, and store its rows."""
    number, chunk = item
    findings = work.source.late_findings
    if findings:
        findings.take_late()  # Those of another chunk.
    with tempfile.TemporaryDirectory(prefix="prepare-data-chunk-") as folder:
        # So many bytes, of one each, give this number of pieces.
        pieces = Pieces(Path(folder, "pieces"), work.pieces, work.options.seed, 1)
        pieces.begin_chunk(number)

        def keep(batch: pa.RecordBatch) -> None:
            if work.split is not None:
                splits = np.full(batch.num_rows, work.split, np.int8)
                batch = batch.append_column(FIXED_SPLIT, pa.array(splits))
            pieces.add(batch)

        found = scan_chunk(work.source, chunk, work.options, work.policy, keep, is_start=number == 0)
        late = findings.take_late() if findings else None
        files = pieces.files()
        if found.error or not pieces.rows:
            return _ScannedChunk(found, late, None, np.zeros(work.pieces + 1, np.int64), files.rows)
        offsets = pieces.joined(Path(folder, "chunk"))
        stored(work.scratch).upload(Path(folder, "chunk"), _chunk_key(work.prefix, number))
        return _ScannedChunk(found, late, files.schema, offsets, files.rows)


def _chunk_key(prefix: str, number: int) -> str:
    return f"{prefix}chunk-{number}"


class TaskScanner:
    """The pass over one source or several by tasks, see `scan.Scanner`.

    Args:
        source: The first source.
        options: Options of reading.
        tasks: Runs the tasks.
        prefix: Beginning of the keys of the rows.
        chunk_bytes: Approximate size of a chunk. Default: 64 MiB.
        piece_bytes: Approximate size of a piece. Default: 16 MiB.
        ahead_bytes: Bytes of the pieces that a task reads at once. Default: 32 MiB.
    """

    def __init__(
        self,
        source: Source,
        options: Options,
        tasks: StoredTasks,
        prefix: str,
        chunk_bytes: int = CHUNK_BYTES,
        piece_bytes: int = PIECE_BYTES,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        self._options, self._tasks, self._prefix, self._chunk_bytes = options, tasks, prefix, chunk_bytes
        self._ahead_bytes = ahead_bytes
        self._merge, self._codes = Merge(source, options), PieceCodes()
        self._rows = np.zeros(piece_count(source.expected_bytes, piece_bytes), np.int64)
        self._schema = pa.schema([])
        self._chunks: list[StoredChunk] = []
        self._count = 0

    def add(
        self, source: Source, rejected: RejectedRows, split: int = DRAWN, *, has_fixed_splits: bool = False
    ) -> None:
        """See `Scanner.add`."""
        before, rows, findings = Counter[str](), 0, source.late_findings
        if findings:
            findings.take_late()  # The source was read to choose its columns. The tasks find the same.
        for found in self._scanned(source, rejected, split if has_fixed_splits else None):
            if findings:
                findings.add_late(found.late)
            self._add_rows(source, found)
            self._merge.add(found.scan, rejected, before)
            rows_before, rows = rows, rows + found.scan.rows + found.scan.dropped + found.scan.rejected.count
            if rows // ROWS_PER_LOG_LINE > rows_before // ROWS_PER_LOG_LINE:
                print(f"read {rows:,} rows", flush=True)
        print(f"read {rows:,} rows, all", flush=True)

    def _scanned(self, source: Source, rejected: RejectedRows, split: int | None) -> Iterable[_ScannedChunk]:
        scratch, pieces = self._tasks.scratch, len(self._rows)
        work = _ScanWork(source, self._options, rejected.policy, split, scratch, self._prefix, pieces)
        run = self._tasks.run if source.is_portable else run_here
        chunks = source.chunks(self._chunk_bytes, self._tasks.run)
        return run(partial(_scan_stored, work), enumerate(chunks, self._count))

    def _add_rows(self, source: Source, found: _ScannedChunk) -> None:
        vocabularies = {**found.scan.vocabularies}
        if source.task == "classification":
            vocabularies[source.label] = found.scan.label.vocabulary
        self._codes.begin_chunk()
        codes = self._codes.tables(vocabularies)
        if found.schema is not None:
            self._schema = found.schema
            self._chunks.append(StoredChunk(_chunk_key(self._prefix, self._count), found.offsets, codes))
            self._rows += found.rows
        self._count += 1

    @property
    def reason(self) -> str:
        """Why the task is what it is, for the log."""
        return self._merge.reason

    def result(self, rejected: RejectedRows) -> Scan:
        """See `Scanner.result`."""
        return self._merge.checked_result(int(self._rows.sum()), rejected)

    def files(self) -> PieceFiles:
        """Return the rows that were added."""
        scratch, chunks = self._tasks.scratch, tuple(self._chunks)
        return StoredPieces(Path(), self._schema, self._rows, scratch, self._prefix, chunks, self._ahead_bytes)

    def delete(self) -> None:
        """Delete the rows."""
        store = self._tasks.store
        store.delete([entry.key for entry in store.list(self._prefix)])
