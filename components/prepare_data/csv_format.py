"""How CSV files are written, and the bytes of their rows as UTF-8."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv

from kfp_distributed.components.prepare_data.csv_quotes import COMMAS, Separation, last_row_end
from kfp_distributed.components.prepare_data.stored_files import SourcePath, StoredPath

COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""Compressed files are known by their first bytes."""

TO_UTF8 = 'name its encoding in csv_format, such as {"encoding": "cp1252"} or {"encoding": "utf-16"}'
# First bytes of other formats in files that are named .csv.
_SIGNATURES = {
    rb"PK[\3\5]": "is a ZIP archive or an Excel workbook: unpack it, or save the sheet as CSV",
    rb"PAR1[\0-\x1f]": "is a Parquet file: name it .parquet",
    rb"(?i)\s*<(!doctype|html|\?xml)": "is a web page or XML: give the address of the file itself",
    rb'\s*(\{"|\[\s*[\[{])': "is JSON: name it .jsonl if it has one object in each line, else write it as Parquet",
    rb"(?i)\s*(%[^\n]*\n\s*)*@relation\s": "is ARFF: replace the lines up to @data by one of column names",
    rb"\s*\Z": "is empty: it needs a header and rows",
    rb"\xff\xfe|\xfe\xff|[^\n]*\0": f"is UTF-16 text or a binary file: {TO_UTF8}",
}
# Byte order marks: the encoding of each, and what to do. That of UTF-32 begins with that of UTF-16, so it comes first.
_MARKS = {
    codecs.BOM_UTF8: ("UTF-8", "leave encoding out"),
    codecs.BOM_UTF32_LE: ("UTF-32", 'set encoding to "utf-32"'),
    codecs.BOM_UTF32_BE: ("UTF-32", 'set encoding to "utf-32"'),
    codecs.BOM_UTF16_LE: ("UTF-16", 'set encoding to "utf-16"'),
    codecs.BOM_UTF16_BE: ("UTF-16", 'set encoding to "utf-16"'),
}
USUAL_MISSING = (*pa_csv.ConvertOptions().null_values, "None", "<NA>")
"""Texts that pandas takes for missing values."""
# A text of blanks alone is empty. Databases fill a column with up to 255. Arrow needs as long for so many missing texts
# of each column as for 10,000 numbers.
_BLANKS, _MOST_BLANKS = 64, 255
# A row of more bytes is one whose quote is not closed.
_ROW_BYTES = 2**26


@dataclass(frozen=True)
class CsvFormat:
    """How CSV files are written.

    Attributes:
        separator: Character between the columns.
        decimal: Character between the whole part and the fraction of a number, "." or ",".
        encoding: Encoding of the text, by one of Python's names. A byte order mark is no part of the text.
        header: Whether the first row has the names of the columns. Without it they are "column_1", "column_2", ....
        missing: More texts that stand for a missing value, such as "?". Empty texts and blanks stand for one in any
            case.
        usual_missing: Whether the usual texts, such as "NA", "null" and "nan", stand for a missing value, too.
        given: Names of the attributes that the user has set. The others may be found by the first rows of a file.
        has_carriage_returns: Whether carriage returns alone end the rows.
        blanks: "skip": blanks around values are no part of them. "separate": blanks separate the columns.
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    header: bool = True
    missing: tuple[str, ...] = ()
    usual_missing: bool = True
    given: frozenset[str] = frozenset()
    has_carriage_returns: bool = False
    blanks: Literal["", "skip", "separate"] = ""

    @property
    def separation(self) -> Separation:
        """What separates the values of a row."""
        return Separation(self.separator, self.blanks)

    def null_values(self, rows: bytes) -> list[str]:
        """Return the texts that stand for a missing value in some rows."""
        usual = USUAL_MISSING if self.usual_missing else [""]
        longest = 0 if b" " not in rows else _BLANKS if b" " * (_BLANKS + 1) not in rows else _MOST_BLANKS
        return [*usual, *(" " * length for length in range(1, longest + 1)), *self.missing]


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return about `size` bytes; none at the end."""


