"""The rows of a dataset as texts, for the tables of reports."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import Column

# A cell with a longer text would push the other columns off the screen.
_TEXT_LENGTH = 40


def row_texts(columns: Sequence[Column], row: NDArray[np.float32]) -> tuple[str, ...]:
    """Return the values of a row as texts, one for each column.

    Args:
        columns: The inputs.
        row: The values side by side, as `read_batches` yields them. A missing value becomes "", a tensor the range of
            its numbers.
    """
    texts, begin = [], 0
    for column in columns:
        end = begin + math.prod(column.shape)
        texts.append(_text(column, row[begin:end]))
        begin = end
    return tuple(texts)


def _text(column: Column, values: NDArray[np.float32]) -> str:
    if column.kind == "category":
        index = int(values[0])
        return column.vocabulary[index - 1][:_TEXT_LENGTH] if index else ""
    known = values[~np.isnan(values)]
    if not known.size:
        return ""
    return f"{known[0]:.6g}" if column.kind == "number" else f"{known.min():.6g} to {known.max():.6g}"
