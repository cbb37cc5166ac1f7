"""Opens the stream of this process' training rows for the built-in trainers, with a cache and lines in the log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kfp_distributed.storage.dataset import DatasetManifest, ShardPart
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.runtime.data_loading.row_cache import RowCache
from kfp_distributed.trainers.runtime.data_loading.row_stream import RowSource, RowStream, Windows
from kfp_distributed.trainers.runtime.job_description import STORE_SECONDS
from kfp_distributed.trainers.runtime.monitoring.sampling import count_bytes
from kfp_distributed.trainers.runtime.ranks.cluster import read_rank

CACHE_FOLDER = Path("row-cache")
"""Folder of the cache, in the working directory of the process."""

CACHE_VARIABLE = "KFP_DISTRIBUTED_CACHE_MIB"
"""Environment variable with the maximum size of the cache of a replica in MiB."""

CACHE_MIB = 512
"""Default of it. Some clusters give a container without a limit of its own 1 GiB of local disk, and evict it when it
uses more. Half of it stays free for checkpoints, the model and logs."""


class RowFeed:
    """The training rows of this process. It counts the bytes that arrive, and prints how the rows are read.

    Attributes:
        stream: The stream of the rows.
        error: Error that ended the stream. A framework may raise another one in its place.
    """

    def __init__(self, source: RowSource, seed: int, records: int, cache_bytes: int) -> None:
        """Open the stream.

        Args:
            source: The rows.
            seed: Seed of their order.
            records: See `RowStream`.
            cache_bytes: Maximum size of the cache.
        """
        self.error: Exception | None = None
        self._bytes, self._is_first = 0, True
        self._cache = RowCache(CACHE_FOLDER, cache_bytes, on_full=self._print_full) if cache_bytes else None
        self.stream = RowStream(source, seed, self._cache, records=records, on_bytes=self._count)
        cached = f"up to {cache_bytes >> 20:,} MiB are cached in {CACHE_FOLDER.absolute()}"
        print(
            f"streaming rows from {source.store.uri} in shuffle windows of {self.stream.window_rows:,} rows; "
            + (cached if cache_bytes else "without a cache"),
            flush=True,
        )

    def windows(self, epoch: int, skipped: int, epochs: int | None = None) -> Windows:
        """Yield the records from an epoch on, see `RowStream.windows`."""
        started = time.monotonic()
        try:
            for window in self.stream.windows(epoch, skipped, epochs):
                if self._is_first:
                    self._print_first(len(window), time.monotonic() - started)
                yield window
                del window  # Not kept while the next one is awaited.
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        """End all iterators, and delete the cache."""
        self.stream.end()
        if self._cache:
            self._cache.close()

    def _count(self, count: int) -> None:
        self._bytes += count
        count_bytes(count)

    def _print_first(self, rows: int, seconds: float) -> None:
        self._is_first = False
        text = f"{rows:,} rows after {self._bytes / 2**20:,.1f} MiB and {seconds:.1f} s"
        print(f"received the first {text}", flush=True)

    def _print_full(self, cause: str) -> None:
        print(f"{cause}: the other rows are read from the store in each epoch", flush=True)


@contextmanager
def open_rows(
    folder: str,
    manifest: DatasetManifest,
    parts: Sequence[ShardPart],
    seed: int,
    class_weights: str = "none",
    records: int = 0,
    wait_seconds: float = STORE_SECONDS,
) -> Iterator[RowFeed]:
    """Open the training rows of this process, and close them at the end of the block.

    Args:
        folder: Folder of the manifest. The shards are there if the manifest has no address of them.
        manifest: The dataset's manifest.
        parts: The rows of this process.
        seed: Seed of the order of the rows.
        class_weights: See `weights_of_classes`. Default: "none".
        records: Number of records of an epoch, see `RowStream`. Default: the number of rows.
        wait_seconds: Seconds to wait for an object store that is away. Default: `STORE_SECONDS`.

    Raises:
        StorageError: A shard could not be read in the block. It replaces the error that a framework raised for it.
        ChecksumMismatch: A shard was damaged or replaced.
        ValueError: The environment variable of the cache is not valid.
    """
    store = open_store(manifest.shards_uri or folder, retry_seconds=wait_seconds)
    feed = RowFeed(RowSource(store, manifest, parts, class_weights), seed, records, cache_bytes(os.environ))
    try:
        yield feed
    except Exception as error:
        if feed.error and feed.error is not error:
            raise feed.error from error
        raise
    finally:
        feed.close()


def cache_bytes(environment: Mapping[str, str]) -> int:
    """Return the maximum size of the cache of this process in bytes: its share of that of the replica.

    Raises:
        ValueError: The variable is not a whole number of at least 0.
    """
    text = environment.get(CACHE_VARIABLE) or str(CACHE_MIB)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(
            f"{CACHE_VARIABLE}={text!r}: it must be the size of the cache of rows in MiB, a whole number of at least "
            f"0, such as {CACHE_MIB}; 0 turns the cache off"
        )
    rank = read_rank(environment)
    return (int(text) << 20) // (rank.local_size if rank else 1)
