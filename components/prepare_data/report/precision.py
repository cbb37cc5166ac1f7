"""Finds different numbers that become equal as 32-bit floats, with bounded memory (pure)."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# So many rows of each batch are compared, in runs of rows, because neighbors are often close. All of a batch would take
# several times the time of a pass.
COMPARED_ROWS = 4096
_RUNS = 8
# Share of equal ones among the different numbers from which fractions are called collapsed. Of 4,096 random numbers
# between 0.5 and 1, where a 32-bit float has 2^23 values, 0.02% become equal, which loses nothing that counts.
_COLLAPSED_SHARE = 0.01
# Fractions that differ less are results of one calculation with different rounding: 0.1 + 0.2 and 0.3.
_ROUNDING = 1e-12


@dataclass
class Precision:
    """Compares the numbers of a column before and after the cast to 32-bit floats, each element of a tensor by itself.

    Attributes:
        distinct: Different numbers of each batch, summed, [elements].
        collapsed: Those of them that are equal to a smaller one after the cast, [elements].
        are_whole: Whether whole numbers are among the collapsed ones, [elements].
        examples: Two numbers that become equal, [2, elements]; NaN if there are none.
    """

    distinct: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    collapsed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    are_whole: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(1, np.bool_))
    examples: NDArray[np.float64] = field(default_factory=lambda: np.full((2, 1), np.nan))

    def add(self, numbers: NDArray[np.float64]) -> None:
        """Add a batch of finite numbers, of which NaN are left out.

        Args:
            numbers: Numbers [rows], or the elements of tensors [rows, elements].
        """
        compared = _some(numbers)
        # NaN come last, and are neither equal to nor greater than a number.
        values = np.sort(compared[:, np.newaxis] if compared.ndim == 1 else compared, axis=0)
        small, large = values[:-1], values[1:]
        differ = large > small
        self.distinct = self.distinct + differ.sum(axis=0) + (~np.isnan(values)).any(axis=0)
        rounded = values.astype(np.float32)
        are_equal = differ & (rounded[:-1] == rounded[1:])
        if not are_equal.any():
            return
        are_whole = (small == np.floor(small)) & (large == np.floor(large))
        are_equal &= are_whole | (large - small > _ROUNDING * np.abs(large))
        self.collapsed = self.collapsed + are_equal.sum(axis=0)
        self.are_whole = self.are_whole | (are_equal & are_whole).any(axis=0)
        first, elements = are_equal.argmax(axis=0), np.arange(values.shape[1])
        is_new = are_equal.any(axis=0) & np.isnan(self.examples[0])
        self.examples = np.where(is_new, [small[first, elements], large[first, elements]], self.examples)

    def merge(self, other: "Precision") -> None:
        """Add the comparison of a later part of the source."""
        self.distinct = self.distinct + other.distinct
        self.collapsed = self.collapsed + other.collapsed
        self.are_whole = self.are_whole | other.are_whole
        self.examples = np.where(np.isnan(self.examples[0]), other.examples, self.examples)

    def collapses(self) -> tuple[float, float] | None:
        """Return two numbers of an element that become equal, if that loses information; else None.

        Any two whole numbers count, because each may be a code or a time. Fractions count if 1% of the numbers become
        equal.
        """
        are_many = self.are_whole | (self.collapsed >= _COLLAPSED_SHARE * self.distinct)
        found = np.flatnonzero(are_many & (self.collapsed > 0))
        return (float(self.examples[0, found[0]]), float(self.examples[1, found[0]])) if len(found) else None


def _some(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return runs of rows from all parts of a batch; all rows of a small one."""
    if len(numbers) <= COMPARED_ROWS:
        return numbers
    run = COMPARED_ROWS // _RUNS
    starts = np.linspace(0, len(numbers) - run, _RUNS).astype(np.intp)
    return np.concatenate([numbers[start : start + run] for start in starts])
