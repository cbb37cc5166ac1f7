"""Divides the rows of a text file into parts and blocks, exactly: a line end within quotes ends no row."""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from io import FileIO
from itertools import pairwise
from typing import NamedTuple

from kfp_distributed.components.prepare_data.csv_format import COMMAS, Separation
from kfp_distributed.components.prepare_data.sources.chunks import FilePart, parts_of, whole_file
from kfp_distributed.components.prepare_data.sources.stored_files import RangeStream, SourcePath, StoredPath
from kfp_distributed.components.prepare_data.sources.texts import Readable, compression_of, has_carriage_returns
from kfp_distributed.components.prepare_data.tables.csv_quotes import last_row_end
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks

# One buffer of this size stays in the cache of the processor. New memory for each block takes several times as long.
STEP_BYTES = 2**20
TAIL_BYTES = 2**12
# A row of more bytes is one whose quote is not closed.
_ROW_BYTES = 2**26


class RangeEnd(NamedTuple):
    """What a range of whole lines says about its end.

    Attributes:
        is_quoted: Whether the end is within quotes.
        row_end: Position of the last end of a row in the range; None if no row ends in it.
    """

    is_quoted: bool
    row_end: int | None


def text_parts(
    file: SourcePath,
    first_size: int,
    size: int,
    most: int,
    encoding: str,
    separation: Separation | None,
    run: RunTasks | None = None,
) -> list[FilePart]:
    """Return the parts of a text file of rows. One that is compressed, not UTF-8 or without line feeds is one part.

    A reader that reads a part with `first_read` gets the blocks that a reader of the whole file gets.

    Args:
        file: The file.
        first_size: Bytes that a reader of the whole file reads first.
        size: Bytes that it reads at once after that.
        most: Approximate size of a part in bytes.
        encoding: Encoding of the text.
        separation: What separates the values of a row of CSV; None if each line is a row.
        run: Runs tasks that read the text. Default: this process reads it.
    """
    length = file.stat().st_size
    blocks = most // size
    marks = range(first_size, length, size)[blocks :: max(1, blocks)]
    if not marks or codecs.lookup(encoding).name != "utf-8" or compression_of(file):
        return [whole_file(file)]
    if separation and has_carriage_returns(file, encoding):
        return [whole_file(file)]
    begins = [0, *sorted({*row_ends(file, marks, separation, run)} - {0, length})]
    ends = [*begins[1:], length]
    return parts_of(file, begins, (end - begin for begin, end in zip(begins, ends, strict=True)))


def first_read(begin: int, first_size: int, size: int) -> int:
    """Return how many bytes the reader of a part reads first, so that it gets the blocks of the whole file."""
    return first_size - begin if begin < first_size else size - (begin - first_size) % size


def row_ends(
    file: SourcePath, marks: Iterable[int], separation: Separation | None, run: RunTasks | None = None
) -> list[int]:
    """Return the last end of a row up to each of some positions in a text.

    Args:
        file: File of UTF-8.
        marks: Positions in bytes, in their order.
        separation: What separates the values of a row; None if each line is a row.
        run: Runs tasks, each of which reads the text between two of the positions. Default: this process reads it.
    """
    ends: list[int] = []
    with _opened(file) as stream:
        # A quote at the beginning begins a value, also after a byte order mark.
        first = row_end = len(codecs.BOM_UTF8) if stream.read(3) == codecs.BOM_UTF8 else 0
        edges = [first]
        for mark in marks:
            edges.append(line_start(stream, mark, edges[-1]))
        ranges, is_quoted = [*pairwise(edges)], False
        found = iter(run(partial(_both_ends, file, separation), ranges)) if run and separation else None
        for begin, end in ranges:
            if found:
                is_quoted, last = next(found)[is_quoted]
            else:
                ((is_quoted, last),) = range_ends(stream, begin, end, separation, (is_quoted,))
            row_end = row_end if last is None else last
            ends.append(row_end if row_end > len(codecs.BOM_UTF8) else 0)
    return ends


