"""Warnings about the data: missing values, constant columns, unusable texts, leakage, duplicates (pure)."""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kfp_distributed.components.prepare_data.columns.date_columns import PlainDates
from kfp_distributed.components.prepare_data.columns.look_alikes import (
    EXAMPLE_LENGTH,
    by_look,
    difference,
    look,
    pairs_alike,
    shown_apart,
    shown_with,
)
from kfp_distributed.components.prepare_data.columns.row_numbers import INDEX_NAMES, WholeNumbers
from kfp_distributed.components.prepare_data.columns.spelled_values import FINITE
from kfp_distributed.components.prepare_data.report.duplicates import Duplicates
from kfp_distributed.components.prepare_data.report.leakage import SUSPICIOUS_REDUCTION, Predictor
from kfp_distributed.components.prepare_data.report.precision import Precision
from kfp_distributed.components.prepare_data.report.profile import MAXIMUM_FEATURES, has_common_statistics
from kfp_distributed.components.prepare_data.report.vocabulary import Unseen
from kfp_distributed.components.prepare_data.sources.read_rows import MAXIMUM_LINES, bounded
from kfp_distributed.storage.dataset import Column

EXACT_NUMBERS = 1 << 24
"""Beyond it a 32-bit float, which a dataset's numbers are, has no value for each whole number."""

_LARGEST_TRAINED = 1e37
"""Differences of larger numbers from their mean, or products with weights, can exceed the range of 32-bit floats."""

_MAXIMUM_LEAKS = 10
_MAXIMUM_NAMES = 4
# With more distinct texts than this share of the rows, each value is in fewer than two rows on average.
_DISTINCT_SHARE = 0.5
# Fewer distinct texts cause no warning. In a small file half of them may differ by chance.
_MINIMUM_DISTINCT = 10
# The same share makes a CSV column numeric.
_NUMBER_SHARE = 0.5
# A sign or currency, digits in groups, a decimal comma or point, a unit; no date, time or code with letters before it,
# and no ordinal, such as 1st. Leading zeros make a code, which is a text.
_TEXT_NUMBER = (
    r"(?!\s*0\d+\s*$|\s*\d*(?:1st|2nd|3rd|\dth)\s*$)"
    r"\s*[-+\u2212]?[$€£¥]?\s?\d+([.,'\u2019 \u00a0\u2007\u2009\u202f]\d{3})*([.,]\d+)?\s?([%$€£¥]|[^\W\d_]{1,12})?\s*"
)
_THOUSANDS = r"\s*[-+]?[1-9]\d{0,2}(\.\d{3})+\s*"
_COMMA_NUMBER = r"\s*[-+]?\d+(,\d+)?\s*"


@dataclass
class ColumnCounts:
    """Counts of one column.

    Attributes:
        kind: "number", "category", "tensor" or "label".
        missing: Rows without a value; of a tensor, rows in which an element has none.
        values: Rows of each value of a category.
        lowest: The lowest number.
        highest: The highest number.
        precision: Comparison of the numbers of a column with 32-bit floats.
        whole_numbers: Whether the numbers of a column are like IDs.
        plain_dates: Whether they are like dates.
        is_date: Whether the numbers are days of dates.
        is_declared: Whether the parameter `columns` decides what the values are.
    """

    kind: str
    missing: int = 0
    values: Counter[str] = field(default_factory=Counter)
    lowest: float = math.inf
    highest: float = -math.inf
    precision: Precision = field(default_factory=Precision)
    whole_numbers: WholeNumbers = field(default_factory=WholeNumbers)
    plain_dates: PlainDates = field(default_factory=PlainDates)
    is_date: bool = False
    is_declared: bool = False

    def merge(self, other: "ColumnCounts") -> None:
        """Add the counts of the rows that follow."""
        self.missing += other.missing
        self.values.update(other.values)
        self.lowest, self.highest = min(self.lowest, other.lowest), max(self.highest, other.highest)
        self.precision.merge(other.precision)
        self.whole_numbers.merge(other.whole_numbers)
        self.plain_dates.merge(other.plain_dates)

    def is_constant(self, rows: int) -> bool:
        """Return whether all values are equal.

        A missing number is no other value, because trainers use the mean there. A missing category is one.
        """
        if self.kind == "category":
            return len(self.values) == 1 and not self.missing
        return self.lowest == self.highest and self.missing < rows