def parse_csv_format(values: Mapping[str, Any]) -> CsvFormat:
    """Check the parameter `csv_format`.

    Raises:
        ValueError: A key or value is not allowed. The message names it and what is allowed.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"csv_format is {values!r}: it must be a dict of {', '.join(_ALLOWED)}")  # noqa: TRY004
    for key, value in values.items():
        allowed = {
            "separator": isinstance(value, str) and len(value) == 1 and value.isascii() and value not in '"\r\n',
            "decimal": value in (".", ","),
            "encoding": isinstance(value, str) and _is_encoding(value),
            "header": isinstance(value, bool),
            "missing": isinstance(value, list | tuple) and all(isinstance(text, str) for text in value),
            "usual_missing": isinstance(value, bool),
        }
        if key not in allowed:
            raise ValueError(f"csv_format has the key {key!r}: allowed are {', '.join(_ALLOWED)}")
        if not allowed[key]:
            raise ValueError(f"csv_format: {key} is {value!r}: it must be {_ALLOWED[key]}")
    usual = {"separator": ";"} if values.get("decimal") == "," else {}
    checked: dict[str, Any] = {**usual, **values, "missing": tuple(values.get("missing", ()))}
    csv_format = CsvFormat(**checked, given=frozenset(values))
    if csv_format.separator == csv_format.decimal:
        raise ValueError(f"csv_format: separator and decimal are both {csv_format.decimal!r}: name two characters")
    return csv_format


_ALLOWED = {
    "separator": 'one character, such as ";" or "\\t"; " " stands for any number of blanks',
    "decimal": '"." or ","',
    "encoding": 'one that Python knows, such as "utf-8", "latin-1" or "utf-16"',
    "header": "true or false",
    "missing": 'a list of texts, such as ["?", "-"]',
    "usual_missing": "true or false",
}


def _is_encoding(name: str) -> bool:
    try:
        return codecs.lookup(name)._is_text_encoding
    except LookupError:
        return False


def utf8_line(start: bytes, encoding: str) -> str:
    """Return a line if a text was read in another encoding than its own, as it shows; else "".

    Args:
        start: The beginning of the text, as UTF-8.
        encoding: The encoding in which it was read.
    """
    text = start.decode(errors="ignore")
    if text.isascii() or codecs.lookup(encoding).name.startswith("utf"):
        return ""
    if wrong := re.search("[\x80-\x9f]", text):
        return f'it has control characters such as {wrong[0]!r}: set the encoding in csv_format to "cp1252"'
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text.encode(encoding))
    except UnicodeError:
        return ""
    shown = re.findall(r"[^\x00-\x7f]+", text)[0]
    right = shown.encode(encoding).decode(errors="ignore")
    return f"it is UTF-8, so that {right!r} is read as {shown!r}: leave the encoding {encoding!r} out of csv_format"


def check_start(start: bytes, csv_format: CsvFormat) -> None:
    """Check by the first bytes of a text that it is CSV of a format.

    Raises:
        ValueError: The file is something else. The message names the format and what to do.
    """
    for signature, advice in _SIGNATURES.items():
        if re.match(signature, start):
            raise ValueError(f"it {advice}")
    header = re.sub(rb'"[^"]*"', b'""', start).partition(b"\n")[0]
    separator = csv_format.separator.encode()
    # A line above the names may have other characters. What the user says is wrong if no row has it.
    rows = start if "separator" in csv_format.given else header
    if separator not in rows and (other := re.match(rb"[^,;\t|]*([,;\t|])", header)):
        found = other[1].decode()
        if "separator" not in csv_format.given:
            raise ValueError(
                f"its columns are separated by {found!r}, and those of the first file by {csv_format.separator!r}: "
                "write all files in one way"
            )
        needed = " " if csv_format.blanks == "separate" else csv_format.separator
        # Only files with semicolons usually have decimal commas.
        decimal = ', with "decimal": "," for numbers like 1,5' if found == ";" else ""
        also = ', "decimal": "."' if found == csv_format.decimal else ""
        raise ValueError(
            f"its columns are separated by {found!r}, where {needed!r} is needed: set csv_format to "
            f'{{"separator": {json.dumps(found)}{also}}}{decimal}'
        )


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
    """Open a CSV file as UTF-8 whose rows end with line feeds, see `opened_text`."""
    with opened_text(file, csv_format.encoding, begin, end) as stream:
        yield _WithLineFeeds(stream) if csv_format.has_carriage_returns else stream


class _WithLineFeeds:
    """Reads a text whose rows end with carriage returns alone."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        """Return about `size` bytes; none at the end."""
        return self._stream.read(size).replace(b"\r", b"\n")


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
