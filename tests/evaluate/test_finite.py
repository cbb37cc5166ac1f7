"""The count of rows for which a model returns NaN or infinity."""

import math

import numpy as np
import pytest

from kfp_distributed.components.evaluate.scoring.finite import NonFiniteOutputs
from kfp_distributed.storage.dataset import Column

COLUMNS = (Column("age", "number", "float32"), Column("image", "tensor", "float32", (2,)))


def test_rows_and_their_missing_values_are_counted_over_batches():
    non_finite = NonFiniteOutputs(COLUMNS)
    good = np.array([[0.5, 0.5], [1.0, 0.0]])
    assert non_finite.add(good, np.full((2, 3), math.nan, np.float32), 0).all()
    outputs = np.array([[1.0, 0.0], [math.nan, 0.0], [0.0, math.inf]])
    features = np.array([[math.nan, 1, 1], [math.nan, 1, math.nan], [1, math.nan, math.nan]], np.float32)
    assert non_finite.add(outputs, features, 2).tolist() == [True, False, False]
    assert (non_finite.rows, non_finite.first_row) == (2, 3)
    assert non_finite.gaps == {"age": 1, "image": 2}
    with pytest.raises(ValueError, match=r"for 2 of 5 rows, .*row 3.* values in 'image' \(2 rows\), 'age' \(1 rows\)"):
        non_finite.check(5)


def test_finite_outputs_pass_and_others_without_missing_values_hint_at_the_learning_rate():
    non_finite = NonFiniteOutputs(COLUMNS)
    non_finite.check(0)
    non_finite.add(np.array([[math.nan, 0]]), np.zeros((1, 3), np.float32), 0)
    with pytest.raises(ValueError, match=r"These rows have no missing values.* lower its learning rate"):
        non_finite.check(1)
