"""The bins and counts of histograms (pure)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BINS = 30
# The most whole numbers of which each gets a bin.
_WHOLE_NUMBERS = 40
# With more classes, their outlines hide each other.
_CLASSES = 5
# Numbers outside of these quantiles are left out where they would squeeze the others into few bins.
_QUANTILES = (0.005, 0.995)
_LARGEST_STRETCH = 2.0
# From here on, a 64-bit float cannot have a fraction of 0.5.
_NO_HALVES = 2.0**52
# Quantiles of so many numbers are precise enough, and need little memory.
_QUANTILE_NUMBERS = 100_000


def count_bins(
    values: NDArray[np.floating], labels: NDArray[np.int32], classes: Sequence[str]
) -> tuple[list[float], dict[str, list[int]], int]:
    """Count the numbers of a column in bins of equal width.

    Args:
        values: The numbers of each row, [rows, size]; NaN is missing.
        labels: Class index of each row.
        classes: Names of the classes; () for a number to predict.

    Returns:
        The edges of the bins, the counts by class, and the number of outliers that are in no bin. With many classes or
        none, the counts are those of all rows. Without any number there are no edges.
    """
    known = values[~np.isnan(values)]
    if not known.size:
        return [], {}, 0
    edges = bin_edges(known)
    groups = {"training rows": values}
    if 0 < len(classes) <= _CLASSES:
        groups = {name: values[labels == index] for index, name in enumerate(classes)}
    # NaN is in no bin.
    counts = {name: np.histogram(group, edges)[0].tolist() for name, group in groups.items()}
    return edges.tolist(), counts, known.size - sum(map(sum, counts.values()))


def bin_edges(numbers: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the edges of bins for numbers: one bin for each of a few whole numbers, else up to 30 over their range.

    Far outliers are left out of the range. There are fewer bins if the range has fewer 64-bit floats.
    """
    low, high = float(numbers.min()), float(numbers.max())
    is_whole = max(-low, high) < _NO_HALVES and (numbers == numbers.round()).all()
    if is_whole and high - low < _WHOLE_NUMBERS:
        return np.arange(low - 0.5, high + 1)
    subset = numbers[:: 1 + len(numbers) // _QUANTILE_NUMBERS].astype(np.float64)
    inner_low, inner_high = (float(quantile) for quantile in np.quantile(subset, _QUANTILES))
    if high - low > _LARGEST_STRETCH * (inner_high - inner_low) > 0:
        low, high = inner_low, inner_high
    step = float(np.spacing(max(-low, high)))
    if low == high:
        low, high = low - max(0.5, step), high + max(0.5, step)
    edges: NDArray[np.float64] = np.linspace(low, high, 1 + max(1, int(min(_BINS, (high - low) / step))))
    return edges
