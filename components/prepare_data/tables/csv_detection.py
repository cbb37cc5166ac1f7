"""Finds by the first rows of a CSV file how it is written, where csv_format does not say it (pure)."""

import json
import re
from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import compress, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.dates import family_of
from kfp_distributed.components.prepare_data.columns.spelled_values import FINITE, NUMBER, number_names
from kfp_distributed.components.prepare_data.csv_format import CsvFormat

_SEPARATORS = "|;,\t"
_CELL = rb'(?m)(?:^|[;\t])"? {0,20}([-+]?%b(?:[eE][-+]?\d+)?) {0,20}"?(?=[;\t\r\n]|\Z)'
# Points and commas between each three digits may separate thousands.
_THOUSANDS = rb"[1-9]\d{0,2}(?:%b\d{3})+"
# So many lines tell the separator.
_LINES = 100
# Names of so many columns that are increasing numbers are no row.
_INCREASING = 3
_HAS_COMMAS = re.compile(rb"\D,|,\D")
_OF_TEXT, _OF_ROWS = re.compile(rb",\s"), re.compile(rb",(?!\s)")
# With fewer lines, one of another form tells nothing.
_HEAD_LINES = 4
_YEARS = range(1900, 2101)
_SHOWN = 5


def detect_format(
    start: bytes, csv_format: CsvFormat, *, may_be_blanks: bool, decimal: str = ""
) -> tuple[CsvFormat, list[str]]:
    """Return how a file is written, and a line for each thing that csv_format has not said.

    Args:
        start: The beginning of the text in UTF-8, without a byte order mark.
        csv_format: What the user says.
        may_be_blanks: Whether blanks may separate the columns. A CSV file of one column may have texts with blanks.
        decimal: Decimal sign of files that do not show it. Default: "", a point.

    Raises:
        ValueError: The first line is one for Excel.
    """
    lines: list[str] = []
    # The last line may be incomplete.
    rows = [row for row in start[: start.rfind(b"\n") + 1 or None].splitlines() if row.strip()]
    if rows and (excel := re.fullmatch(rb'"?sep=([^"])"?\s*', rows[0])):
        is_set = "separator" in csv_format.given
        raise ValueError(
            f"its first line {rows[0].decode()!r} tells Excel the separator and has no names: remove the line"
            + ("" if is_set else f', and set csv_format to {{"separator": {json.dumps(excel[1].decode())}}}')
        )
    if csv_format.separator == " ":
        csv_format = replace(csv_format, separator="\t", blanks="separate")
    elif "separator" not in csv_format.given and rows:
        found = _separator(rows[:_LINES], csv_format.separator, may_be_blanks=may_be_blanks)
        if found == " ":
            csv_format = replace(csv_format, separator="\t", blanks="separate")
            lines.append("the columns are separated by blanks")
        elif found != csv_format.separator:
            csv_format = replace(csv_format, separator=found)
            lines.append(f"the columns are separated by {found!r}, as its first rows show")
    is_open = csv_format.separator in (";", "\t") and csv_format.blanks != "separate"
    if is_open and "decimal" not in csv_format.given and (reason := _reason_for_commas(start, decimal)):
        csv_format = replace(csv_format, decimal=",")
        lines.append(f"numbers have decimal commas, {reason}")
    separator, values = re.escape(csv_format.separator.encode()), b"\n".join(rows[1:])
    other = separator + rb"(?! |\r?$|" + separator + b")"
    if re.search(separator + b" ", values) and not re.search(other, values, re.M):
        csv_format = replace(csv_format, blanks="skip")
        lines.append("blanks around values are left out, because one follows each separator")
    return csv_format, lines


def _reason_for_commas(start: bytes, usual: str) -> str:
    """Return why numbers have decimal commas: more values have one than a decimal point. "" if they have points.

    Args:
        start: The first rows.
        usual: Decimal sign of the source if there is neither; "" for a point.

    Raises:
        ValueError: All commas may separate thousands.
    """

    def cells(sign: bytes, *, of_thousands: bool = False) -> list[bytes]:
        thousands = _THOUSANDS % re.escape(sign)
        number = thousands if of_thousands else rb"(?!%b\b)\d*%b\d+" % (thousands, re.escape(sign))
        return re.findall(_CELL % number, start)

    commas, points = len(cells(b",")), len(cells(b"."))
    if not commas and not points and usual == ",":
        return "as in the source that comes first, because its first rows do not tell"
    if not commas and not points and (unclear := cells(b",", of_thousands=True)):
        shown = unclear[0].decode()
        raise ValueError(
            f'it has numbers such as {shown}: if commas are decimal ones, set csv_format to {{"decimal": ","}}. If '
            f'they separate thousands, write {shown.replace(",", "")}, or set "decimal" to "." to read texts'
        )
    return "as its first rows show" if commas > points else ""


