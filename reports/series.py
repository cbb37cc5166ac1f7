"""Series of points as arrays, and their reduction to as many points as a chart can show. Pure."""

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

Point = tuple[float, float]
Series = NDArray[np.float64]
"""Points as rows of x and y."""

MAX_RUNS = 3
"""Number of runs of values that are NaN or infinite that the description of a series names."""

LARGEST = 1e300
"""Largest absolute value of a point. The length of an axis must be a finite float, too."""


def to_series(points: Sequence[Point]) -> Series:
    """Convert points to a series. Numbers above `LARGEST` become infinite. Points without a finite x are left out."""
    try:
        series = np.array(points, dtype=np.float64).reshape(-1, 2)
    except OverflowError:  # An integer is too large for a float.
        series = np.array([[_clip(x), _clip(y)] for x, y in points], dtype=np.float64)
    series[np.abs(series) > LARGEST] *= np.inf
    return series[np.isfinite(series[:, 0])]


def finite(series: Series) -> Series:
    """Return the points whose y is finite."""
    return series[np.isfinite(series[:, 1])]


def describe_not_finite(series: Series, x: str, format_x: Callable[[float], str] = "{:g}".format) -> str:
    """Describe the values that are NaN or infinite, such as "nan from epoch 3 to 5"; "" if all values are finite.

    Args:
        series: The points.
        x: Label of the x axis.
        format_x: Converts an x to text.
    """
    if np.isfinite(series[:, 1]).all():
        return ""
    texts = []
    for text, run in groupby(series, lambda point: "" if np.isfinite(point[1]) else str(point[1])):
        xs = [format_x(point[0]) for point in run]
        if text:
            texts.append(f"{text} at {x} {xs[0]}" if len(xs) == 1 else f"{text} from {x} {xs[0]} to {xs[-1]}")
    more = len(texts) - MAX_RUNS
    return ", ".join(texts[:MAX_RUNS]) + (f" and {more} more times" if more > 0 else "")


def decimate(series: Series, limit: int) -> Series:
    """Reduce a series to at most `limit` points: the first, the last, and of each interval the lowest and the highest.

    Args:
        series: Points in the order in which they are joined.
        limit: Number of points, at least 4.
    """
    if len(series) <= limit:
        return series
    kept = {0, len(series) - 1}
    for interval in np.array_split(np.arange(1, len(series) - 1), (limit - 2) // 2):
        kept |= {int(interval[series[interval, 1].argmin()]), int(interval[series[interval, 1].argmax()])}
    return series[sorted(kept)]


def smooth(series: Series, limit: int) -> Series:
    """Reduce a series to at most `limit` points, each the mean of an interval."""
    if len(series) <= limit:
        return series
    begins = np.arange(limit) * len(series) // limit
    lengths = np.diff(begins, append=len(series))
    means: Series = np.add.reduceat(series, begins) / lengths[:, np.newaxis]
    return means


def envelope(lines: Sequence[Series], intervals: int = 200) -> NDArray[np.float64]:
    """Return the range of several series: rows of x, the smallest and the largest y of each interval of x."""
    points = np.concatenate(lines)
    points = points[points[:, 0].argsort(kind="stable")]
    edges = np.linspace(points[0, 0], points[-1, 0], intervals + 1)[:-1]
    begins = np.unique(np.searchsorted(points[:, 0], edges))
    x = np.add.reduceat(points[:, 0], begins) / np.diff(begins, append=len(points))
    low, high = (reduce.reduceat(points[:, 1], begins) for reduce in (np.minimum, np.maximum))
    return np.column_stack([x, low, high])


def _clip(number: float) -> float:
    """Convert an int or float to a float."""
    if abs(number) > LARGEST:
        return float("inf") if number > 0 else float("-inf")
    return float(number)
