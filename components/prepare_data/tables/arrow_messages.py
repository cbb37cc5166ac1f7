"""Finds the record batches of an Arrow file by the headers of its messages, without their bodies.

The format of a message: https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format. Its header is a
flatbuffer, whose fields are at the positions that a table of 16-bit offsets names.
"""

import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

FILE_MAGIC = b"ARROW1"
"""The first bytes of the Arrow file format; other Arrow files are streams."""

# In the file format, messages begin after the magic and two bytes.
_FIRST_MESSAGE = 8
# Fields of the tables Message and RecordBatch, and the type of a header that is a record batch.
_HEADER_TYPE, _HEADER, _BODY_LENGTH, _ROWS = 1, 2, 3, 0
_RECORD_BATCH = 3


class _Header(NamedTuple):
    """What the header of a message says.

    Attributes:
        rows: Rows of a record batch; None if the message is none.
        body: Size of the body in bytes.
    """

    rows: int | None
    body: int


@dataclass(frozen=True)
class ArrowMessages:
    """The messages of an Arrow file.

    Attributes:
        is_file: Whether it is of the file format, and no stream.
        ends: Position of the end of each message.
        rows: Rows of each message; -1 for one that is no record batch.
    """

    is_file: bool
    ends: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def batches(self) -> int:
        """Number of the record batches."""
        return sum(rows >= 0 for rows in self.rows)

    @property
    def row_count(self) -> int:
        """Number of the rows."""
        return sum(rows for rows in self.rows if rows >= 0)

    def ranges(self, begin: int, end: int | None) -> list[range]:
        """Return the ranges of a stream that are a stream with some of its record batches.

        Args:
            begin: Number of the first record batch.
            end: Number of the record batch after the last one; None for all.
        """
        wanted = range(self.batches)[begin:end]
        found, batch, start = list[range](), 0, 0
        for stop, rows in zip(self.ends, self.rows, strict=True):
            if rows < 0 or batch in wanted:
                if found and found[-1].stop == start:
                    found[-1] = range(found[-1].start, stop)
                else:
                    found.append(range(start, stop))
            batch += rows >= 0
            start = stop
        return found


def read_messages(stream: io.RawIOBase, size: int) -> ArrowMessages:
    """Read the headers of the messages of an Arrow file.

    Args:
        stream: The file. Bodies of messages are skipped.
        size: Size of the file in bytes.

    Raises:
        ValueError: The file is damaged.
    """
    is_file = _read(stream, 0, len(FILE_MAGIC)) == FILE_MAGIC
    position = _FIRST_MESSAGE if is_file else 0
    ends, rows = list[int](), list[int]()
    try:
        while position < size:
            (length,) = struct.unpack("<i", _read(stream, position, 4))
            position += 4
            if length == -1:  # Versions before 0.15 wrote no such mark.
                (length,) = struct.unpack("<i", _read(stream, position, 4))
                position += 4
            if not length:
                break
            header = _header(_read(stream, position, length))
            position += length + header.body
            ends.append(position)
            rows.append(-1 if header.rows is None else header.rows)
    except (struct.error, IndexError):
        raise ValueError(_DAMAGED) from None
    if position > size:
        raise ValueError(_DAMAGED)
    return ArrowMessages(is_file, tuple(ends), tuple(rows))


_DAMAGED = "it is not a complete Arrow file: write or copy it again (the header of a message is damaged)"


def _read(stream: io.RawIOBase, position: int, length: int) -> bytes:
    if length < 0:
        raise struct.error
    stream.seek(position)
    data = stream.read(length) or b""
    if len(data) < length:
        raise struct.error
    return data


def _header(data: bytes) -> _Header:
    (message,) = struct.unpack_from("<I", data)
    body, kind, header = (_field(data, message, number) for number in (_BODY_LENGTH, _HEADER_TYPE, _HEADER))
    length = struct.unpack_from("<q", data, body)[0] if body else 0
    if length < 0 or not kind or not header:
        raise struct.error
    if data[kind] != _RECORD_BATCH:
        return _Header(None, length)
    batch = header + struct.unpack_from("<I", data, header)[0]
    rows = _field(data, batch, _ROWS)
    return _Header(struct.unpack_from("<q", data, rows)[0] if rows else 0, length)


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a table; 0 if the field has its default value."""
    offsets = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, offsets)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, offsets + 4 + 2 * number)
    return table + offset if offset else 0


class JoinedRanges(io.RawIOBase):
    """Ranges of a file, one after the other.

    Args:
        stream: The file.
        ranges: The ranges.
    """

    def __init__(self, stream: io.RawIOBase, ranges: Sequence[range]) -> None:
        self._stream, self._position = stream, 0
        self._ranges: Iterator[range] = iter(ranges)
        self._left = range(0)

    def readable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes that were read."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes: fewer than `size` only at the end."""
        data = bytearray()
        while size < 0 or len(data) < size:
            if not self._left:
                following = next(self._ranges, None)
                if following is None:
                    break
                self._left = following
                self._stream.seek(following.start)
            block = self._stream.read(len(self._left) if size < 0 else min(len(self._left), size - len(data))) or b""
            if not block:
                raise ValueError("the file ends early")
            data += block
            self._left = self._left[len(block) :]
        self._position += len(data)
        return bytes(data)
