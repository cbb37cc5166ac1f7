"""Hashes of 64-bit integers, by the generator SplitMix64 (pure)."""

import numpy as np
from numpy.typing import NDArray

STEP = 0x9E3779B97F4A7C15
"""Difference of two numbers that the generator mixes in turn."""


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return each number with its bits mixed. 0 stays 0."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    result: NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return result
