"""The parts of a source that are read by themselves, in any process (pure)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kfp_distributed.components.prepare_data.sources.read_rows import Reject, Rows
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks

CHUNK_BYTES = 2**26
"""Approximate size of a chunk in bytes."""

IMAGES = 512
"""Image files of a chunk."""

CountRows = Callable[[int], None]
"""Is called with a number of rows of a part that were read, whether they can be used or not."""


def ignore_count(rows: int) -> None:
    """Do not count rows."""


@dataclass(frozen=True)
class FilePart:
    """Rows of a file that follow each other. The numbers of their rows begin with 1.

    Attributes:
        name: Name of the file for messages.
        file: The file. Images and arrays, whose reader has them, have a path of no meaning.
        begin: Where the rows begin: a position in bytes in a text, the number of a row group in Parquet, of a record
            batch in Arrow, of a row in arrays and of a file in a folder of images. Default: 0.
        end: Where they end. Default: with the file.
        size: Their approximate size in bytes.
    """

    name: str
    file: SourcePath
    begin: int = 0
    end: int | None = None
    size: int = 0


ReadPart = Callable[[FilePart, Reject, CountRows], Iterator[Rows]]
"""Yields the rows of a part of a source."""

Chunk = tuple[FilePart, ...]
"""What one task reads: parts of one file or more, in their order."""


def whole_file(file: SourcePath) -> FilePart:
    """Return a whole file as one part."""
    return FilePart(file.name, file, size=file.stat().st_size)


def parts_of(file: SourcePath, begins: Iterable[int], sizes: Iterable[int]) -> list[FilePart]:
    """Return the parts of a file.

    Args:
        file: The file.
        begins: Where the parts begin, in their order.
        sizes: Size of each part in bytes.
    """
    begins = [*begins]
    ends = [*begins[1:], None]
    return [FilePart(file.name, file, begin, end, size) for begin, end, size in zip(begins, ends, sizes, strict=True)]


def image_parts(name: str, count: int, most: int, run: RunTasks | None = None) -> list[FilePart]:
    """Return runs of the images of a folder.

    Args:
        name: Name of the folder.
        count: Number of the images.
        most: Size of a part in bytes, of which each image has CHUNK_BYTES / IMAGES.
        run: No tasks are needed.
    """
    size = CHUNK_BYTES // IMAGES
    step = max(1, most // size)
    return [FilePart(name, Path(name), begin, min(begin + step, count), size * step) for begin in range(0, count, step)]


def first_of_runs(sizes: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield the first index and the size of each run of neighbors that have up to `most` together, or are one alone."""
    begin = total = 0
    for index, size in enumerate(sizes):
        if total and total + size > most:
            yield begin, total
            begin, total = index, 0
        total += size
    yield begin, total


def chunks_of(parts: Iterable[FilePart], most: int) -> list[Chunk]:
    """Return parts in chunks of up to `most` bytes. A larger part is a chunk by itself.

    The chunks depend on the files alone, not on the number of the processes that read them.
    """
    parts = [*parts]
    begins = [begin for begin, _ in first_of_runs((max(1, part.size) for part in parts), most)]
    ends = [*begins[1:], len(parts)]
    return [tuple(parts[begin:end]) for begin, end in zip(begins, ends, strict=True) if begin < end]
