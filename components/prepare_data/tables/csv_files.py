"""Reads CSV files as batches of rows, and explains what is wrong with a row."""

import csv
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.column_kinds import KEPT_DIGITS, KEPT_NUMBERS
from kfp_distributed.components.prepare_data.columns.missing_texts import without_trimmed
from kfp_distributed.components.prepare_data.columns.spelled_values import LOSES_DIGITS, NUMBER, are_merged
from kfp_distributed.components.prepare_data.csv_format import (
    TO_UTF8,
    USUAL_MISSING,
    CsvFormat,
    Separation,
    check_start,
)
from kfp_distributed.components.prepare_data.sources.chunks import CountRows, FilePart, ignore_count
from kfp_distributed.components.prepare_data.sources.read_rows import ReadAgain, Reject, Rows, one_batch
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.prepare_data.sources.texts import Readable, opened_csv
from kfp_distributed.components.prepare_data.tables.csv_detection import repeated_headers
from kfp_distributed.components.prepare_data.tables.csv_quotes import check_quotes, first_row_end, without_blanks
from kfp_distributed.components.prepare_data.tables.text_parts import blocks, first_read, text_parts
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks

BLOCK_BYTES = 2**23
"""Bytes of a file that are parsed together, on all processors."""


FIRST_BLOCK_BYTES = 2**20
"""Bytes of the first block, from which the kinds of the columns are known. It is read for that alone."""

HEADER_BYTES = 2**20
"""Most bytes of a header. One of ten thousand columns is shorter."""

# Most headers are shorter than this, which is read at once.
_HEADER_STEP = 2**14
# Arrow parses so many bytes on one processor.
_PARSED_BYTES = 2**20

# Arrow reads as NaN what it does not take for a missing value.
_NAN = r"[-+]?(?i:nan)(\([0-9a-zA-Z_]*\))?"
_POINT_NUMBER = r"\s*[-+]?\d*(\.\d+)+\s*"
# So many characters of a wrong value are in its error.
_SHOWN = 40
_MOST, _LEAST = str(2**63 - 1), str(-(2**63))


SeeBlock = Callable[[bytes, Sequence[tuple[int, int]], Collection[str]], None]
"""Is called with the text of a block, the positions of the quotes around its values of several lines, and the texts for
missing values that were found between blanks."""


def first_rows(file: SourcePath, csv_format: CsvFormat) -> bytes:
    """Return the rows of the first block of a file as UTF-8. The last row may be incomplete, or has a line end."""
    with opened_csv(file, csv_format) as stream:
        start = stream.read(FIRST_BLOCK_BYTES)
    is_whole = len(start) < FIRST_BLOCK_BYTES
    return start + b"\n" * is_whole if start.strip() else b""


def csv_names(file: SourcePath, csv_format: CsvFormat) -> list[str]:
    """Return the names of the columns.

    Raises:
        ValueError: The file is not CSV.
    """
    with opened_csv(file, csv_format) as stream:
        start = without_blanks(_header(stream, csv_format.separation), csv_format.separation)
    check_start(start, csv_format)
    try:
        row = start[: first_row_end(start, csv_format.separation)].decode()
    except UnicodeDecodeError:
        raise ValueError(f"its header is not UTF-8: {TO_UTF8}") from None
    try:
        names = next(csv.reader([row.rstrip("\r\n")], delimiter=csv_format.separator))
    except csv.Error as error:
        raise ValueError(
            f"its header is no row of CSV ({error}): end each row by a line feed, and close each quote"
        ) from None
    return names if csv_format.header else [f"column_{number}" for number in range(1, len(names) + 1)]


def _header(stream: Readable, separation: Separation) -> bytes:
    """Return the beginning of a text with its first row, of up to HEADER_BYTES, without the line ends before it."""
    start = b""
    while len(start) < HEADER_BYTES and (data := stream.read(_HEADER_STEP)):
        start = (start + data).lstrip(b"\r\n")
        if first_row_end(start, separation) < len(start):
            break
    return start


