"""CSV files: checks before Arrow reads a file, and explanations of Arrow's errors."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

CHUNK_BYTES = 2**18
"""Bytes of a file that are searched at once, so that a large file needs no more memory than a small one."""

# A header of ten thousand columns is shorter.
_HEADER_BYTES = 2**20
_TO_UTF8 = "save it as UTF-8, such as with: iconv -f LATIN1 -t UTF-8 (or -f UTF-16)"
# First bytes of other formats in files that are named .csv.
_SIGNATURES = {
    rb"\x1f\x8b": "is compressed with gzip: unpack it",
    rb"PK[\3\5]": "is a ZIP archive or an Excel workbook: unpack it, or save the sheet as CSV",
    rb"PAR1[\0-\x1f]": "is a Parquet file: name it .parquet",
    rb"(?i)\s*<(!doctype|html|\?xml)": "is a web page or XML: give the address of the file itself",
    rb'\s*(\{"|\[\s*[\[{])': "is JSON: write it as CSV or Parquet",
    rb"\s*\Z": "is empty: it needs a header and rows",
    rb"\xff\xfe|\xfe\xff|[^\n]*\0": f"is UTF-16 text or a binary file: {_TO_UTF8}",
}


def check_start(start: bytes) -> None:
    """Check by the first bytes of a file that it is CSV in UTF-8 with commas.

    Raises:
        ValueError: The file is something else. The message names the format and what to do.
    """
    for signature, advice in _SIGNATURES.items():
        if re.match(signature, start):
            raise ValueError(f"it {advice}")
    header = re.sub(rb'"[^"]*"', b'""', start).partition(b"\n")[0]
    if separator := re.match(rb"[^,]*([;\t|])[^,]*$", header):
        raise ValueError(
            f"its columns are separated by {separator[1].decode()!r}, where ',' is needed: write it with commas, and "
            "decimal numbers with a point"
        )
    try:
        header.decode()
    except UnicodeDecodeError:
        raise ValueError(f"its header is not UTF-8: {_TO_UTF8}") from None


def csv_names(file: Path, batch_bytes: int) -> list[str]:
    """Return the names of the columns.

    Args:
        file: Path of the file.
        batch_bytes: Bytes of the file that are read.

    Raises:
        ValueError: The file is not CSV.
    """
    with file.open("rb") as stream:
        start = stream.read(_HEADER_BYTES)
    check_start(start)
    try:
        return list(_open(file, batch_bytes).schema.names)
    except pa.ArrowInvalid as error:
        if not _is_unfinished_header(error):
            raise ValueError(explain(str(error), [])) from None
        return list(_open(io.BytesIO(start + b"\n"), batch_bytes).schema.names)


def read_csv(file: Path, types: Mapping[str, pa.DataType], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows. Texts that mark a missing value ("", "NA", "null", ...) become null.

    Args:
        file: Path of the file.
        types: Columns to read and their types; all columns if empty. The file must have each of them once.
        batch_bytes: Bytes of the file per batch.

    Raises:
        ValueError: The file is not CSV, or a row or value does not fit.
    """
    names = csv_names(file, batch_bytes)
    converting = pa_csv.ConvertOptions(column_types=types, include_columns=[*types], strings_can_be_null=True)
    try:
        yield from _open(file, batch_bytes, converting)
    except pa.ArrowInvalid as error:
        if not _is_unfinished_header(error):
            raise ValueError(explain(str(error), names)) from None


def may_have_leading_zeros(file: Path, chunk_bytes: int = CHUNK_BYTES) -> bool:
    """Return whether a value may begin with 0 and a digit. It is much faster than a comparison of the values.

    Args:
        file: Path of a CSV file. A value with another text before such digits counts, too.
        chunk_bytes: Bytes that are searched at once. The result does not depend on it. Default: `CHUNK_BYTES`.
    """
    end = b""
    with file.open("rb") as stream:
        while chunk := stream.read(chunk_bytes):
            data = np.frombuffer(end + chunk, np.uint8)
            before, zeros, digits = data[:-2], data[1:-1] == ord("0"), data[2:] - np.uint8(ord("0")) < 10
            # White space and quotes have codes of at most 34. The smallest 8-bit number is 0, so less than "0" wraps.
            if (zeros & digits & ((before <= ord('"')) | (before == ord(",")))).any():
                return True
            end = data[-2:].tobytes()
    return False


def _open(
    file: Path | io.BytesIO, batch_bytes: int, converting: pa_csv.ConvertOptions | None = None
) -> pa_csv.CSVStreamingReader:
    # Several threads would read far ahead, and their errors would not have the number of the row.
    reading = pa_csv.ReadOptions(use_threads=False, block_size=batch_bytes)
    return pa_csv.open_csv(file, reading, pa_csv.ParseOptions(newlines_in_values=True), converting)


def _is_unfinished_header(error: pa.ArrowInvalid) -> bool:
    """Return whether the file is a header without a line end, and so has no rows."""
    return "cannot infer number of columns" in str(error)


def explain(text: str, names: Sequence[str]) -> str:
    """Return an explanation of an error of Arrow, with advice.

    Args:
        text: Text of the error.
        names: Names of the columns.
    """
    row = re.search(r"Row #(\d+)", text)
    column = re.search(r"CSV column #(\d+)", text)
    where = f"row {row[1]}" if row else "a row"
    if column:
        where = f"column {names[int(column[1])]!r}, {where}"
    if counts := re.search(r"Expected (\d+) columns, got (\d+)", text):
        advice = "put texts with commas or line breaks in double quotes, and close each quote"
        if counts[1] == "1":
            advice = "remove all lines above the names of the columns"
        return f"{where} has {counts[2]} values and the header has {counts[1]}: {advice}"
    if value := re.search(r"invalid value '(.*)'", text, re.DOTALL):
        return (
            f"{where}: {value[1][:40]!r} is not a number, but most of the column's first values are: correct it, "
            "leave it empty, or name the column in drop_columns"
        )
    if "UTF8" in text:
        return f"{where} is not UTF-8: {_TO_UTF8}"
    if "straddl" in text:
        return "a row is too long: close each quote, and leave out columns with very long texts"
    return text
