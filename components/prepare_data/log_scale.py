"""Numbers of several powers of ten, whose logarithms the built-in trainers take (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.moments import Moments
from kfp_distributed.components.prepare_data.data_warnings import bounded
from kfp_distributed.components.prepare_data.outliers import usual_range
from kfp_distributed.storage.dataset import Column, log_values

_LEAST_NUMBERS = 30
"""Fewer numbers do not tell a distribution."""

_LARGEST_DEVIATION = 3.0
"""If the standard deviation is more than this multiple of the range of most numbers, these become nearly equal when
they are divided by it. It is 0.7 times the range for a normal, 0.9 for an exponential, and 3.8 for a log-normal
distribution whose logarithms have a standard deviation of 1.5."""

# Smaller numbers are nearly linear, so that noise around 0 stays small.
_UNIT_PERCENTILE = 5


def with_log_scales(
    columns: Sequence[Column], values: Mapping[str, NDArray[np.floating]], moments: Mapping[str, Moments]
) -> tuple[Column, ...]:
    """Return the columns, those of several powers of ten with the unit, mean and deviation of their logarithms.

    Args:
        columns: The inputs.
        values: Values of a sample of training rows by column, [rows, size of a value].
        moments: Statistics of all training rows by column.
    """
    return tuple(
        _scaled(column, values[column.name][:, 0], moments[column.name])
        if column.kind == "number" and not column.is_date
        else column
        for column in columns
    )


def _scaled(column: Column, sample: NDArray[np.floating], moments: Moments) -> Column:
    numbers = sample[~np.isnan(sample)].astype(np.float64)
    usual = usual_range(numbers) if len(numbers) >= _LEAST_NUMBERS else None
    if usual is None or float(moments.deviation[0]) <= _LARGEST_DEVIATION * (usual[1] - usual[0]):
        return column
    sizes = np.abs(numbers[numbers != 0])
    # Trainers divide by it as a 32-bit float.
    unit = max(float(np.percentile(sizes, _UNIT_PERCENTILE)), float(np.finfo(np.float32).tiny))
    logarithms = log_values(numbers, unit)
    return replace(column, log_unit=unit, log_mean=float(logarithms.mean()), log_std=float(logarithms.std()))


def log_scale_lines(columns: Sequence[Column]) -> list[str]:
    """Return one line for each column whose logarithms are taken."""
    return bounded(
        [
            f"column {column.name!r} has numbers of several powers of ten: the built-in trainers scale their "
            f"logarithms, sign(x) * log(1 + |x| / {column.log_unit:.3g}). No action is needed. A function of your own "
            "finds log_unit in dataset.json"
            for column in columns
            if column.log_unit is not None
        ]
    )
