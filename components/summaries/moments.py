"""Mean and squared deviations of numbers that come in batches (pure)."""

import numpy as np
from numpy.typing import NDArray


class Moments:
    """Statistics of the numbers added so far, for each feature, in float64. NaN counts as missing.

    A sum of squares would lose all digits of numbers that are large and close to each other. So do the squared
    deviations from a mean that is rounded. Both are therefore those of the differences from the first number.

    Attributes:
        count: Numbers of each feature, [features].
        missing: Missing numbers of each feature.
        squares: Sum of the squared deviations from the mean.
        low: Smallest number of each feature.
        high: Largest number of each feature.

    Args:
        features: Number of features. Default: 1.
    """

    def __init__(self, features: int = 1) -> None:
        self.count, self.missing = np.zeros(features, np.int64), np.zeros(features, np.int64)
        self._first, self._mean, self.squares = np.full(features, np.nan), np.zeros(features), np.zeros(features)
        self.low, self.high = np.full(features, np.inf), np.full(features, -np.inf)

    def add(self, numbers: NDArray[np.floating]) -> None:
        """Add numbers, by Chan's rule for joining the mean and the squared deviations of two parts.

        Args:
            numbers: Numbers whose order is that of an array [n, features].
        """
        # With a feature's numbers side by side, NumPy adds them in pairs, which loses fewer digits. The sums of a
        # feature then do not depend on the other features of its array.
        values = np.array(numbers.reshape(-1, len(self.low)).T, np.float64, order="C")
        if not values.size:
            return
        # These two ignore NaN.
        self.low = np.minimum(self.low, np.fmin.reduce(values, axis=1, initial=np.inf))
        self.high = np.maximum(self.high, np.fmax.reduce(values, axis=1, initial=-np.inf))
        known = (values == values).argmax(axis=1)
        self._first = np.where(np.isnan(self._first), values[np.arange(len(values)), known], self._first)
        values -= self._first[:, None]
        count, mean, squares = _count_mean_squares(values)
        self.missing += values.shape[1] - count
        self._join(count, mean, squares)

    def merge(self, other: "Moments") -> None:
        """Add the numbers of other statistics, which are not changed. The result depends on the order of the merges.

        Args:
            other: Statistics of as many features.
        """
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self._first = np.where(np.isnan(self._first), other._first, self._first)
        shift = np.where(other.count > 0, other._first - self._first, 0.0)
        self.missing += other.missing
        self._join(other.count, other._mean + shift, other.squares)

    def _join(self, count: NDArray[np.int64], mean: NDArray[np.float64], squares: NDArray[np.float64]) -> None:
        """Add the mean and the squared deviations of numbers, as differences from the first number."""
        self.count += count
        share, difference = count / np.maximum(self.count, 1), mean - self._mean
        self.squares += squares + difference**2 * count * (1 - share)
        self._mean += difference * share

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of each feature; 0 for one without numbers."""
        return np.where(self.count > 0, self._first + self._mean, 0.0)

    @property
    def deviation(self) -> NDArray[np.float64]:
        """Standard deviation of each feature; 0 if its numbers are all equal."""
        return np.sqrt(self.squares / np.maximum(self.count, 1))

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviation of each feature for 32-bit floats; 1 if it is below 1.2e-38.

        Trainers divide by it, and processors may count smaller numbers as 0.
        """
        return np.where(self.deviation >= np.finfo(np.float32).tiny, self.deviation, 1.0)


def _count_mean_squares(
    values: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return count, mean and sum of squared deviations of the numbers of each feature, [features, n]."""
    is_known = values == values
    if is_known.all():  # Usual, and three times as fast.
        mean = values.mean(axis=1)
        return np.full(len(values), values.shape[1]), mean, np.square(values - mean[:, None]).sum(axis=1)
    count = is_known.sum(axis=1)
    mean = np.where(is_known, values, 0.0).sum(axis=1) / np.maximum(count, 1)
    return count, mean, np.square(np.where(is_known, values - mean[:, None], 0.0)).sum(axis=1)
