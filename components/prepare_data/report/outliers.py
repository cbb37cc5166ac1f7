"""Numbers so far from the others that they alone decide the mean and the standard deviation (pure)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.sources.read_rows import bounded
from kfp_distributed.components.summaries.moments import Moments
from kfp_distributed.storage.dataset import Column

LARGEST_DEVIATION = float(np.finfo(np.float32).eps) ** -0.5
"""Trainers divide by the standard deviation. If it is more than this multiple (2,896) of the range of most numbers, the
squares of their differences are less than the last digit of a loss of 1, which is a 32-bit float."""

# Percentiles of the range of most numbers. The wider ones count where most numbers are equal.
_RANGES = ((25, 75), (10, 90), (1, 99))
_LABEL_ADVICE = "Correct it, leave the row out, or write the logarithm of the numbers"


class Outlier(NamedTuple):
    """A number that is far from the others.

    Attributes:
        number: The number.
        low: The lowest one of most of the others.
        high: The highest one of most of the others.
        deviation: Standard deviation of all numbers.
    """

    number: float
    low: float
    high: float
    deviation: float

    def __str__(self) -> str:
        """Return the part of a line that names the number."""
        return (
            f"has the number {self.number:g}, far from the others: most of them are from {self.low:g} to "
            f"{self.high:g}, and the standard deviation is {self.deviation:g}"
        )


def find_outlier(sample: NDArray[np.floating], moments: Moments) -> Outlier | None:
    """Return the number that is farthest from most of the others, if it makes them nearly equal; else None.

    Args:
        sample: A sample of usual numbers. NaN is missing.
        moments: Statistics of all numbers of a column.
    """
    numbers = sample[~np.isnan(sample)].astype(np.float64)
    deviation = float(moments.deviation[0])
    if not numbers.size or not moments.count[0]:
        return None
    usual = usual_range(numbers)
    if usual is None or deviation <= LARGEST_DEVIATION * (usual[1] - usual[0]):
        return None
    middle = sum(usual) / 2
    number = max(float(moments.low[0]), float(moments.high[0]), key=lambda end: abs(end - middle))
    return Outlier(number, *usual, deviation)


def usual_range(numbers: NDArray[np.floating]) -> tuple[float, float] | None:
    """Return the lowest and the highest of most numbers; None if nearly all are equal."""
    for percentiles in _RANGES:
        low, high = map(float, np.percentile(numbers, percentiles))
        if high > low:
            return low, high
    return None


def outlier_warnings(
    columns: Sequence[Column],
    values: Mapping[str, NDArray[np.floating]],
    moments: Mapping[str, Moments],
    *,
    is_like: bool = False,
) -> list[str]:
    """Return one line for each input of numbers with an outlier.

    Args:
        columns: The inputs.
        values: Values of a sample of rows by column, [rows, size of a value].
        moments: Statistics of the training rows by column.
        is_like: Whether another dataset decides the inputs and their units. Default: the parameters do.
    """
    others = ", write the logarithm of the numbers, or name the column in drop_columns" * (not is_like)
    return bounded(
        [
            f"column {column.name!r} {outlier}. "
            + (
                "Correct or empty the value if it is wrong"
                if column.log_unit is not None
                else "Divided by it, the others become nearly equal, so that a model learns nothing from them. Correct "
                f"or empty the value{others}"
            )
            for column in columns
            if column.kind == "number"
            and (outlier := find_outlier(values[column.name][:, 0], moments[column.name])) is not None
        ]
    )


def label_outlier_warnings(
    label: str, sample: NDArray[np.floating], moments: Mapping[str, Moments], *, is_like: bool = False
) -> list[str]:
    """Return one line for each split with an outlier among the numbers to predict.

    Args:
        label: Name of the label.
        sample: Labels of a sample of rows.
        moments: Statistics of the labels by split.
        is_like: Whether another dataset decides the unit of the label. Default: the source does.
    """
    advice = "Correct it, or leave the row out" if is_like else _LABEL_ADVICE
    lines = []
    for split, statistics in moments.items():
        if outlier := find_outlier(sample, statistics):
            effect = (
                "Divided by it, the others become nearly equal, so that a model learns little but this number"
                if split == "train"
                else "The scores of this split (rmse, r2) are those of this number alone"
            )
            lines.append(f"label_column {label!r} of the {split} split {outlier}. {effect}. {advice}")
    return lines
