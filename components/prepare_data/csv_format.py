"""How CSV files are written, and what shows that a file is written in another way (pure)."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow.csv as pa_csv

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
USUAL_MISSING = (*pa_csv.ConvertOptions().null_values, "None", "<NA>")
"""Texts that pandas takes for missing values."""
# A text of blanks alone is empty. Databases fill a column with up to 255. Arrow needs as long for so many missing texts
# of each column as for 10,000 numbers.
_BLANKS, _MOST_BLANKS = 64, 255
# So many lines below a first line tell whether it has their columns.
_COMPARED_LINES = 5
# So many characters of a line are in an error.
_SHOWN = 40


class Separation(NamedTuple):
    """What separates the values of a row.

    Attributes:
        separator: Character between the columns.
        blanks: "skip": blanks around values are no part of them. "separate": blanks separate the columns, too.
    """

    separator: str = ","
    blanks: Literal["", "skip", "separate"] = ""


COMMAS = Separation()


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
        blanks: "skip": blanks around values are no part of them. "separate": blanks separate the columns.
        answers: Columns in which the usual texts are values. The step itself sets them, for rows of language models.
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    header: bool = True
    missing: tuple[str, ...] = ()
    usual_missing: bool = True
    given: frozenset[str] = frozenset()
    blanks: Literal["", "skip", "separate"] = ""
    answers: frozenset[str] = frozenset()

    @property
    def separation(self) -> Separation:
        """What separates the values of a row."""
        return Separation(self.separator, self.blanks)

    @property
    def is_utf(self) -> bool:
        """Whether the encoding is one of UTF, in which a text of another one is rarely read without an error."""
        return codecs.lookup(self.encoding).name.startswith("utf")

    def null_values(self, rows: bytes) -> list[str]:
        """Return the texts that stand for a missing value in some rows."""
        longest = 0 if b" " not in rows else _BLANKS if b" " * (_BLANKS + 1) not in rows else _MOST_BLANKS
        return [*self.trimmed_missing, *(" " * length for length in range(1, longest + 1)), *self.missing]

    @property
    def trimmed_missing(self) -> list[str]:
        """The texts that stand for a missing value, without blanks around them."""
        return self.missing_in("")

    def missing_in(self, name: str) -> list[str]:
        """Return the texts that stand for a missing value in a column, without blanks around them."""
        usual = USUAL_MISSING if self.usual_missing and name not in self.answers else [""]
        return [*usual, *(text.strip() for text in self.missing)]


def parse_csv_format(values: Mapping[str, Any]) -> CsvFormat:
    """Check the parameter `csv_format`.

    Raises:
        ValueError: A key or value is not allowed. The message names it and what is allowed.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"csv_format is {values!r}: it must be a dict of {', '.join(_ALLOWED)}")  # noqa: TRY004
    for key, value in values.items():
        if key not in _ALLOWED:
            raise ValueError(f"csv_format has the key {key!r}: allowed are {', '.join(_ALLOWED)}")
        is_allowed, allowed = _ALLOWED[key]
        if not is_allowed(value):
            raise ValueError(f"csv_format: {key} is {value!r}: it must be {allowed}")
    usual = {"separator": ";"} if values.get("decimal") == "," else {}
    checked: dict[str, Any] = {**usual, **values, "missing": tuple(values.get("missing", ()))}
    csv_format = CsvFormat(**checked, given=frozenset(values))
    if csv_format.separator == csv_format.decimal:
        raise ValueError(f"csv_format: separator and decimal are both {csv_format.decimal!r}: name two characters")
    return csv_format


def _is_separator(value: object) -> bool:
    return isinstance(value, str) and len(value) == 1 and value.isascii() and value not in '"\r\n'


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


def _is_encoding(value: object) -> bool:
    try:
        return isinstance(value, str) and codecs.lookup(value)._is_text_encoding
    except LookupError:
        return False


_ALLOWED: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "separator": (_is_separator, 'one character, such as ";" or "\\t"; " " stands for any number of blanks'),
    "decimal": (lambda value: value in (".", ","), '"." or ","'),
    "encoding": (_is_encoding, 'one that Python knows, such as "utf-8", "latin-1" or "utf-16"'),
    "header": (_is_boolean, "true or false"),
    "missing": (_are_texts, 'a list of texts, such as ["?", "-"]'),
    "usual_missing": (_is_boolean, "true or false"),
}
"""Whether a value of each key is allowed, and what is."""


def utf8_line(start: bytes, encoding: str) -> str:
    """Return a line if a text was read in another encoding than its own, as it shows; else "".

    Args:
        start: The beginning of the text, as UTF-8.
        encoding: The encoding in which it was read, none of UTF.
    """
    text = start.decode(errors="ignore")
    if text.isascii():
        return ""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text.encode(encoding))
    except UnicodeError:
        wrong = re.search("[\x80-\x9f]", text)
        if not wrong:
            return ""
        return f'it has control characters such as {wrong[0]!r}: set the encoding in csv_format to "cp1252"'
    shown = re.findall(r"[^\x00-\x7f]+", text)[0]
    right = shown.encode(encoding).decode(errors="ignore")
    return f"it is UTF-8, so that {right!r} is read as {shown!r}: leave the encoding {encoding!r} out of csv_format"


NO_HEADER = "does not have the columns of the lines below it: remove the line if it is a comment or title"
"""What is wrong with a line of `line_above_rows`, and what to do."""


def line_above_rows(start: bytes, csv_format: CsvFormat) -> str:
    """Return the first line of a text if it has no separator and the lines below it have some; else "".

    Args:
        start: The beginning of the text. Its last line may be incomplete.
        csv_format: How the text is written.
    """
    first, *below = re.sub(rb'"[^"]*"', b'""', start).splitlines()[: _COMPARED_LINES + 2] or [b""]
    separator, signs = csv_format.separator.encode(), {*re.findall(rb"[,;\t|]", first)}
    below = [line for line in below if line.strip()][:_COMPARED_LINES]
    counts = {line.count(separator) for line in below}
    # Separators of the header's own occur as often below it.
    are_own = any({line.count(sign) for line in below} == {first.count(sign)} for sign in signs)
    if separator in first or len(counts) != 1 or 0 in counts or are_own:
        return ""
    return start.splitlines()[0].decode(errors="replace")[:_SHOWN]


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
        if title := line_above_rows(start, csv_format):
            raise ValueError(f"its first line {title!r} {NO_HEADER}")
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
