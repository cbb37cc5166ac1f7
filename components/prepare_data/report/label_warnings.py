"""Warnings about labels: quantities that become classes, spellings of one class, classes without rows (pure)."""

import re
from collections.abc import Mapping, Sequence

from kfp_distributed.components.prepare_data.columns.look_alikes import (
    EXAMPLE_LENGTH,
    difference,
    pairs_alike,
    shown_apart,
)
from kfp_distributed.components.prepare_data.columns.spelled_values import FINITE
from kfp_distributed.components.prepare_data.report.data_warnings import text_numbers
from kfp_distributed.components.prepare_data.sources.read_rows import bounded

_COUNTED_CLASSES = 20
"""Fewer whole numbers are named as quantities in no case. So many are classes only if they are counted from 0 or 1."""

_CLASS_NUMBERS = 60
"""So many whole numbers are named in any case. Common sets of classes are 10 digits, 26 letters or 47 characters."""


def label_warnings(label: str, classes: Mapping[str, int], *, is_like: bool = False) -> list[str]:
    """Return one line for each problem of the classes.

    Args:
        label: Name of the label.
        classes: Rows of each class.
        is_like: Whether another dataset decides the task, so that classes are no quantities. Default: it is open.
    """
    lines = []
    if not is_like and (quantities := _quantities(classes)):
        example = quantities[0][:EXAMPLE_LENGTH]
        lines.append(
            f"label_column {label!r} has {len(quantities):,} different numbers{_form(example)}, such as {example!r}: "
            f"each becomes a class. If they are quantities, {regression_advice(classes)}"
        )
    if odd := _odd_class(classes):
        lines.append(
            f"label_column {label!r} has the class {odd!r} beside classes of another form. If it means that the label "
            'is unknown, leave its rows out: set on_bad_row to "skip", and write null, or in CSV files add the text to '
            "missing of csv_format"
        )
    for alike in pairs_alike(classes):
        lines.append(
            f"label_column {label!r} has the classes {' and '.join(shown_apart(*alike))}, {difference(*alike)}. If "
            "they are one class, write it in one way in the source"
        )
    return bounded(lines)


def regression_advice(classes: Mapping[str, int]) -> str:
    """Return what to do to predict the numbers that classes are, also in text form; "" if they are no numbers.

    Args:
        classes: Rows of each class.
    """
    numbers = text_numbers(classes)
    if not numbers:
        return ""
    are_plain = len(numbers) == len(classes) and not any(map(_form, numbers))
    spelling = "" if are_plain else "write plain numbers (1.5) in all rows of the source, and "
    return spelling + 'set task to "regression"'


def untrained_warnings(label: str, classes: Sequence[str], class_counts: Sequence[int]) -> list[str]:
    """Return one line if there are classes without a training row, as those of a file of validation rows can be.

    Args:
        label: Name of the label.
        classes: The classes.
        class_counts: Training rows of each class.
    """
    names = [name for name, count in zip(classes, class_counts, strict=True) if not count]
    if not names or not sum(class_counts):
        return []
    return [
        f"label_column {label!r} has {len(names):,} class{'es' * (len(names) > 1)} in no training row, such as "
        f"{names[0][:EXAMPLE_LENGTH]!r}: a model cannot learn them. Add training rows, or leave their rows out"
    ]


def _quantities(classes: Mapping[str, int]) -> list[str]:
    """Return the classes that look like quantities: numbers in text form or with a fraction first, or whole numbers."""
    numbers = text_numbers(classes)
    if written := {name for name in numbers if not re.fullmatch(r"\s*[-+]?\d+\s*", name)}:
        return sorted(numbers, key=lambda name: name not in written)
    values = sorted(map(int, numbers))
    is_counted = values[:1] in ([0], [1]) and values[-1] - values[0] == len(values) - 1
    return numbers if len(values) >= (_CLASS_NUMBERS if is_counted else _COUNTED_CLASSES) else []


def _odd_class(classes: Mapping[str, int]) -> str:
    """Return the only class that has no letter and no digit, or no digit beside numbers; "" if there is none."""
    for is_usual in (r".*[^\W_].*", rf"\s*{FINITE}\s*"):
        others = [name for name in classes if not re.fullmatch(is_usual, name, re.DOTALL)]
        if len(others) == 1 and len(classes) > 2 and not re.search(r"\d", others[0]):
            return others[0]
    return ""


def _form(number: str) -> str:
    return "" if re.fullmatch(rf"\s*{FINITE}\s*", number) else " in text form"