def _separator(rows: Sequence[bytes], usual: str, *, may_be_blanks: bool) -> str:
    """Return the character between the columns; a blank stands for any number of blanks."""
    plain = [re.sub(rb'"[^"]*"', b'""', row) for row in rows]
    columns = {len(row.split()) for row in plain}
    are_blanks = may_be_blanks and len(columns) == 1 and columns != {1} and len(plain) > 1
    # A line above the rows may have other characters, but the name of a single column is one word.
    may_be_title = len(plain) >= _HEAD_LINES and re.search(rb"[,;\t|]|\w\W+\w", plain[0])
    for lines in (plain, plain[1:]) if may_be_title else (plain,):
        counts = {separator: {row.count(separator.encode()) for row in lines} for separator in _SEPARATORS}
        found = {separator: max(numbers) for separator, numbers in counts.items() if len(numbers) == 1 and max(numbers)}
        # One tab may be among many blanks, which make the columns as wide as their widest values.
        if are_blanks and max(columns) > found.get("\t", 0) + 1 and any(b"  " in row for row in lines):
            found.pop("\t", None)
        # Commas of numbers separate no columns, and text has a blank after each comma.
        others = [separator for separator in found if separator != ","]
        data = b"\n".join(lines[1:] or lines)
        if others and (not _HAS_COMMAS.search(data) or (_OF_TEXT.search(data) and not _OF_ROWS.search(data))):
            found.pop(",", None)
        if found:
            # Values may have other separators, but rarely more of them than there are columns, or tabs.
            return max(found, key=lambda separator: (found[separator], _SEPARATORS.index(separator)))
        if are_blanks:
            return " "
    # Rows that do not fit are no reason to take another separator than that of the header.
    of_header = re.match(rb"[^,;\t|]*([,;\t|])", plain[0])
    return of_header[1].decode() if of_header and usual.encode() not in plain[0] else usual


class _Comparison(NamedTuple):
    """The first value of a column beside those below.

    Attributes:
        occurs: Whether it occurs below, where values occur again.
        form: Form of the values below, see `_form_of`.
        own_form: Its own.
        are_few: Whether the values below occur twice or more on average.
        name: The value.
    """

    occurs: bool
    form: str
    own_form: str
    are_few: bool
    name: str

    @property
    def is_name(self) -> bool:
        """Whether the column says that the first row has names. Signs such as `?` may stand for a missing value."""
        is_word = re.search(r"[^\W_]", self.name) is not None
        return is_word and not self.occurs and (self.form != self.own_form if self.form else self.are_few)


def _compared(rows: pa.RecordBatch) -> list[_Comparison]:
    found = []
    for column in rows.columns:
        values = column[1:].drop_null()
        if not column[0].is_valid or not len(values):
            continue
        name, values = (number_names(texts, of_any_form=True) for texts in (column[:1], values))
        different = values.unique()
        # A text that occurs once more tells nothing where no text below occurs again, as in a list of words.
        occurs = bool(pc.is_in(name, different)[0].as_py()) and len(different) < len(values)
        are_few = 2 * len(different) <= len(values)
        found.append(_Comparison(occurs, _form_of(values), _form_of(name), are_few, name[0].as_py()))
    return found


def check_header(rows: pa.RecordBatch) -> list[str]:
    """Check that the first row of a file has names, and return a line if these are numbers.

    It looks like data if it has numbers in columns of numbers, dates in columns of dates, or values that occur again
    below, and no column says otherwise: by a word above numbers or dates, by a word above few values that occur again
    and again, or by numbers that increase like years.

    Args:
        rows: The first rows as texts, the first of which may be a header. Numbers have decimal points.

    Raises:
        ValueError: The first row looks like data.
    """
    columns = _compared(rows)
    if any(column.is_name for column in columns):
        return []
    again = any(column.occurs or column.form == column.own_form not in ("number", "") for column in columns)
    numbers = [float(column.name) for column in columns if column.form == column.own_form == "number"]
    if not (again or numbers):
        return []
    if _is_sequence(numbers, again=again):
        return [
            f"the first row is taken for the names of the columns: {_shown(rows)}. If it is data, set csv_format to "
            '{"header": false}'
        ]
    raise ValueError(
        f"its first row looks like data and not like the names of columns: {_shown(rows)}. If it is data, set "
        'csv_format to {"header": false}: the columns are then column_1, column_2, … (also for label_column). If it '
        'has the names, set csv_format to {"header": true}'
    )


