"""The labels of a source: which task they are for, and their classes or numbers (pure)."""

import re
from collections import Counter
from collections.abc import Mapping
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_distributed.components.prepare_data.columns.look_alikes import by_look, shown_with
from kfp_distributed.components.prepare_data.columns.spelled_values import FINITE, as_written, check_points, value_names
from kfp_distributed.components.prepare_data.pieces.growing_vocabulary import GrowingVocabulary
from kfp_distributed.components.prepare_data.report.data_warnings import text_form
from kfp_distributed.components.prepare_data.report.label_warnings import regression_advice
from kfp_distributed.components.prepare_data.sources.left_out import first_names
from kfp_distributed.components.prepare_data.sources.read_rows import ReadAgain
from kfp_distributed.storage.dataset import DatasetManifest, Label, Task

MAXIMUM_CLASSES = 65_536
"""The most classes. A plan has a row count for each class and file, and a manifest a name and a count for each."""

# Labels with more different whole numbers are quantities, unless the task says that they are classes.
_CLASS_NUMBERS = 100

_MISSING = (
    "is missing (in CSV files, texts such as NA and None mean that, too, unless usual_missing of csv_format is false): "
    "fill it in, or leave the row out"
)
_OR_DROP = ', or set rare_classes to "drop" to leave their rows out; each class needs two rows'

_SMALLEST_RANGE = 1e-150
"""The squares of smaller differences lose digits as 64-bit floats, or become 0."""

_LARGEST = float(np.finfo(np.float32).max)