def read_csv(
    part: FilePart,
    types: Mapping[str, pa.DataType],
    reject: Reject,
    csv_format: CsvFormat,
    advice: Mapping[str, str] = MappingProxyType({}),
    count_rows: CountRows = ignore_count,
    see_block: SeeBlock | None = None,
) -> Iterator[Rows]:
    """Yield the rows. Texts that mark a missing value become null.

    Args:
        part: The file, or a part of it.
        types: Columns to read and their types: float64, int64, string, DIGITS or KEPT_DIGITS; all columns as texts
            if empty. The file must have each of them once.
        reject: Is called for each row that does not fit, which is left out.
        csv_format: How the file is written.
        advice: What to do about texts in columns of numbers, by column, such as "and is the label: correct it".
            Default: advice for columns whose values have been guessed to be numbers.
        count_rows: Is called with the rows of each block, and of the header. Default: they are not counted.
        see_block: Is called for each block. Default: nothing is done with it.

    Raises:
        ValueError: The file is not CSV.
        ReadAgain: Numbers of the type DIGITS have leading zeros.
    """
    names = csv_names(part.file, csv_format)
    types = types or dict.fromkeys(names, pa.string())
    # The header is row 1.
    is_start = csv_format.header and not part.begin
    first = 1 + is_start
    count_rows(is_start)
    first_size = first_read(part.begin, FIRST_BLOCK_BYTES, BLOCK_BYTES)
    with opened_csv(part.file, csv_format, part.begin, part.end) as stream:
        for block in blocks(stream, first_size, BLOCK_BYTES, csv_format.separation):
            block = without_blanks(block, csv_format.separation)
            if is_start:
                block = block.lstrip(b"\r\n")
                block, is_start = block[first_row_end(block, csv_format.separation) :], False
            if not block.strip(b"\r\n"):
                continue
            values = check_quotes(block, csv_format.separation, first) if b'"' in block else []
            parser = _Parser(block, names, types, csv_format, advice)
            try:
                rows, numbers, count = *parser.rows(), 0
                count = rows.num_rows
            except pa.ArrowInvalid:
                rows, numbers, count = parser.usable_rows(first, reject)
            if see_block:
                see_block(block, values, parser.missing_texts)
            count_rows(count)
            yield Rows(rows, first + numbers)
            first += count


def csv_parts(file: SourcePath, most: int, csv_format: CsvFormat, run: RunTasks | None = None) -> list[FilePart]:
    """Return the parts of a file, of about `most` bytes each, see `text_parts`."""
    return text_parts(file, FIRST_BLOCK_BYTES, BLOCK_BYTES, most, csv_format.encoding, csv_format.separation, run)


