"""Files of a sharded checkpoint: checksums of their ranges, and a reader that fetches only the ranges that it needs.

The manifest has the SHA-256 of each file. A rank that reads parts of a file cannot check it, so that each file of
tensors has a file of checksums beside it, NAME.sums, with those of each tensor.
"""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from kfp_distributed.storage.errors import ChecksumMismatch
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.monitoring.sampling import count_bytes

_BLOCK_BYTES = 16 << 20
"""Size in bytes up to which ranges beside each other are read with one request."""

_READS = 4
"""Number of requests at the same time. Each needs memory for its ranges."""

_SUMS = ".sums"


class SavedRange(NamedTuple):
    """Where a tensor is.

    Attributes:
        file: Name of the file.
        offset: Position of its first byte.
        length: Number of bytes.
    """

    file: str
    offset: int
    length: int


def write_sums(folder: Path, ranges: Sequence[SavedRange], on_block: Callable[[], object]) -> None:
    """Write a file of checksums beside each file of tensors in a folder.

    Args:
        folder: Local folder.
        ranges: All tensors in the files.
        on_block: Callback for each tensor. An exception in it ends the work.
    """
    sums: dict[str, dict[str, str]] = {}
    for file, offset, length in ranges:
        on_block()
        with (folder / file).open("rb") as stream:
            stream.seek(offset)
            digest, left = hashlib.sha256(), length
            while left and (block := stream.read(min(left, 1 << 20))):
                digest.update(block)
                left -= len(block)
        sums.setdefault(file, {})[f"{offset}+{length}"] = digest.hexdigest()
    for file, content in sums.items():
        (folder / f"{file}{_SUMS}").write_text(json.dumps(content))


class CheckpointFiles:
    """Reads the files of one sharded checkpoint, and checks everything that it reads.

    Attributes:
        read_bytes: Number of bytes that were read.
    """

    def __init__(self, store: Store, name: str, folder: str, files: Sequence[FileEntry]) -> None:
        """Create the reader without a request.

        Args:
            store: Store of the checkpoints.
            name: Name of the checkpoint.
            folder: Folder of the files in it.
            files: All files, from the manifest.
        """
        self.read_bytes = 0
        self._store, self._prefix = store, f"{name}/{folder}"
        self._entries = {file.path.removeprefix(f"{folder}/"): file for file in files}

    def read(self, file: str) -> bytes:
        """Return the content of a file.

        Raises:
            KeyNotFound: The file does not exist.
            ChecksumMismatch: It is damaged.
        """
        data = self._store.read(f"{self._prefix}/{file}")
        self._count(len(data))
        entry = self._entries.get(file)
        if not entry or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise self._damaged(file)
        return data

    def read_ranges(self, ranges: Sequence[SavedRange]) -> Iterator[tuple[SavedRange, memoryview]]:
        """Yield ranges with their content, in the order of the files. Several requests run at the same time.

        Raises:
            KeyNotFound: A file does not exist.
            ChecksumMismatch: A range is damaged.
        """
        sums = {file: json.loads(self.read(f"{file}{_SUMS}")) for file in sorted({range_.file for range_ in ranges})}
        blocks = iter(_blocks(sorted(set(ranges))))
        reading: deque[tuple[list[SavedRange], Future[memoryview]]] = deque()
        with ThreadPoolExecutor(_READS) as pool:
            while True:
                while len(reading) < _READS and (block := next(blocks, None)):
                    reading.append((block, pool.submit(self._read_block, block)))
                if not reading:
                    return
                block, future = reading.popleft()
                yield from self._split(block, future.result(), sums)

    def _read_block(self, block: Sequence[SavedRange]) -> memoryview:
        first, last = block[0], block[-1]
        length = last.offset + last.length - first.offset
        return memoryview(self._store.read_range(f"{self._prefix}/{first.file}", first.offset, length).data)

    def _split(
        self, block: Sequence[SavedRange], data: memoryview, sums: Mapping[str, Mapping[str, str]]
    ) -> Iterator[tuple[SavedRange, memoryview]]:
        self._count(len(data))
        for range_ in block:
            start = range_.offset - block[0].offset
            part = data[start : start + range_.length]
            if hashlib.sha256(part).hexdigest() != sums[range_.file].get(f"{range_.offset}+{range_.length}"):
                raise self._damaged(range_.file)
            yield range_, part

    def _count(self, count: int) -> None:
        self.read_bytes += count
        count_bytes(count)

    def _damaged(self, file: str) -> ChecksumMismatch:
        cause = "the file is damaged: its SHA-256 is another one than when it was stored"
        return ChecksumMismatch(self._store.endpoint, self._store.bucket, f"{self._prefix}/{file}", cause)


def _blocks(ranges: Sequence[SavedRange]) -> Iterator[list[SavedRange]]:
    """Yield groups of sorted ranges that directly follow each other in a file."""
    block: list[SavedRange] = []
    for range_ in ranges:
        if block:
            first, last = block[0], block[-1]
            follows = (last.file, last.offset + last.length) == (range_.file, range_.offset)
            if not follows or range_.offset + range_.length - first.offset > _BLOCK_BYTES:
                yield block
                block = []
        block.append(range_)
    if block:
        yield block
