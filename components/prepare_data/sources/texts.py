"""Opens text files, which may be compressed, as UTF-8 without a byte order mark."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from kfp_distributed.components.prepare_data.csv_format import TO_UTF8, CsvFormat
from kfp_distributed.components.prepare_data.sources.stored_files import FIRST_BYTES, SourcePath, StoredPath

COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""Compressed files are known by their first bytes."""

# The first bytes of a CSV file, which tell what ends its rows. A header may be long.
_START_BYTES = 2**20

# Byte order marks: the encoding of each, and what to do. That of UTF-32 begins with that of UTF-16, so it comes first.
_MARKS = {
    codecs.BOM_UTF8: ("UTF-8", "leave encoding out"),
    codecs.BOM_UTF32_LE: ("UTF-32", 'set encoding to "utf-32"'),
    codecs.BOM_UTF32_BE: ("UTF-32", 'set encoding to "utf-32"'),
    codecs.BOM_UTF16_LE: ("UTF-16", 'set encoding to "utf-16"'),
    codecs.BOM_UTF16_BE: ("UTF-16", 'set encoding to "utf-16"'),
}


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return about `size` bytes; none at the end."""


def _check_mark(start: bytes, encoding: str) -> None:
    """Check that a byte order mark at the beginning of a text fits its encoding.

    Raises:
        ValueError: The mark is that of another encoding. The message names the right one.
    """
    for mark, (name, advice) in _MARKS.items():
        if start.startswith(mark):
            if mark.decode(encoding, errors="replace") in ("", "\ufeff"):
                return
            raise ValueError(
                f"it begins with the byte order mark of {name}, but csv_format has the encoding {encoding!r}: {advice}"
            )


@contextmanager
def opened_bytes(file: SourcePath) -> Iterator[Readable]:
    """Open a file, which may be compressed with gzip or zstd, and read it unpacked."""
    compression = compression_of(file)
    if isinstance(file, StoredPath) and compression is None:
        with file.open() as raw:
            yield raw
        return
    opened = file.open() if isinstance(file, StoredPath) else str(file)
    with pa.input_stream(opened, compression=compression, buffer_size=2**20) as stream:
        yield stream


def compression_of(file: SourcePath) -> str | None:
    """Return the compression of a file by its first bytes; None if it is not compressed."""
    with file.open("rb", first_bytes=4) if isinstance(file, StoredPath) else file.open("rb") as raw:
        start = raw.read(4)
    return next((name for magic, name in COMPRESSIONS.items() if start.startswith(magic)), None)


@contextmanager
def _opened_range(file: SourcePath, begin: int, end: int | None) -> Iterator[Readable]:
    """Open a part of a file, which may be compressed if the part is the whole file."""
    if not begin and end is None:
        with opened_bytes(file) as stream:
            yield stream
        return
    with file.open("rb") as raw:
        raw.seek(begin)
        yield raw if end is None else _Bounded(raw, end - begin)


@contextmanager
def opened_text(file: SourcePath, encoding: str, begin: int = 0, end: int | None = None) -> Iterator[Readable]:
    """Open a file, which may be compressed with gzip or zstd, as UTF-8 without a byte order mark.

    Args:
        file: The file.
        encoding: Encoding of the text.
        begin: First byte to read. Default: that of the file.
        end: Where to end; only for UTF-8 that is not compressed. Default: with the file.

    Raises:
        ValueError: The file begins with the byte order mark of another encoding.
    """
    with _opened_range(file, begin, end) as stream:
        if codecs.lookup(encoding).name == "utf-8":
            yield stream if begin else _WithoutMark(stream)
            return
        # A decoder cannot return its first bytes, so they are read from a second stream.
        with opened_bytes(file) as first:
            _check_mark(first.read(4), encoding)
        yield _Utf8(io.TextIOWrapper(stream, encoding, newline=""))  # type: ignore[arg-type]


@contextmanager
def opened_csv(file: SourcePath, csv_format: CsvFormat, begin: int = 0, end: int | None = None) -> Iterator[Readable]:
    """Open a CSV file as UTF-8 whose rows end with line feeds, see `opened_text`.

    A file whose rows end with carriage returns alone has no part but itself, see `has_carriage_returns`.
    """
    with opened_text(file, csv_format.encoding, begin, end) as stream:
        yield stream if begin else _WithLineFeeds(stream)


def has_carriage_returns(file: SourcePath, encoding: str) -> bool:
    """Return whether carriage returns alone end the rows of a CSV file."""
    with opened_text(file, encoding) as stream:
        return _are_carriage_returns(_start(stream, FIRST_BYTES))


def _start(stream: Readable, size: int) -> bytes:
    """Return the beginning of a text, of at least about `size` bytes, that tells what ends its rows."""
    start = stream.read(size)
    # A line feed tells it at once. So no reader needs the first MiB of most files.
    while b"\n" not in start and len(start) < _START_BYTES and (data := stream.read(_START_BYTES - len(start))):
        start += data
    return start


def _are_carriage_returns(start: bytes) -> bool:
    start = start[:_START_BYTES]
    # A line feed may follow the last byte.
    return b"\n" not in start and b"\r" in start.rstrip(b"\r")


class _WithLineFeeds:
    """Reads a text from its beginning. If carriage returns alone end its rows, they become line feeds."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._start: bytes | None = None
        self._has_carriage_returns = False

    def read(self, size: int) -> bytes:
        """Return about `size` bytes; none at the end."""
        if self._start is None:
            self._start = _start(self._stream, size)
            self._has_carriage_returns = _are_carriage_returns(self._start)
        data, self._start = self._start[:size], self._start[size:]
        if len(data) < size:
            data += self._stream.read(size - len(data))
        return data.replace(b"\r", b"\n") if self._has_carriage_returns else data


class _Bounded:
    """Reads a number of bytes of a stream."""

    def __init__(self, stream: Readable, size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, size: int) -> bytes:
        """Return about `size` bytes; none at the end."""
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data


class _Utf8:
    """Reads a text as UTF-8."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text

    def read(self, size: int) -> bytes:
        """Return about `size` bytes; none at the end."""
        try:
            return self._text.read(size).removeprefix("\ufeff").encode()
        except UnicodeError as error:
            raise ValueError(f"it is not {self._text.encoding}: {TO_UTF8} ({error})") from None


class _WithoutMark:
    """Reads UTF-8 without the byte order mark at its beginning."""

    def __init__(self, stream: Readable) -> None:
        self._stream, self._is_start = stream, True

    def read(self, size: int) -> bytes:
        """Return about `size` bytes; none at the end."""
        data = self._stream.read(size)
        if self._is_start and data:
            self._is_start = False
            data = data.removeprefix(codecs.BOM_UTF8)
            if not data:
                return self._stream.read(size)
        return data