def column_warnings(
    columns: dict[str, ColumnCounts],
    rows: int,
    filled: Collection[str] = (),
    *,
    is_like: bool = False,
    decimal: str = ".",
) -> list[str]:
    """Return one line for each problem of the source's inputs.

    Args:
        columns: The inputs.
        rows: Rows of the source.
        filled: Columns of numbers whose gaps are filled with the median. Default: none.
        is_like: Whether another dataset decides the inputs and what becomes of missing values. Default: the parameters
            do.
        decimal: Character before the fraction of a number in the source. Default: a point.
    """
    return bounded(
        [
            line
            for name, counts in columns.items()
            for line in _warnings_of_column(
                name, counts, rows, is_filled=name in filled, is_like=is_like, decimal=decimal
            )
        ]
    )


def scaling_warnings(columns: Sequence[Column], *, is_like: bool = False) -> list[str]:
    """Return one line for each tensor that is too large for a mean and deviation of each element.

    Args:
        columns: The inputs.
        is_like: See `column_warnings`.
    """
    advice = ". If they have different units, scale them in the source or write smaller arrays" * (not is_like)
    return [
        f"column {column.name!r} has {math.prod(column.shape):,} elements in a row, more than {MAXIMUM_FEATURES:,}: "
        f"trainers scale all of them by one mean and standard deviation{advice}"
        for column in columns
        if has_common_statistics(column)
    ]


def leakage_warnings(predictors: Sequence[Predictor], *, is_like: bool = False) -> list[str]:
    """Return one line for each column that predicts the label nearly always.

    Args:
        predictors: The columns, the best predictor first.
        is_like: See `column_warnings`.
    """
    advice = ". If its value is only known after the label is (leakage), name it in drop_columns" * (not is_like)
    lines = [
        f"column {predictor.column!r} alone predicts the label of {predictor.accuracy:.1%} of the rows; the most "
        f"frequent class is right for {predictor.majority_accuracy:.1%}{advice}"
        for predictor in predictors
        if predictor.error_reduction >= SUSPICIOUS_REDUCTION
    ]
    hidden = len(lines) - _MAXIMUM_LEAKS
    return lines if hidden <= 0 else [*lines[:_MAXIMUM_LEAKS], f"… and {hidden} more such columns"]


def duplicate_warnings(duplicates: Sequence[Duplicates], collapsed: Sequence[str] = ()) -> list[str]:
    """Return one line for each pair of splits that have rows in common.

    Args:
        duplicates: The rows of each pair of splits.
        collapsed: Columns whose different numbers become equal as 32-bit floats, which can make rows equal.
    """
    advice = "Remove duplicates from the source"
    if collapsed:
        names = ", ".join(map(repr, collapsed[:_MAXIMUM_NAMES])) + ", …" * (len(collapsed) > _MAXIMUM_NAMES)
        advice = (
            f"They can differ in the source, in numbers that become equal as 32-bit floats ({names}): change these "
            "first, and remove no row that differs"
        )
    return [
        f"{pair.share:.1%} of the rows of the {pair.split} split ({'' if pair.is_exact else 'about '}{pair.rows:,}) "
        f"have the same inputs as rows of the {pair.other} split, so that scores on them can be too good. "
        f"{advice}"
        for pair in duplicates
        if pair.rows
    ]


def unseen_warnings(unseen: Sequence[Unseen], *, is_like: bool = False) -> list[str]:
    """Return one line for each category with values that no training row has; first those of no use in a split.

    Args:
        unseen: The categories.
        is_like: See `column_warnings`.
    """
    lines = [
        f"column {category.column!r} has {len(category.values):,} value{'s' * (len(category.values) > 1)} in no "
        f"training row, such as {_example(category)}. "
        + _lost_splits(category, is_like=is_like)
        + f"Validation and test rows with them ({category.rows:,}) count as rows without a value, as new values will "
        "when the model is used"
        for category in sorted(unseen, key=lambda category: not category.splits)
    ]
    hidden = len(lines) - MAXIMUM_LINES
    return lines if hidden <= 0 else [*lines[:MAXIMUM_LINES], f"… and {hidden} more such columns"]