def repeated_headers(rows: pa.RecordBatch, first: str, missing: Set[str]) -> NDArray[np.intp]:
    """Return which rows have the names of their columns again, as in files that were joined.

    One column alone tells nothing, because a word may be its name and a value. Numbers are names, too, such as years,
    but one value must be a text. Blanks around the names do not matter. Nor does the case of their letters where a name
    has three letters in a row: other words in capital letters are usually values.

    Args:
        rows: Rows as texts, bytes and numbers.
        first: The first name of the file. A byte order mark may be before it.
        missing: Names that are null in the rows, because they are texts for a missing value.
    """
    found = np.arange(rows.num_rows)
    are_texts = [pa.types.is_string(kind) or pa.types.is_binary(kind) for kind in rows.schema.types]
    names = [*compress(rows.schema.names, are_texts)]
    if rows.num_columns < 2 or not {*names} - missing:
        return found[:0]
    in_any_case = any(re.search(r"[^\W\d_]{3}", name) for name in {*names} - missing)
    # Most rows differ in the first column that is compared.
    for name in sorted(rows.schema.names, key=lambda name: (name not in names, name.strip() in missing)):
        if not len(found):
            break
        values = rows[name].take(pa.array(found)) if len(found) < rows.num_rows else rows[name]
        if name in names:
            are_equal = _are_name(values, name, may_have_mark=name == first, in_any_case=in_any_case)
        elif re.fullmatch(FINITE, name):
            are_equal = pc.equal(values, float(name))
        else:
            are_equal = pa.nulls(len(values), pa.bool_())
        found = found[pc.fill_null(are_equal, name.strip() in missing).to_numpy(zero_copy_only=False)]
    return found


def _are_name(values: pa.Array, name: str, *, may_have_mark: bool, in_any_case: bool) -> pa.BooleanArray:
    """Return which values are a name with blanks around it."""
    mark = "(?:\ufeff)?" if may_have_mark else ""
    pattern = rf"^{mark}\s*{re.escape(name.strip())}\s*$"
    return pc.match_substring_regex(values, pattern, ignore_case=in_any_case)


def check_no_header(rows: pa.RecordBatch) -> None:
    """Check that the first row of a file, which is data as the user says, does not have names.

    It has names if it has texts above all columns of numbers or dates, and no value that occurs again below.

    Args:
        rows: The first rows as texts.

    Raises:
        ValueError: The first row has names.
    """
    columns = _compared(rows)
    formed = [column for column in columns if column.form]
    are_names = bool(formed) and all(column.is_name and not column.own_form for column in formed)
    if are_names and not any(column.occurs for column in columns):
        raise ValueError(
            f'its first row has the names of columns: {_shown(rows)}. Leave "header": false out of csv_format'
        )


def _shown(rows: pa.RecordBatch) -> str:
    cells = [column[0].as_py() for column in rows.columns[:_SHOWN]]
    shown = json.dumps(cells, ensure_ascii=False)[1:-1]
    return f"{shown}, …" if rows.num_columns > _SHOWN else shown


def _form_of(texts: pa.StringArray) -> str:
    """Return "number", a form of dates, or a shape such as "9:9", "9%" or "9-a-9", if all texts are such; else ""."""
    if pc.all(pc.match_substring_regex(texts, rf"^\s*{NUMBER}\s*$")).as_py():
        return "number"
    family, are_dates = family_of(texts)
    if family and are_dates.true_count == len(texts):
        return family[0]
    shapes = pc.replace_substring_regex(pc.replace_substring_regex(texts, r"\d+", "9"), "[a-zA-Z]+", "a").unique()
    # Names such as x1 have digits, too, but few begin with one.
    return shapes[0].as_py() if len(shapes) == 1 and re.match(r"\W*9", shapes[0].as_py()) else ""


def _is_sequence(numbers: Sequence[float], *, again: bool) -> bool:
    """Return whether numbers are names: counted from 0 or 1, years, three that increase, or with equal steps.

    Args:
        numbers: The numbers of the first row.
        again: Whether values of that row occur again below, so that only numbers that are counted are names.
    """
    steps = [after - before for before, after in pairwise(numbers)]
    if not numbers or any(step <= 0 for step in steps):
        return False
    if steps and numbers[0] in (0, 1) and numbers[-1] == numbers[0] + len(steps):
        return True
    are_whole = all(number.is_integer() for number in numbers)
    has_equal_steps = len(steps) > 1 and len({*steps}) == 1
    is_increasing = are_whole and len(numbers) >= _INCREASING
    return not again and (all(number in _YEARS for number in numbers) or has_equal_steps or is_increasing)
