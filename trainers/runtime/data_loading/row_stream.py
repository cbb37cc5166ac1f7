"""Streams the training rows of a rank from object storage, in an order that the seed and the epoch determine."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count as count_from
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import DatasetManifest, ShardPart, columns_of_records, width
from kfp_distributed.storage.files import OnBytes, ignore_bytes
from kfp_distributed.storage.shard_reader import ShardReader
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.data_loading.row_cache import RowCache
from kfp_distributed.trainers.runtime.data_loading.row_order import (
    Block,
    Fillers,
    OrderSeed,
    Window,
    rows_of_window,
    windows_of_epoch,
)
from kfp_distributed.trainers.runtime.data_loading.row_records import to_records
from kfp_distributed.trainers.runtime.data_loading.target import weights_of_classes
from kfp_distributed.trainers.runtime.data_loading.window_ahead import Ahead, Stopped

READERS = 4
"""Row groups that are read at the same time. Each needs memory for one row group: its bytes, columns and records."""


@dataclass(frozen=True)
class ShuffledRows:
    """The records of a window in their random order, which are gathered batch by batch.

    Attributes:
        records: Records in another order, also of other windows, [m, width + 2].
        numbers: Numbers of the window's records among them, [n].
    """

    records: NDArray[np.float32]
    numbers: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.numbers)

    def gather(self, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Return a copy of the records from `start` to `stop`, [n, width + 2]. Default: all."""
        return np.take(self.records, self.numbers[start:stop], 0)


Windows = Generator[ShuffledRows, None, None]
"""Records in windows."""

_FILLER = "filler"
"""Key of a record of zeros in the cache."""


class RowSource(NamedTuple):
    """The rows of a rank.

    Attributes:
        store: Store of the dataset's folder, or a local folder.
        manifest: Manifest of the complete dataset.
        parts: The rows of the rank.
        class_weights: See `weights_of_classes`. Default: "none".
        has_exact_labels: Whether the records have the label itself in the place of the scaled label and the weight, see
            `exact_labels`. Default: false.
    """

    store: Store
    manifest: DatasetManifest
    parts: Sequence[ShardPart]
    class_weights: str = "none"
    has_exact_labels: bool = False


