"""Keeps the records of row groups on the local disk, so that later epochs do not read them from the store."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPARE_BYTES = 2**30
"""Bytes of the disk that the cache leaves free for other files. Default of `RowCache`."""


class MappedRows(NamedTuple):
    """Records in the file of a cache.

    Attributes:
        records: All records of the file, [n, columns].
        numbers: Those of some blocks, in their order.
    """

    records: NDArray[np.float32]
    numbers: NDArray[np.int64]


class RowCache:
    """Blocks of records in a file without a name: it is gone when the process ends, however it ends.

    Blocks are never replaced. Each of them is read once in an epoch, so the next one to be read is as likely an old one
    as a new one: to replace blocks would only cost the hits that those kept have. A process has a file of its own, so
    processes do not disturb each other. Several threads may use a cache at the same time.

    Args:
        folder: Folder of the disk to use. It is created if it does not exist.
        limit_bytes: Maximum size of the cache in bytes. With 0, nothing is cached.
        spare_bytes: Bytes that stay free on the disk. Default: 1 GiB.
        on_full: Callback for the first block that is not cached, with the cause. Default: none.
    """

    def __init__(
        self,
        folder: Path | str,
        limit_bytes: int,
        spare_bytes: int = SPARE_BYTES,
        on_full: Callable[[str], object] = lambda cause: None,
    ) -> None:
        self._limit, self._spare, self._on_full, self._is_full = limit_bytes, spare_bytes, on_full, False
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # Until close().
        self._end, self._blocks, self._lock = 0, dict[Hashable, int](), threading.Lock()

    @property
    def stored_bytes(self) -> int:
        """Size of the cached blocks in bytes."""
        return self._end

    def close(self) -> None:
        """Delete the cache. Later calls find and store nothing."""
        with self._lock:  # A thread that stores a block would write to the next file with the number of this one.
            self._limit, self._blocks, self._is_full = 0, {}, True
            self._file.close()

    def mapped(self, keys: Sequence[Hashable], rows: Sequence[int], columns: int) -> MappedRows | None:
        """Return the records of blocks where the file has them, without a copy.

        The system reads them ahead. The file is mapped anew for each call, so that the pages that were read do not
        count as memory of the process for longer than the result exists.

        Args:
            keys: Keys of the blocks.
            rows: Number of rows of each block.
            columns: Numbers of a record.

        Returns:
            The records; None if a block is not cached.
        """
        size, numbers = 4 * columns, []
        for key, count in zip(keys, rows, strict=True):
            offset = self._blocks.get(key, -1)
            if offset < 0 or offset % size:
                return None
            if hasattr(os, "posix_fadvise"):  # Not on macOS.
                os.posix_fadvise(self._file.fileno(), offset, count * size, os.POSIX_FADV_WILLNEED)
            numbers.append(np.arange(offset // size, offset // size + count))
        shape = (self._end // size, columns)
        records = np.memmap(self._file, np.float32, "r", shape=shape)
        return MappedRows(records, np.concatenate(numbers))

    def put(self, key: Hashable, records: NDArray[np.float32]) -> bool:
        """Store the records of a block, C-contiguous.

        Returns:
            Whether it is cached. It is not if the cache or the disk is full, which is no error.
        """
        data = records.data.cast("B")
        with self._lock:
            if key in self._blocks:
                return True
            offset = self._end
            if offset + len(data) > self._limit:
                return self._refuse("the cache of rows is full")
            if not self._has_space(len(data)):
                return self._refuse("the cache of rows stops growing, because the disk is nearly full")
            try:
                done = 0
                while done < len(data):
                    done += os.pwrite(self._file.fileno(), data[done:], offset + done)
            except OSError:
                self._limit = self._end  # The disk is full: no further block.
                os.truncate(self._file.fileno(), self._end)
                return self._refuse("the cache of rows stops growing, because the disk is full")
            self._end += len(data)
            self._blocks[key] = offset
        return True

    def _refuse(self, cause: str) -> bool:
        if not self._is_full:
            self._is_full = True
            self._on_full(f"{cause} ({self._end >> 20:,} MiB)")
        return False

    def _has_space(self, size: int) -> bool:
        state = os.fstatvfs(self._file.fileno())
        return state.f_bavail * state.f_frsize >= size + self._spare
