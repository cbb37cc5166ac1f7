"""Write large sources from one block of random rows, which a file system with reflinks keeps once."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

INPUTS = 20
_DIGITS = 7
_LABELS = b"abc"
HEADER_BYTES = 4096
"""Size of the header. Rows begin and end at multiples of it, as file systems share bytes by blocks of this size."""

_ROW_BYTES = INPUTS * (_DIGITS + 3) + 2
_SLAB_ROWS = 2**11
SLAB_BYTES = _SLAB_ROWS * _ROW_BYTES
"""Size of the smallest block: rows that begin and end at a multiple of 4,096 bytes."""

_COPIED_BYTES = 2**28


def header() -> bytes:
    """Return a header of exactly 4,096 bytes, so that the rows begin where a block of the file system begins."""
    names = [f"x{number}" for number in range(INPUTS)]
    filled = len(",".join([*names, "label"])) + 1
    names[-1] += "_" + "x" * (HEADER_BYTES - filled - 1)
    return ",".join([*names, "label"]).encode() + b"\n"


def rows(generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return the text of random rows of equal width: numbers from 0.1 to 1 of seven digits, and a label of three."""
    text = np.full((_SLAB_ROWS, _ROW_BYTES), ord("0"), np.uint8)
    numbers = generator.integers(10 ** (_DIGITS - 1), 10**_DIGITS, (_SLAB_ROWS, INPUTS))
    cells = text[:, :-2].reshape(_SLAB_ROWS, INPUTS, _DIGITS + 3)
    cells[..., 1], cells[..., -1] = ord("."), ord(",")
    for digit in range(_DIGITS, 0, -1):
        numbers, last = np.divmod(numbers, 10)
        cells[..., digit + 1] = last + ord("0")
    text[:, -2] = np.frombuffer(_LABELS, np.uint8)[generator.integers(0, len(_LABELS), _SLAB_ROWS)]
    text[:, -1] = ord("\n")
    return text


def write_block(path: Path, size: int) -> int:
    """Write a file of random rows after a header, and return the size of its rows in bytes."""
    generator, slabs = np.random.default_rng(0), max(1, size // SLAB_BYTES)
    with path.open("wb") as stream:
        stream.write(header())
        for _ in range(slabs):
            stream.write(rows(generator).data)
    return slabs * SLAB_BYTES


def write_csv(block: Path, path: Path, size: int) -> None:
    """Write a CSV file of about `size` bytes that repeats the rows of a block.

    On XFS and Btrfs, the copies share the bytes of the block.
    """
    of_block = block.stat().st_size - HEADER_BYTES
    with block.open("rb") as source, path.open("wb") as target:
        _copy(source.fileno(), target.fileno(), 0, 0, HEADER_BYTES)
        end = HEADER_BYTES
        while (left := (size - end) // SLAB_BYTES * SLAB_BYTES) > 0:
            length = min(left, of_block)
            _copy(source.fileno(), target.fileno(), HEADER_BYTES, end, length)
            end += length


def write_files(block: Path, folder: Path, count: int, size: int) -> None:
    """Write CSV files of about `size` bytes, at least SLAB_BYTES, whose rows are those of a block in turn."""
    folder.mkdir(parents=True)
    slabs, of_file = (block.stat().st_size - HEADER_BYTES) // SLAB_BYTES, size // SLAB_BYTES
    with block.open("rb") as source:
        for number in range(count):
            with (folder / f"rows-{number:05}.csv").open("wb") as target:
                _copy(source.fileno(), target.fileno(), 0, 0, HEADER_BYTES)
                begin = number * of_file % max(1, slabs - of_file + 1)
                length = of_file * SLAB_BYTES
                _copy(source.fileno(), target.fileno(), HEADER_BYTES + begin * SLAB_BYTES, HEADER_BYTES, length)


def write_parquet(block: Path, path: Path, size: int) -> None:
    """Write a Parquet file of 32-bit numbers with the rows of a CSV file of `size` bytes, 40,000 in a row group."""
    left, writer = size // _ROW_BYTES, None
    names = header().decode().strip().split(",")
    converting = pa_csv.ConvertOptions(column_types=dict.fromkeys(names[:-1], pa.float32()))
    while left:
        for batch in pa_csv.open_csv(block, pa_csv.ReadOptions(block_size=2**23), convert_options=converting):
            writer = writer or pq.ParquetWriter(path, batch.schema, use_dictionary=["label"])
            writer.write_batch(batch[:left])
            left -= min(left, batch.num_rows)
            if not left:
                break
    if writer:
        writer.close()


def are_shared(folder: Path) -> bool:
    """Return whether copies of files in a folder take no space on its disk."""
    first, second = folder / "first", folder / "second"
    first.write_bytes(bytes(range(256)) * 2**16)
    os.sync()
    before = os.statvfs(folder).f_bfree
    with first.open("rb") as source, second.open("wb") as target:
        _copy(source.fileno(), target.fileno(), 0, 0, 2**24)
        os.fsync(target.fileno())
    used = (before - os.statvfs(folder).f_bfree) * os.statvfs(folder).f_frsize
    for path in (first, second):
        path.unlink()
    return used < 2**23


def _copy(source: int, target: int, begin: int, end: int, length: int) -> None:
    """Copy a range between files within the system, which shares the bytes where the file system can."""
    while length:
        done = os.copy_file_range(source, target, min(length, _COPIED_BYTES), begin, end)
        begin, end, length = begin + done, end + done, length - done
