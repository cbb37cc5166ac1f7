"""The shards by tasks: each one first divides a piece by file, then each one writes a file."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.pieces.read_ahead import read_ahead
from kfp_distributed.components.prepare_data.report.duplicates import DuplicateCounter
from kfp_distributed.components.prepare_data.report.profile import SPLITS, PieceProfile, Profiler
from kfp_distributed.components.prepare_data.writing.piece_rows import PieceRows, RowWork
from kfp_distributed.components.prepare_data.writing.shard_files import write_shard
from kfp_distributed.components.worker_pool.piece_tasks import groups_of
from kfp_distributed.components.worker_pool.stored_tasks import StoredTasks, stored
from kfp_distributed.storage.files import FileEntry

_DIVIDED = "divided/"
_PARTS_AHEAD = 4


def shard_key(split: str, name: str) -> str:
    """Return the key of a shard in the scratch."""
    return f"shards/{split}/{name}"


@dataclass(frozen=True)
class _DividedPiece:
    """A piece whose rows are in an object, divided by file.

    Attributes:
        profile: Description of the rows.
        schema: The columns of the shards.
        offsets: Where the rows of each file begin, and where the last ones end, [files + 1].
    """

    profile: PieceProfile
    schema: pa.Schema
    offsets: NDArray[np.int64]


@dataclass(frozen=True)
class _ShardWork:
    """What is needed to write any shard.

    Attributes:
        scratch: Address of the scratch.
        keys: Key of each shard, [files].
        pieces: Numbers of the pieces.
        offsets: Where the rows of each file are in each piece, [pieces, files + 1].
        schema: The columns.
        texts: Names of the columns with repeated values.
        size: Bytes of rows that are written together.
    """

    scratch: str
    keys: Sequence[str]
    pieces: Sequence[int]
    offsets: NDArray[np.int64]
    schema: pa.Schema
    texts: Sequence[str]
    size: int

    def parts(self, file: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file in each piece that has any."""
        for piece, offsets in zip(self.pieces, self.offsets, strict=True):
            begin, end = offsets[file : file + 2].tolist()
            if begin < end:
                data = stored(self.scratch).read_range(f"{_DIVIDED}{piece}", begin, end - begin).data
                yield pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), self.schema)


def write_by_tasks(
    tasks: StoredTasks,
    work: RowWork,
    profiler: Profiler,
    files: Mapping[Path, str],
    texts: Sequence[str],
    size: int,
) -> dict[Path, FileEntry]:
    """Describe the rows, and write the files that have any into the scratch.

    Args:
        tasks: Runs the tasks.
        work: The rows.
        profiler: Gets the descriptions of the pieces.
        files: Key of each file, in the order of their indices.
        texts: Names of the columns with repeated values.
        size: Bytes of rows that are written together, see `group_bytes`.

    Returns:
        Name, size and SHA-256 of each file with rows.
    """
    numbers, offsets, schema = work.drawn.pieces.numbers, [], pa.schema([])
    items = zip(numbers, profiler.sampled(), strict=True)
    groups = groups_of(items, work.drawn.pieces.at_once())
    for divided, duplicates in tasks.run(partial(_divide_all, work, tasks.scratch), groups):
        profiler.merge_duplicates(duplicates)
        for found in divided:
            profiler.merge(found.profile)
            offsets.append(found.offsets)
            schema = found.schema
    # The rows are divided, and the results of all tasks that read them are stored, so that no restart needs them.
    work.drawn.pieces.delete_rows()
    shards = _ShardWork(tasks.scratch, [*files.values()], numbers, np.array(offsets), schema, texts, size)
    with_rows = np.flatnonzero(np.diff(shards.offsets).any(axis=0)).tolist()
    entries = [*tasks.run(partial(_write, shards), with_rows)]
    tasks.store.delete([f"{_DIVIDED}{piece}" for piece in numbers])
    paths = [*files]
    return {paths[file]: replace(entry, path=paths[file].name) for file, entry in zip(with_rows, entries, strict=True)}


def _divide_all(
    work: RowWork, scratch: str, items: Sequence[tuple[int, NDArray[np.int64]]]
) -> tuple[list[_DividedPiece], DuplicateCounter]:
    """Divide several pieces, and count their equal rows together, because each count has up to 4 MB."""
    divided, duplicates = list[_DividedPiece](), DuplicateCounter(SPLITS)
    for piece, sampled in items:
        rows = work.read(piece)
        duplicates.merge(work.duplicates(rows, duplicates.limit))
        divided.append(_divide(work, scratch, piece, rows, sampled))
    return divided, duplicates


def _divide(work: RowWork, scratch: str, piece: int, rows: PieceRows, sampled: NDArray[np.int64]) -> _DividedPiece:
    """Describe a piece, and store its rows divided by file."""
    in_shards = work.in_shards(rows)
    edges = np.searchsorted(rows.files, np.arange(work.drawn.files + 1))
    offsets = np.zeros(work.drawn.files + 1, np.int64)
    with tempfile.TemporaryDirectory(prefix="prepare-data-piece-") as folder:
        path = Path(folder, "piece")
        with path.open("wb") as stream:
            for file, (begin, end) in enumerate(zip(edges.tolist(), edges[1:].tolist(), strict=False)):
                if begin < end:
                    stream.write(pa.concat_batches([in_shards[begin:end], in_shards[:0]]).serialize())
                offsets[file + 1] = stream.tell()
        stored(scratch).upload(path, f"{_DIVIDED}{piece}")
    return _DividedPiece(work.profile(rows, sampled), in_shards.schema, offsets)


def _write(work: _ShardWork, file: int) -> FileEntry:
    """Write a shard on the disk, and store it."""
    with tempfile.TemporaryDirectory(prefix="prepare-data-shard-") as folder:
        path = Path(folder, "shard")
        with closing(read_ahead(work.parts(file), _PARTS_AHEAD)) as parts:
            write_shard(path, parts, work.texts, work.size)
        return stored(work.scratch).upload(path, work.keys[file])
