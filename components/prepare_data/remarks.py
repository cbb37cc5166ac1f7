"""Remarks on a source's columns: missing values, unusable texts, numbers in text form (pure)."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

# Nobody reads more lines.
_MAXIMUM_REMARKS = 50
# With more distinct texts than this share of the rows, a value is in fewer than two rows on average, and a model learns
# nothing from it.
_DISTINCT_SHARE = 0.5
# Fewer distinct texts cause no remark: a person can check them, and in a small file half of them differ by chance.
_MINIMUM_DISTINCT = 10
# As for CSV, where a column is of numbers if at least half of its first values are.
_NUMBER_SHARE = 0.5
# Labels that are classes have rarely more values; the largest that are common are of 10 digits or 26 letters.
_CLASS_NUMBERS = 30
# 2^24: beyond it a 32-bit float, which a dataset's numbers are, has no value for each whole number.
_EXACT_NUMBERS = 1 << 24
# An example has to be recognized, not read.
_EXAMPLE_LENGTH = 30
# A sign or currency, digits in groups, a decimal comma or point, a unit; no date, time or code with letters before it.
_TEXT_NUMBER = r"\s*[-+]?[$€£¥]?\s?\d+([.,' \u00a0]\d{3})*([.,]\d+)?\s?([%$€£¥]|[^\W\d_]{1,12})?\s*"


@dataclass
class ColumnCounts:
    """Counts of one column.

    Attributes:
        kind: "number", "category" or "tensor".
        missing: Rows without a value; of a tensor, rows in which an element has none.
        values: Rows of each value of a category.
        largest: The largest number, without its sign.
    """

    kind: str
    missing: int = 0
    values: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0


def remarks_of(columns: dict[str, ColumnCounts], rows: int, label: str, classes: Sequence[str]) -> list[str]:
    """Return one line for each thing that a person should look at.

    Args:
        columns: The inputs.
        rows: Rows of the source.
        label: The label's name.
        classes: Its values.
    """
    lines = [line for name, counts in columns.items() for line in _column_remarks(name, counts, rows)]
    lines += _label_remarks(label, classes)
    hidden = len(lines) - _MAXIMUM_REMARKS
    return lines if hidden <= 0 else [*lines[:_MAXIMUM_REMARKS], f"… and {hidden} more such lines"]


def _label_remarks(label: str, classes: Sequence[str]) -> list[str]:
    lines = []
    are_numbers = all(re.fullmatch(r"-?\d+([.,]\d+)?", name) for name in classes)
    if are_numbers and (len(classes) > _CLASS_NUMBERS or re.search("[.,]", "".join(classes))):
        lines.append(
            f"label_column {label!r} has {len(classes)} different numbers, such as {classes[0][:_EXAMPLE_LENGTH]!r}: "
            "each becomes a class. If it is a quantity (a regression target), group its values into a few classes in "
            "the source"
        )
    spellings: dict[str, str] = {}
    for name in classes:
        other = spellings.setdefault(name.strip().casefold(), name)
        if other != name:
            lines.append(
                f"label_column {label!r} has the classes {other!r} and {name!r}, which differ only in case or spaces: "
                "if they are one class, write it in one way in the source"
            )
    return lines


def _column_remarks(name: str, counts: ColumnCounts, rows: int) -> list[str]:
    lines, present = [], counts.values.total()
    if counts.missing == rows:
        lines.append(f"column {name!r} has no value in any of {rows:,} rows: name it in drop_columns")
    elif counts.missing:
        goal = (
            'index 0, the category "missing": that needs nothing more'
            if counts.kind == "category"
            else "NaN. The built-in trainers use the column's mean there, a function of yours must replace NaN itself. "
            "Or fill the gaps in the source, or name the column in drop_columns"
        )
        lines.append(f"column {name!r} has no value in {counts.missing:,} of {rows:,} rows: they become {goal}")
    if counts.largest > _EXACT_NUMBERS:
        lines.append(
            f"column {name!r} has numbers above {_EXACT_NUMBERS:,}, which become 32-bit floats: close ones (IDs, "
            "times) become equal. Subtract an offset or scale them in the source, or name the column in drop_columns"
        )
    numbers = [value for value in counts.values if re.fullmatch(_TEXT_NUMBER, value)]
    if numbers and sum(counts.values[value] for value in numbers) >= _NUMBER_SHARE * present:
        lines.append(
            f"column {name!r} has numbers in text form, such as {numbers[0][:_EXAMPLE_LENGTH]!r}, and becomes a "
            f"category of {len(counts.values):,} values. If they are quantities, write them in the source as "
            "plain numbers (1.5)"
        )
    elif len(counts.values) >= max(_MINIMUM_DISTINCT, _DISTINCT_SHARE * present):
        lines.append(
            f"column {name!r} has {len(counts.values):,} different texts in {present:,} rows, of the form "
            f"{text_form(next(iter(counts.values)))!r} (a date, an ID, free text?): a model learns nothing from a "
            "value that it sees once. Name it in drop_columns, or write numbers or fewer categories in the source"
        )
    return lines


def text_form(text: str) -> str:
    """Return the form of a text, with each digit as 9 and each letter as a, because the text itself may be personal."""
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "9", text[:_EXAMPLE_LENGTH]))