def _example(category: Unseen) -> str:
    """Return a value for a line, if possible one that looks like a value of a training row."""
    known = by_look(category.known)
    return shown_with(max(category.values, key=lambda value: look(value) in known), known)


def _warnings_of_column(
    name: str, counts: ColumnCounts, rows: int, *, is_filled: bool, is_like: bool, decimal: str
) -> list[str]:
    lines, present = [], counts.values.total()
    if counts.missing == rows:
        advice = "write it as the training rows have it" if is_like else "name it in drop_columns"
        lines.append(f"column {name!r} has no value in any of {rows:,} rows: {advice}")
    elif counts.missing:
        lines.append(
            f"column {name!r} has no value in {counts.missing:,} of {rows:,} rows: they "
            + _goal(counts.kind, is_filled=is_filled, is_like=is_like)
        )
    lines += _warnings_of_numbers(name, counts, rows, is_like=is_like)
    if counts.is_constant(rows) and not counts.precision.collapses():
        present_rows = rows - counts.missing
        lines.append(
            f"column {name!r} has the same value in all {present_rows:,} rows"
            f"{' that have one' if counts.missing else ''}: a model learns nothing from it"
            + ". Name it in drop_columns"
            * (not is_like)
        )
    # A declared column is what the user says.
    if numbers := () if counts.is_declared else text_numbers(counts.values):
        advice = _number_advice(name, counts.values, numbers, decimal)
        lines.append(
            f"column {name!r} has numbers in text form, such as {numbers[0][:EXAMPLE_LENGTH]!r}, and becomes a "
            f"category of {len(counts.values):,} values. If they are quantities, {advice}"
        )
    elif len(counts.values) >= max(_MINIMUM_DISTINCT, _DISTINCT_SHARE * present):
        lines.append(
            f"column {name!r} has {len(counts.values):,} different texts in {present:,} rows, of the form "
            f"{text_form(next(iter(counts.values)))!r} (a date, an ID, free text?): a model learns nothing from a "
            "value that occurs once"
            + f". Name it in drop_columns, or write numbers or fewer categories in the source. If they are dates, set "
            f'columns to {{{name!r}: "date FORM"}}, with a format of strptime' * (not is_like)
        )
    elif alike := next(pairs_alike(counts.values), None):
        lines.append(
            f"column {name!r} has the values {' and '.join(shown_apart(*alike))}, {difference(*alike)}. If they are "
            "one value, write it in one way in the source"
        )
    return lines


def _lost_splits(category: Unseen, *, is_like: bool) -> str:
    if not category.splits:
        return ""
    return (
        f"No value of the {' and '.join(category.splits)} rows is in a training row, so that the column tells a model "
        f"nothing there: write its values in one way in all files{'' if is_like else ', or name it in drop_columns'}. "
    )


def _goal(kind: str, *, is_filled: bool, is_like: bool) -> str:
    """Return what becomes of missing values of a column."""
    if kind == "category":
        return 'become index 0, the category "missing". No action is needed'
    if kind == "kept":
        return "stay missing (null)"
    if kind == "number" and is_filled:
        return "become the median of the training rows, which the exported model puts there, too. No action is needed"
    if is_like:
        return (
            "become NaN, because the dataset in like has no number for them. The built-in trainers use the mean there"
        )
    return (
        "become NaN. The built-in trainers use the column's mean there. Your own training function must replace NaN, "
        'or set missing to "impute" or "drop", or name the column in drop_columns'
    )


def _warnings_of_numbers(name: str, counts: ColumnCounts, rows: int, *, is_like: bool) -> list[str]:
    """Return one line if a column of numbers loses precision or looks like an ID.

    Where another dataset decides the inputs and their units, nothing can be done about it.
    """
    problem, advice = _problem_of_numbers(name, counts, rows)
    return [f"column {name!r} {problem}{'' if is_like else advice}"] if problem else []