class LabelCounts:
    """Counts the labels of a source in batches.

    Args:
        name: Name of the label; "" for none.
        task: What is predicted.
        is_task_open: Whether labels that turn out to be numbers change the task.
        is_start: Whether no rows come before. Else only `merge` can tell whether all labels so far are numbers.
            Default: true.

    Attributes:
        vocabulary: The values of the labels.
    """

    def __init__(self, name: str, task: Task, *, is_task_open: bool, is_start: bool = True) -> None:
        self._name, self._task, self._is_open = name, task, is_task_open and is_start
        self.vocabulary = GrowingVocabulary()
        # Numbers of different values at the end of each batch in which there were new ones.
        self._checked: list[int] = []
        self._are_numbers = True
        self._lowest, self._highest, self._rows = np.inf, -np.inf, 0

    def unusable(self, labels: pa.Array, like: DatasetManifest | None) -> dict[int, str]:
        """Return the problem of each row whose label cannot be used.

        Args:
            labels: Texts, or numbers to predict.
            like: Manifest of the dataset whose classes are the only ones; None for any class.
        """
        problems = dict.fromkeys(_rows(labels.is_null()), _MISSING)
        if self._task == "regression":
            numbers = labels.to_numpy(zero_copy_only=False)
            problems |= {
                row: "is no finite number: correct it, or leave the row out"
                for row in np.flatnonzero(~np.isfinite(numbers)).tolist()
                if row not in problems
            }
            problems |= {
                row: f"is {numbers[row]:g}, beyond the range of 32-bit floats ({_LARGEST:.1e}): divide the column by a "
                "constant in the source, or leave the row out"
                for row in np.flatnonzero(np.abs(numbers) > _LARGEST).tolist()
                if row not in problems
            }
        elif like and self._task == "classification":
            classes = value_names(labels.drop_null().unique().to_pylist(), like.label.classes)
            unknown = [text for text, name in classes.items() if name not in like.label.classes]
            known = by_look(like.label.classes if unknown else ())
            for row in _rows(pc.is_in(labels, pa.array(unknown, pa.string()))):
                shown = shown_with(as_written(labels[row].as_py()), known)
                problems[row] = (
                    f"is {shown}, which is no class of the dataset in like ({first_names(like.label.classes)}): write "
                    "it as one of them, or leave the row out"
                )
        return problems

    def count(self, labels: pa.Array) -> pa.Array:
        """Count numbers to predict, and return them."""
        numbers = labels.to_numpy(zero_copy_only=False)
        if len(numbers):
            self._lowest = min(self._lowest, float(numbers.min()))
            self._highest = max(self._highest, float(numbers.max()))
        self._rows += len(numbers)
        return pa.array(numbers)

    def check(self) -> None:
        """Check the values that are new since the last call.

        Raises:
            ReadAgain: The labels are numbers to predict, and the task is open.
            ValueError: There are too many classes.
        """
        begin, count = self._checked[-1] if self._checked else 0, len(self.vocabulary.codes)
        if count == begin:
            return
        texts = [*islice(self.vocabulary.codes, begin, None)]
        self._checked.append(count)
        # Numbers with leading zeros are codes.
        is_number = [re.fullmatch(rf"(?!\s*[-+]?0\d)\s*{FINITE}\s*", text) is not None for text in texts]
        self._are_numbers = self._are_numbers and all(is_number)
        if self._is_open and self._are_numbers:
            for text in texts:
                if not float(text).is_integer():
                    reason = f"label_column {self._name!r} has the value {text}, which is no whole number"
                    raise ReadAgain(regression=reason)
            if count > _CLASS_NUMBERS:
                reason = f"label_column {self._name!r} has more than {_CLASS_NUMBERS} different whole numbers"
                raise ReadAgain(regression=reason)
        if count > MAXIMUM_CLASSES:
            advice = regression_advice(dict.fromkeys(self.vocabulary.codes, 1))
            advice = "name another label_column" + (advice and f", or {advice}")
            raise ValueError(
                f"column {self._name!r} has more than {MAXIMUM_CLASSES:,} different values, of the form "
                f"{text_form(as_written(next(iter(self.vocabulary.codes))))!r}: {advice}"
            )

    def merge(self, other: "LabelCounts") -> None:
        """Add the labels of the rows that follow, and check them in the batches in which they were counted.

        Raises:
            ReadAgain: The labels are numbers to predict, and the task is open.
            ValueError: There are too many classes.
        """
        texts = iter(other.vocabulary.codes)
        for begin, end in pairwise([0, *other._checked]):
            for text in islice(texts, end - begin):
                self.vocabulary.codes.setdefault(text, len(self.vocabulary.codes) + 1)
            self.check()
        self.vocabulary.merge(other.vocabulary)
        self._lowest, self._highest = min(self._lowest, other._lowest), max(self._highest, other._highest)
        self._rows += other._rows

    def result(
        self, like: DatasetManifest | None, *, drops_rare: bool = False
    ) -> tuple[Label, tuple[int, ...], Mapping[str, int]]:
        """Return the label, the rows of each class, and the class of each value.

        Args:
            like: Manifest of the dataset whose label is applied; None for none.
            drops_rare: Whether values of one row are left out. Default: they are an error.

        Raises:
            ValueError: The labels cannot be predicted.
        """
        if self._task == "none":
            return Label("", task="none"), (), {}
        if self._task == "regression":
            if self._lowest == self._highest and not like:
                raise ValueError(
                    f"label_column {self._name!r} has the value {self._lowest:g} in all rows: there is nothing to learn"
                )
            if 0 <= self._highest - self._lowest < _SMALLEST_RANGE and not like:
                raise ValueError(
                    f"label_column {self._name!r} has numbers that differ by {self._highest - self._lowest:g} at most: "
                    "their squares are too small for 64-bit floats. Multiply the column by a constant in the source"
                )
            return like.label if like else Label(self._name, task="regression"), (), {}
        rows = self.vocabulary.rows
        names = value_names(rows, like.label.classes if like else None)
        check_points(self._name, names)
        class_rows = Counter[str]()
        for text, name in names.items():
            class_rows[name] += rows[text]
        if drops_rare and not like:
            class_rows = Counter({name: count for name, count in class_rows.items() if count > 1})
            if not class_rows:
                raise ValueError(
                    f"each of the {len(names):,} values of label_column {self._name!r} has one row: rare_classes "
                    '"drop" leaves out all of them. Name another label_column'
                    + (f", or {advice}" if (advice := regression_advice(rows)) else "")
                )
        classes = like.label.classes if like else order_classes(class_rows, self._name)
        indices = {name: index for index, name in enumerate(classes)}
        spelled = {text: indices[name] for text, name in names.items() if name in indices}
        return Label(self._name, classes), tuple(class_rows[name] for name in classes), spelled

    def reason(self) -> str:
        """Return why the task is what it is, for the log."""
        if self._task == "none":
            return "no label_column is named"
        kind = "whole numbers" if self._are_numbers else "texts"
        count = len({*value_names(self.vocabulary.codes).values()})
        return f"label_column {self._name!r} has {count:,} different {kind}"


def _rows(is_true: pa.BooleanArray) -> list[int]:
    return [int(row) for row in np.flatnonzero(pc.fill_null(is_true, False).to_numpy(zero_copy_only=False))]


def order_classes(counts: Mapping[str, int], label: str) -> tuple[str, ...]:
    """Return the label's values in order: numbers by value, other texts alphabetically.

    Args:
        counts: Rows of each value.
        label: Name of the label, for errors.

    Raises:
        ValueError: There is one class only, or a class has one row only.
    """
    try:
        numbers = {name: float(name) for name in counts}
    except ValueError:
        numbers = {}
    classes = tuple(sorted(counts, key=lambda name: (numbers.get(name, 0.0), name)))
    if len(classes) < 2:
        raise ValueError(f"label_column {label!r} has the classes {list(classes)}: two or more are needed")
    rare = [name for name in classes if counts[name] == 1]
    if rare and (advice := regression_advice(counts)):
        raise ValueError(
            f"label_column {label!r} has {len(classes)} different numbers, {len(rare)} of them in one row only "
            f"(such as {rare[0][:40]}): if they are quantities, {advice}. If they are classes, add rows of "
            f"the rare ones{_OR_DROP}"
        )
    if rare:
        raise ValueError(
            f"label_column {label!r}: {rare[0][:40]!r} has one row only (classes of one row: {len(rare)}): add rows"
            f"{_OR_DROP}"
        )
    return classes
