"""What the pass over a source has found, for the steps after it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.report.vocabulary import Unseen
from kfp_distributed.storage.dataset import Column, Label

LEFT_OUT = -1
"""Index of the class of rows that are left out, because no other row has their class."""


class Scan(NamedTuple):
    """What the pass has found.

    Attributes:
        columns: The inputs with their vocabularies.
        label: The label with its classes.
        class_counts: Rows of each class; () without classes.
        missing: Rows of each input without a value.
        warnings: One line for each problem of a column.
        collapsed: Inputs whose different numbers become equal as 32-bit floats.
        codes: For each category and the label with classes, the index of a value by its code in the pieces.
        dropped: Rows that were left out because a value is missing.
        gaps: Rows without a value of each column among them.
        unseen: Values of categories that the dataset does not have whose vocabularies are applied.
        frequent_groups: Values of the group column, among which are those of many rows.
    """

    columns: tuple[Column, ...]
    label: Label
    class_counts: tuple[int, ...]
    missing: dict[str, int]
    warnings: list[str]
    collapsed: tuple[str, ...]
    codes: Mapping[str, NDArray[np.int32]]
    dropped: int = 0
    gaps: Mapping[str, int] = MappingProxyType({})
    unseen: tuple[Unseen, ...] = ()
    frequent_groups: tuple[str, ...] = ()