class _Parser:
    """Parses a block of whole rows.

    Args:
        block: The rows, as UTF-8.
        names: Names of the columns.
        types: Columns to read and their types.
        csv_format: How the rows are written.
        advice: What to do about texts in columns of numbers, by column.

    Attributes:
        missing_texts: Texts for missing values that had blanks around them.
    """

    def __init__(
        self,
        block: bytes,
        names: Sequence[str],
        types: Mapping[str, pa.DataType],
        csv_format: CsvFormat,
        advice: Mapping[str, str],
    ) -> None:
        self._block, self._names, self._types, self._format = block, names, types, csv_format
        self._advice = advice
        self._has_answers = not csv_format.answers.isdisjoint(types)
        self.missing_texts: set[str] = set()

    def rows(self) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Return the rows, and their numbers from 0.

        Raises:
            pa.ArrowInvalid: A row does not fit.
            ReadAgain: Numbers of the type DIGITS have leading zeros.
        """
        try:
            rows = self._parse(_PARSED_BYTES)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                raise
            rows = self._parse(len(self._block) + 1)  # A row has more bytes than a processor parses at once.
        for name, kind in self._types.items():
            if kind == KEPT_NUMBERS and (are_merged(rows[name]).true_count or pc.is_inf(rows[name]).true_count):
                raise pa.ArrowInvalid(f"column {name!r} may have numbers that lose digits or are too large")
        if len(self._headers(rows)):
            raise pa.ArrowInvalid("a row has the names of the columns")
        columns = [
            self._numbers_of_digits(name, self._without_missing(name, values) if self._has_answers else values)
            if _are_read_as_texts(self._types[name])
            else self._without_missing(name, values)
            for name, values in zip(rows.schema.names, rows.columns, strict=True)
        ]
        return pa.record_batch(columns, names=rows.schema.names), np.arange(rows.num_rows)

    def _parse(self, parsed_bytes: int) -> pa.RecordBatch:
        read = {
            name: pa.string() if _are_read_as_texts(kind) else _plain_type(kind) for name, kind in self._types.items()
        }
        return one_batch(
            pa_csv.read_csv(
                pa.BufferReader(self._block),
                pa_csv.ReadOptions(column_names=self._names, block_size=parsed_bytes),
                pa_csv.ParseOptions(delimiter=self._format.separator, newlines_in_values=b'"' in self._block),
                self._converting(read),
            )
        )

    def usable_rows(self, first: int, reject: Reject) -> tuple[pa.RecordBatch, NDArray[np.int64], int]:
        """Return the rows that fit, their numbers from 0, and the number of all rows.

        Blanks around numbers that Arrow does not know, such as no-break spaces, are left out.

        Args:
            first: Number of the first row of the block in the file.
            reject: Is called for each other row.

        Raises:
            ReadAgain: Numbers of the type DIGITS have leading zeros.
        """
        short: list[pa_csv.InvalidRow] = []

        def skip(row: pa_csv.InvalidRow) -> str:
            short.append(row)
            return "skip"

        table = pa_csv.read_csv(
            pa.BufferReader(self._block),
            # The numbers of the rows are known where one thread parses one block.
            pa_csv.ReadOptions(use_threads=False, column_names=self._names, block_size=len(self._block) + 1),
            pa_csv.ParseOptions(delimiter=self._format.separator, newlines_in_values=True, invalid_row_handler=skip),
            self._converting(dict.fromkeys(self._types, pa.binary())),
        )
        rows, skipped = one_batch(table), np.array([row.number - 1 for row in short], np.int64)
        numbers = np.delete(np.arange(rows.num_rows + len(short)), skipped)
        problems = {row.number - 1: ("", _explain_length(row)) for row in short}
        columns, is_usable = {}, np.ones(rows.num_rows, bool)
        is_usable[headers := self._headers(rows)] = False
        problems |= dict.fromkeys(numbers[headers].tolist(), ("", "has the names of the columns again: remove the row"))
        for name, values in zip(rows.schema.names, rows.columns, strict=True):
            columns[name], unusable = self._converted(name, values)
            for row, problem in unusable.items():
                is_usable[row] = False
                problems.setdefault(int(numbers[row]), (name, problem))
        for number in sorted(problems):
            reject(first + number, *problems[number])
        usable = pa.record_batch(columns).filter(pa.array(is_usable))
        return usable, numbers[is_usable], rows.num_rows + len(short)

    def _headers(self, rows: pa.RecordBatch) -> NDArray[np.intp]:
        if not self._format.header:
            return np.empty(0, np.intp)
        return repeated_headers(rows, self._names[0], {*self._format.trimmed_missing})

    def _converting(self, types: Mapping[str, pa.DataType]) -> pa_csv.ConvertOptions:
        return pa_csv.ConvertOptions(
            column_types=types,
            include_columns=[*types],
            strings_can_be_null=not self._has_answers,
            null_values=self._format.null_values(self._block),
            decimal_point=self._format.decimal,
        )

    def _converted(self, name: str, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return a column in its type, with null in the place of values that do not fit, and their problems by row."""
        texts, problems = _texts(values)
        texts = self._without_missing(name, texts)
        kind = self._types[name]
        if kind == pa.string():
            return texts, problems
        plain = with_decimal_points(pc.utf8_trim_whitespace(texts), self._format)
        are_integers = kind in (KEPT_DIGITS, pa.int64())
        is_number = pc.fill_null(_are_integers(plain) if are_integers else _are_numbers(plain, or_nan=True), True)
        nothing = "whole number of 64 bits" if kind == KEPT_DIGITS else "number"
        for row in np.flatnonzero(~is_number.to_numpy(zero_copy_only=False)).tolist():
            text = texts[row].as_py()
            advice = self._advice.get(name) or self._advice_for_guessed(name, text)
            problems[row] = f"is {text[:_SHOWN]!r}, which is no {nothing}, {advice}"
        plain = pc.if_else(is_number, plain, None)
        if _are_read_as_texts(kind):
            return self._numbers_of_digits(name, plain), problems
        numbers = plain.cast(_plain_type(kind))
        if kind == KEPT_NUMBERS:
            advice = "correct it, leave it empty"
            advice += "" if name in self._advice else f', set columns to {{{name!r}: "text"}}'
            for are_wrong, why in (
                (pc.and_(pc.match_substring_regex(plain, r"^[-+]?\d+$"), are_merged(numbers)), LOSES_DIGITS),
                (pc.and_(pc.match_substring_regex(plain, r"\d"), pc.is_inf(numbers)), "too large for 64-bit floats"),
            ):
                for row in np.flatnonzero(pc.fill_null(are_wrong, False).to_numpy(zero_copy_only=False)).tolist():
                    problems[row] = f"is {texts[row].as_py()[:_SHOWN]!r}, {why}: {advice}"
        return numbers, problems

    def _without_missing(self, name: str, values: pa.Array) -> pa.Array:
        """Return values with null in the place of texts for missing values that Arrow does not know.

        These have blanks around them, or are in a table with columns of answers, of which Arrow reads all texts.
        """
        if not pa.types.is_string(values.type):
            return values
        missing = self._format.missing_in(name)
        texts, found = without_trimmed(values, missing, with_blanks=not self._has_answers)
        self.missing_texts |= found
        return texts

    def _advice_for_guessed(self, name: str, text: str) -> str:
        """Return what to do about a text in a column whose first values are numbers."""
        choices = ["correct it", "leave it empty"]
        if self._format.decimal == "." and re.fullmatch(r"\s*[-+]?\d+,\d+\s*", text):
            choices.append('set csv_format to {"decimal": ","} if all numbers have decimal commas')
        if len(text) <= _SHOWN and not re.search(r"\d", text) and text not in USUAL_MISSING:
            # A sign or word that replaces a number often means that it is unknown.
            missing = json.dumps([*self._format.missing, text], ensure_ascii=False)
            choices.append(f'set csv_format to {{"missing": {missing}}} if it means a missing value')
        if self._format.decimal == "," and re.fullmatch(_POINT_NUMBER, text):
            choices.append("write it with a decimal comma, or without points if they separate thousands")
        is_kept = self._types[name] in (KEPT_DIGITS, KEPT_NUMBERS)
        choices.append(f'set columns to {{{name!r}: "{"text" if is_kept else "category"}"}} if the column has texts')
        return f"but most of the column's first values are: {', '.join(choices)}, or name the column in drop_columns"

    def _numbers_of_digits(self, name: str, texts: pa.Array) -> pa.Array:
        """Return the numbers of texts.

        Raises:
            pa.ArrowInvalid: A text is no number.
            ReadAgain: Numbers of the type DIGITS have leading zeros, and all are digits.
        """
        trimmed, kind = pc.utf8_trim_whitespace(texts), self._types[name]
        if not pa.types.is_dictionary(kind):
            # Arrow knows hexadecimal numbers, too.
            return with_decimal_points(pc.replace_substring_regex(trimmed, "[xX]", "·"), self._format).cast(kind)
        may_be_code = pc.and_(pc.starts_with(trimmed, "0"), pc.greater(pc.binary_length(trimmed), 1))
        if may_be_code.true_count:
            codes = pc.filter(trimmed, pc.and_(may_be_code, pc.match_substring_regex(trimmed, r"^0\d+$")))
            if len(codes):
                raise ReadAgain({name: codes[0].as_py()})
        return with_decimal_points(pc.replace_substring_regex(trimmed, "[xX]", "·"), self._format).cast(kind.value_type)