def _both_ends(file: SourcePath, separation: Separation, text: tuple[int, int]) -> list[RangeEnd]:
    """Return what a range of lines says about its end if its beginning is not within quotes, and if it is."""
    with _opened(file) as stream:
        return range_ends(stream, *text, separation, (False, True))


def _opened(file: SourcePath) -> FileIO | RangeStream:
    return file.open() if isinstance(file, StoredPath) else FileIO(file)


def range_ends(
    stream: FileIO | RangeStream, begin: int, end: int, separation: Separation | None, are_quoted: Sequence[bool]
) -> list[RangeEnd]:
    """Return what a range of lines says about its end, see `RangeEnd`, in one or both cases.

    Args:
        stream: The file.
        begin: Beginning of a line.
        end: End of a line.
        separation: What separates the values of a row; None if each line is a row.
        are_quoted: Cases: whether the beginning is within quotes.
    """
    if not separation:
        return [RangeEnd(is_quoted=False, row_end=end if end > begin else None)] * len(are_quoted)
    ends, buffer = [RangeEnd(is_quoted, None) for is_quoted in are_quoted], bytearray(STEP_BYTES)
    while begin < end:
        size = _read_lines(stream, buffer, begin, end)
        ends = [_end_after(buffer, size, begin, separation, before) for before in ends]
        begin += size
    return ends


def _read_lines(stream: FileIO | RangeStream, buffer: bytearray, begin: int, end: int) -> int:
    """Read whole lines into a buffer, and return their size. A line that is longer is read with all that follow it."""
    length = min(STEP_BYTES, end - begin)
    _read_into(stream, buffer, begin, length)
    size = buffer.rfind(b"\n", 0, length) + 1
    if size:
        return size
    if end - begin > len(buffer):
        buffer.extend(bytes(end - begin - len(buffer)))
    _read_into(stream, buffer, begin, end - begin)
    return end - begin


def _read_into(stream: FileIO | RangeStream, buffer: bytearray, begin: int, length: int) -> None:
    """Fill the beginning of a buffer.

    Raises:
        ValueError: The file has become shorter.
    """
    stream.seek(begin)
    if stream.readinto(memoryview(buffer)[:length]) != length:
        raise ValueError("it became shorter while it was read: start the step again when it is complete")


def _end_after(text: bytearray, size: int, begin: int, separation: Separation, before: RangeEnd) -> RangeEnd:
    """Return the end of a range after some more lines of it.

    Args:
        text: A buffer that begins with the lines.
        size: Their size in bytes.
        begin: Their position in the file.
        separation: What separates the values of a row.
        before: The end of the range before them.
    """
    if text.find(b'"', 0, size) < 0:
        return before if before.is_quoted else RangeEnd(is_quoted=False, row_end=begin + size)
    # A text within quotes is read like one after a quote that begins a value.
    quoted = b'"' * before.is_quoted + text[:size]
    last = last_row_end(quoted, separation)
    return RangeEnd(last < len(quoted), begin + last - before.is_quoted if last else before.row_end)


def line_start(stream: FileIO | RangeStream, mark: int, lowest: int) -> int:
    """Return the last beginning of a line up to a position; `lowest` if there is none after it."""
    end = mark
    while end > lowest:
        begin = max(lowest, end - TAIL_BYTES)
        stream.seek(begin)
        found = stream.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return lowest


def blocks(stream: Readable, first_size: int, size: int, separation: Separation = COMMAS) -> Iterator[bytes]:
    """Yield the rows of a text in blocks of about `size` bytes, the first of about `first_size`, each of whole rows.

    Raises:
        ValueError: A row has more than 64 MiB.
    """
    rest, next_size = b"", first_size
    while data := stream.read(next_size):
        next_size = size
        data = rest + data
        end = last_row_end(data, separation)
        if not end and len(data) > _ROW_BYTES:
            raise ValueError("a row is too long: close each quote, and leave out columns with very long texts")
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        yield rest