class RowStream:
    """The rows of a rank as records of width + 2 float32: the inputs, the label, the weight.

    The label is the index of the class, or the number to predict after `scale_labels`. The weight of a row is more than
    0: that of its class, or 1.

    Memory: two windows, that which is used and the next one, and `readers` row groups. A window has at most the limit
    of `rows_of_window` and the rows of one row group. Windows whose rows are all cached are read where the cache has
    them.

    Args:
        source: The rows of the rank.
        seed: Seed of the order of the rows, at least 0.
        cache: Local copy of the records for later epochs. The stream does not close it. Default: none.
        records: Number of records of an epoch, at least the rows of the rank. Zeros, whose weight is 0, fill an epoch
            up to it, see `Fillers`. Default: the rows of the rank, and 1 for a rank without rows.
        window_rows: Rows of a shuffle window. It determines the order. Default: `rows_of_window`.
        readers: Row groups that are read at the same time. Default: 4.
        on_bytes: Callback for the bytes that arrive, from several threads. Default: none.

    Raises:
        ValueError: The dataset has no label, or a column without a form as numbers.
    """

    def __init__(
        self,
        source: RowSource,
        seed: int,
        cache: RowCache | None = None,
        *,
        records: int = 0,
        window_rows: int = 0,
        readers: int = READERS,
        on_bytes: OnBytes = ignore_bytes,
    ) -> None:
        manifest = source.manifest
        self._source, self._seed, self._cache = source, seed, cache
        self._names = columns_of_records(manifest)
        self._weights = None if source.has_exact_labels else weights_of_classes(manifest, source.class_weights)
        self._columns = width(manifest) + 2
        rows = sum(part.rows for part in source.parts)
        self._fillers = Fillers(rows, max(records, rows, 1))
        self._limit, self._reader_count, self._on_bytes = (
            window_rows or rows_of_window(width(manifest)),
            readers,
            on_bytes,
        )
        self._group_rows: dict[int, tuple[int, ...]] = {}
        self._etags: dict[int, str] = {}
        self._open: set[Ahead[ShuffledRows]] = set()
        if cache:
            cache.put(_FILLER, np.zeros((1, self._columns), np.float32))

    @property
    def rows(self) -> int:
        """Rows of the rank."""
        return self._fillers.rows

    @property
    def window_rows(self) -> int:
        """Rows of a whole shuffle window."""
        return self._limit

    def end(self) -> None:
        """End all iterators of `windows`, from any thread, without waiting for requests."""
        for iterator in [*self._open]:
            iterator.end()

    def windows(self, epoch: int = 0, skipped: int = 0, epochs: int | None = 1) -> Windows:
        """Yield the records of some epochs in windows, while the next window is read.

        Close the iterator to end its threads before its end. They end after the requests that are waiting for an
        answer. `close` waits for them for at most five seconds.

        Args:
            epoch: Number of the first epoch, from 0. Default: 0.
            skipped: Number of records of this epoch to leave out at its beginning. Default: 0.
            epochs: Number of epochs. None for an endless iterator. Default: 1.

        Raises:
            StorageError: A shard cannot be read.
            ChecksumMismatch: A shard is damaged or was replaced.
        """
        stop = threading.Event()
        numbers = count_from(epoch) if epochs is None else iter(range(epoch, epoch + epochs))
        with closing(Ahead(lambda: self._epochs(numbers, skipped, stop), stop)) as windows:
            self._open.add(windows)
            try:
                yield from windows
            finally:
                self._open.discard(windows)

    def _epochs(self, epochs: Iterator[int], skipped: int, stop: threading.Event) -> Windows:
        """Read the windows of epochs, in the thread of `ahead`."""
        with _reading(self._source, self._reader_count, self._on_bytes, stop, self._etags) as reading:
            for epoch in epochs:
                order = OrderSeed(self._seed, epoch)

                def group_rows(parts: Sequence[int]) -> list[tuple[int, ...]]:
                    missing = [part for part in parts if part not in self._group_rows]
                    self._group_rows.update(zip(missing, reading.group_rows(missing), strict=True))
                    return [self._group_rows[part] for part in parts]

                row = skipped - self._fillers.before(skipped)
                for window in windows_of_epoch(self._source.parts, group_rows, self._limit, order, row):
                    end = row + window.rows - window.skipped
                    yield self._read(window, order, self._fillers.between(row, end, skipped), reading)
                    row = end
                if skipped - self._fillers.before(skipped) == self.rows and skipped < self._fillers.records:
                    count = self._fillers.records - skipped
                    yield ShuffledRows(np.zeros((1, self._columns), np.float32), np.zeros(count, np.int64))
                skipped = 0

    def _read(self, window: Window, order: OrderSeed, fillers: NDArray[np.int64], reading: _Reading) -> ShuffledRows:
        """Return the records of a window in their order."""
        reading.keep(window.parts)
        numbers = np.insert(order.of_rows(window.number, window.rows)[window.skipped :], fillers, -1)
        counts = [block.rows for block in window.blocks]
        keys = [(block.part, block.group) for block in window.blocks]
        if self._cache and (mapped := self._cache.mapped([_FILLER, *keys], [1, *counts], self._columns)):
            # The filler is number 0, as -1 is in `numbers`.
            return ShuffledRows(mapped.records, mapped.numbers[numbers + 1])
        records = np.empty((window.rows + 1, self._columns), np.float32)
        records[-1] = 0  # The filler.
        ends = np.cumsum(counts).tolist()

        def fill(block: Block, end: int) -> None:
            reading.check()
            self._read_block(block, reading, records[end - block.rows : end])

        for _ in reading.pool.map(fill, window.blocks, ends):
            pass
        return ShuffledRows(records, numbers)

    def _read_block(self, block: Block, reading: _Reading, records: NDArray[np.float32]) -> None:
        """Write the records of a block into an array, in the order of the file."""
        key = (block.part, block.group)
        if self._cache and (mapped := self._cache.mapped([key], [block.rows], self._columns)):
            np.take(mapped.records, mapped.numbers, 0, records, "clip")  # Other modes copy the records twice.
            return
        table = reading.reader(block.part).read_group(block.group, self._names)
        rows = self._source.parts[block.part].row_numbers(block.start, block.stop) - block.begin
        to_records(table, rows, self._source.manifest, self._weights, records)
        if self._cache:
            self._cache.put(key, records)


