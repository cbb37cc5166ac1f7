"""Finds different numbers that become equal as 32-bit floats, with bounded memory (pure)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# So many rows of each batch are compared. All of a batch would take a tenth of the time of a pass.
COMPARED_ROWS = 4096
# Share of equal ones among the different numbers from which fractions are called collapsed. Of 4,096 random numbers
# between 0.5 and 1, where a 32-bit float has 2^23 values, 0.02% become equal, which loses nothing that counts.
_COLLAPSED_SHARE = 0.01
# Fractions that differ less are results of one calculation with different rounding: 0.1 + 0.2 and 0.3.
_ROUNDING = 1e-12


@dataclass
class Precision:
    """Compares the numbers of a column before and after the cast to 32-bit floats.

    Attributes:
        distinct: Different numbers of each batch, summed.
        collapsed: Those of them that are equal to a smaller one after the cast.
        are_whole: Whether whole numbers are among the collapsed ones.
        example: Two numbers that become equal; None if there are none.
    """

    distinct: int = 0
    collapsed: int = 0
    are_whole: bool = False
    example: tuple[float, float] | None = None

    def add(self, numbers: NDArray[np.float64]) -> None:
        """Add a batch of finite numbers, of which NaN are left out."""
        compared = numbers[:COMPARED_ROWS]
        values = np.unique(compared[~np.isnan(compared)])
        self.distinct += len(values)
        small, large = values[:-1], values[1:]
        rounded = values.astype(np.float32)
        are_equal = rounded[:-1] == rounded[1:]
        if not are_equal.any():
            return
        are_whole = (small == np.floor(small)) & (large == np.floor(large))
        are_equal &= are_whole | (large - small > _ROUNDING * np.abs(large))
        if are_equal.any():
            self.collapsed += int(are_equal.sum())
            self.are_whole = self.are_whole or bool((are_equal & are_whole).any())
            first = int(are_equal.argmax())
            self.example = self.example or (float(small[first]), float(large[first]))

    def collapses(self) -> tuple[float, float] | None:
        """Return two numbers that become equal, if that loses information; else None.

        Any two whole numbers count, because each may be a code or a time. Fractions count if 1% of the numbers become
        equal.
        """
        return self.example if self.are_whole or self.collapsed >= _COLLAPSED_SHARE * self.distinct else None