def _problem_of_numbers(name: str, counts: ColumnCounts, rows: int) -> tuple[str, str]:
    """Return what is wrong with a column of numbers, and what to do about it; "" for nothing."""
    collapsed = counts.precision.collapses()
    if collapsed:
        small, large = map(_plain, collapsed)
        if counts.is_date:
            return (
                f"has different times that become equal as 32-bit floats: the days {small} and {large} become "
                f"{_plain(float(np.float32(collapsed[0])))}",
                ". If the time of day matters, write it into a column of its own in the source, such as the minutes "
                "since midnight",
            )
        return (
            f"has different numbers that become equal as 32-bit floats: {small} and {large} become "
            f"{_plain(float(np.float32(collapsed[0])))}",
            ". Subtract an offset in the source, such as the lowest number. If they are IDs, name the column in "
            "drop_columns",
        )
    largest = max(counts.highest, counts.lowest, key=abs)
    if _LARGEST_TRAINED < abs(largest) < math.inf:
        return (
            f"has the number {largest:g}, near the end of the range of 32-bit floats ({np.finfo(np.float32).max:.1e}): "
            "a training can end with NaN",
            ". To keep the column, divide it by a constant in the source, else name it in drop_columns",
        )
    if max(counts.highest, -counts.lowest) > EXACT_NUMBERS:
        return (
            f"has numbers above {EXACT_NUMBERS:,}, which become 32-bit floats: close ones (IDs, times) become equal",
            ". Subtract an offset or scale them in the source, or name the column in drop_columns",
        )
    can_be_id = (
        not counts.is_date and rows >= _MINIMUM_DISTINCT and name not in INDEX_NAMES and not counts.is_constant(rows)
    )
    if can_be_id and counts.whole_numbers.is_id(name):
        return (
            "looks like an ID or row number and is used as an input: it has whole numbers, which increase or decrease "
            "from each row to the next, or its name is that of an ID",
            ". If it is one, name it in drop_columns",
        )
    return "", ""


def _plain(number: float) -> str:
    """Return a number with as many digits as tell it from its neighbors, and a whole number without a point."""
    return str(int(number)) if number.is_integer() else repr(number)


def text_numbers(rows: Mapping[str, int]) -> list[str]:
    """Return the values that are numbers, also with a unit, if at least half of the rows have one; else none.

    Args:
        rows: Rows of each value.
    """
    # Another line says that a column with leading zeros has codes.
    if any(re.fullmatch(r"\s*0\d+\s*", value) for value in rows):
        return []
    numbers = [value for value in rows if re.fullmatch(_TEXT_NUMBER, value)]
    return numbers if sum(map(rows.__getitem__, numbers)) >= _NUMBER_SHARE * sum(rows.values()) else []


def _number_advice(name: str, values: Collection[str], numbers: Sequence[str], decimal: str) -> str:
    """Return how the texts of a column that are numbers are read as such."""
    are_plain = all(re.fullmatch(rf"\s*{FINITE}\s*", value) for value in values)
    if decimal == ",":
        if not are_plain:
            return "write them in the source as plain numbers (1,5)"
        has_thousands = all(re.fullmatch(_THOUSANDS, number) for number in numbers if "." in number)
        way = "without points, which may separate thousands" if has_thousands else "with decimal commas"
        return (
            f"write them in the source {way}, because the decimals are commas. If no number of the source has a "
            'decimal comma, set decimal in csv_format to "."'
        )
    if are_plain:
        return f'set columns to {{{name!r}: "number"}}'
    plain = "write them in the source as plain numbers (1.5)"
    if any("," in number for number in numbers) and all(re.fullmatch(_COMMA_NUMBER, number) for number in numbers):
        return (
            f'{plain}, or for CSV files set csv_format to {{"decimal": ","}} if their commas are decimal ones and no '
            "number of the source has a decimal point"
        )
    return plain


def text_form(text: str) -> str:
    """Return a text with 9 for each digit and a for each letter, because the text itself may be personal."""
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "9", text[:EXAMPLE_LENGTH]))