def with_decimal_points(texts: pa.StringArray, csv_format: CsvFormat) -> pa.StringArray:
    """Return numbers with a decimal point. A text that has one where decimals have commas is no number."""
    if csv_format.decimal == ".":
        return texts
    return pc.replace_substring(pc.replace_substring(texts, ".", "·"), csv_format.decimal, ".")


def numbers_are_integers(texts: pa.StringArray) -> bool:
    """Return whether all texts that are numbers are integers of 64 bits."""
    plain = pc.utf8_trim_whitespace(texts.drop_null())
    return not pc.and_(_are_numbers(plain), pc.invert(_are_integers(plain))).true_count


def _are_read_as_texts(kind: pa.DataType) -> bool:
    """Return whether a column is read as texts, because not all that Arrow takes for a number is one."""
    return bool((pa.types.is_dictionary(kind) and kind != KEPT_NUMBERS) or pa.types.is_integer(kind))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _are_numbers(texts: pa.StringArray, *, or_nan: bool = False) -> pa.BooleanArray:
    return pc.match_substring_regex(texts, rf"^({NUMBER}|{_NAN})$" if or_nan else rf"^{NUMBER}$")


def _are_integers(texts: pa.StringArray) -> pa.BooleanArray:
    """Return which texts are integers of 64 bits."""
    are_integers = pc.match_substring_regex(texts, r"^-?\d{1,18}$")
    # Texts of one length are in the order of their numbers.
    for form, limit in ((r"^\d{19}$", _MOST), (r"^-\d{19}$", _LEAST)):
        is_in_range = pc.and_(pc.match_substring_regex(texts, form), pc.less_equal(texts, limit))
        are_integers = pc.or_(are_integers, is_in_range)
    return are_integers


def _texts(values: pa.BinaryArray) -> tuple[pa.StringArray, dict[int, str]]:
    """Return bytes as texts, with null in the place of bytes that are not UTF-8, and the problems of these by row."""
    try:
        return values.cast(pa.string()), {}
    except pa.ArrowInvalid:
        texts, problems = values.to_pylist(), {}
        for row, text in enumerate(texts):
            try:
                texts[row] = text and text.decode()
            except UnicodeDecodeError:
                texts[row], problems[row] = None, f"is not UTF-8: {TO_UTF8}"
        return pa.array(texts, pa.string()), problems


def _explain_length(row: pa_csv.InvalidRow) -> str:
    advice = "put texts with separators or line breaks in double quotes, and close each quote"
    if row.actual_columns == row.expected_columns + 1:
        advice += ", remove a separator at the end of the rows, or name the first column, such as the row names of R"
    if row.actual_columns == 1:
        advice += ", or remove the line if it is no row"
    if row.expected_columns == 1:
        advice = "remove all lines above the names of the columns, or put texts with separators in double quotes"
    return f"has {row.actual_columns} values and the header has {row.expected_columns}: {advice}"