class _Reading:
    """Threads and open shards of an iteration.

    ETags of the shards outlive it, so that a shard that is replaced is an error in each later epoch, too.
    """

    def __init__(
        self,
        source: RowSource,
        pool: ThreadPoolExecutor,
        on_bytes: OnBytes,
        stop: threading.Event,
        etags: dict[int, str],
    ) -> None:
        self.pool, self._source, self._on_bytes, self._stop, self._etags = pool, source, on_bytes, stop, etags
        self._readers: dict[int, ShardReader] = {}
        self._lock = threading.Lock()

    def check(self, count: int = 0) -> None:
        """Count bytes.

        Raises:
            Stopped: The iteration has ended.
        """
        if self._stop.is_set():
            raise Stopped
        if count:
            self._on_bytes(count)

    def reader(self, part: int) -> ShardReader:
        """Return the reader of a part's shard."""
        with self._lock:
            if part not in self._readers:
                shard, etag = self._source.parts[part].shard, self._etags.get(part, "")
                self._readers[part] = ShardReader(self._source.store, shard, self.check, etag)
            return self._readers[part]

    def group_rows(self, parts: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the number of rows of each row group of parts. It reads their footers."""
        return list(self.pool.map(lambda part: self.reader(part).group_rows(), parts))

    def keep(self, parts: Sequence[int]) -> None:
        """Close the shards of all other parts."""
        self._etags.update({part: reader.etag for part, reader in self._readers.items()})
        self._readers = {part: reader for part, reader in self._readers.items() if part in parts}


@contextmanager
def _reading(
    source: RowSource, readers: int, on_bytes: OnBytes, stop: threading.Event, etags: dict[int, str]
) -> Iterator[_Reading]:
    pool = ThreadPoolExecutor(readers, "row-reader")
    reading = _Reading(source, pool, on_bytes, stop, etags)
    try:
        yield reading
    finally:
        stop.set()  # A failed window ends the reads of its other blocks.
        pool.shutdown(cancel_futures=True)
        reading.keep(())


def batches(windows: Iterable[ShuffledRows], sizes: Iterable[int]) -> Generator[NDArray[np.float32], None, None]:
    """Gather batches from windows.

    Args:
        windows: The records, as `RowStream.windows` yields them.
        sizes: Number of records of each batch, such as `itertools.repeat(256)` or those of `steps_of_epoch`. A batch
            may have none.

    Yields:
        The batches [size, width + 2]. If the records end before the sizes, the last batch has fewer records.
    """
    source, window, start = iter(windows), None, 0
    for size in sizes:
        pieces: list[NDArray[np.float32]] = []
        missing = size
        while window is None or missing > len(window) - start:
            if window is not None and start < len(window):
                pieces.append(window.gather(start))
                missing -= len(pieces[-1])
            window = None  # Freed while the next one is awaited.
            following = next(source, None)
            if following is None:
                if pieces:
                    yield np.concatenate(pieces)
                return
            window, start, following = following, 0, None
        pieces.append(window.gather(start, start + missing))
        start += missing
        yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
