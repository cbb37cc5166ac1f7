"""Numbers of several powers of ten, whose logarithms the built-in trainers take (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.report.outliers import usual_range
from kfp_distributed.components.prepare_data.sources.read_rows import bounded
from kfp_distributed.components.summaries.moments import Moments
from kfp_distributed.storage.dataset import Column, log_values

_LEAST_NUMBERS = 30
"""Fewer numbers do not tell a distribution."""

_LARGEST_DEVIATION = 3.0
"""If the standard deviation is more than this multiple of the range of most numbers, these become nearly equal when
they are divided by it. It is 0.7 times the range for a normal, 0.9 for an exponential, and 3.8 for a log-normal
distribution whose logarithms have a standard deviation of 1.5."""

_SMALLEST = float(np.finfo(np.float32).tiny)
# Smaller numbers are nearly linear, so that noise around 0 stays small.
_UNIT_PERCENTILE = 5


def with_log_scales(
    columns: Sequence[Column],
    values: Mapping[str, NDArray[np.floating]],
    moments: Mapping[str, Moments],
    missing: Mapping[str, float],
) -> tuple[Column, ...]:
    """Return the columns, those of several powers of ten with the unit, mean and deviation of their logarithms.

    Args:
        columns: The inputs.
        values: Values of a sample of training rows by column, [rows, size of a value], with `fill` in gaps.
        moments: Statistics of all training rows by column.
        missing: Share of the rows without a value by column.
    """
    return tuple(
        _scaled(column, _known(values[column.name][:, 0], column, missing[column.name]), moments[column.name])
        if column.kind == "number" and not column.is_date
        else column
        for column in columns
    )


def _known(sample: NDArray[np.floating], column: Column, missing: float) -> NDArray[np.float64]:
    """Return the numbers of a sample without those that stand for missing ones."""
    numbers: NDArray[np.float64] = sample[~np.isnan(sample)].astype(np.float64)
    if column.fill is None:
        return numbers
    filled = np.flatnonzero(numbers == np.float32(column.fill))
    known: NDArray[np.float64] = np.delete(numbers, filled[: round(missing * len(numbers))])
    return known


def _scaled(column: Column, numbers: NDArray[np.float64], moments: Moments) -> Column:
    usual = usual_range(numbers) if len(numbers) >= _LEAST_NUMBERS else None
    mean, deviation = float(moments.mean[0]), float(moments.deviation[0])
    if usual is None or deviation <= _LARGEST_DEVIATION * (usual[1] - usual[0]):
        return column
    sizes = np.abs(numbers[numbers != 0])
    # Trainers divide by it as a 32-bit float.
    unit = max(float(np.percentile(sizes, _UNIT_PERCENTILE)), _SMALLEST)
    logarithms = log_values(numbers, unit)
    log_mean, log_std = float(logarithms.mean()), float(logarithms.std())
    low, high = log_values(np.array(usual), unit)
    ends = np.array([moments.low[0], moments.high[0]], np.float64)
    farthest = float(np.abs(ends - mean).max()) / deviation
    farthest_logarithm = float(np.abs(log_values(ends, unit) - log_mean).max()) / max(log_std, _SMALLEST)
    # One number may be far from others that are close to each other. The sample may not have it.
    if log_std > _LARGEST_DEVIATION * (high - low) or farthest_logarithm > farthest:
        return column
    return replace(column, log_unit=unit, log_mean=log_mean, log_std=log_std)


def log_scale_lines(columns: Sequence[Column]) -> list[str]:
    """Return one line for each column whose logarithms are taken."""
    return bounded(
        [
            f"column {column.name!r} has numbers of several powers of ten: the built-in trainers scale their "
            f"logarithms, sign(x) * log(1 + |x| / {column.log_unit:.3g}). A function of your own finds log_unit in "
            "dataset.json"
            for column in columns
            if column.log_unit is not None
        ]
    )
