"""Rows as texts."""

import numpy as np

from kfp_distributed.components.summaries.row_texts import row_texts
from kfp_distributed.storage.dataset import Column

COLUMNS = (
    Column("age", "number", "float32"),
    Column("town", "category", "int32", vocabulary=("Bern", "a town with a very long name " * 3)),
    Column("spectrum", "tensor", "float32", (3,)),
)


def test_values_of_a_row():
    row = np.array([1.25, 1, -1, np.nan, 2.5], np.float32)
    assert row_texts(COLUMNS, row) == ("1.25", "Bern", "-1 to 2.5")


def test_missing_and_long_values():
    row = np.array([np.nan, 2, np.nan, np.nan, np.nan], np.float32)
    assert row_texts(COLUMNS, row) == ("", "a town with a very long name a town with", "")
    assert row_texts(COLUMNS[1:2], np.zeros(1, np.float32)) == ("",)
