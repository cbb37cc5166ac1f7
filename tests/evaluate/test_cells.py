import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from kfp_distributed.components.evaluate.scoring.cells import Cells

pytestmark = pytest.mark.takes(3)


def cells_of(batches, limit):
    cells = Cells.empty()
    for probabilities, is_positive in batches:
        cells = cells.with_rows(np.asarray(probabilities), np.asarray(is_positive), limit)
    return cells


def columns_of(cells):
    return [column.tolist() for column in (cells.low, cells.high, cells.positives, cells.negatives)]


def test_rows_go_into_the_cells_that_have_their_probability():
    cells = cells_of([([0.1, 0.2, 0.2, 0.8, 0.9], [False, False, True, True, True])], limit=2)
    assert columns_of(cells) == [[0.1, 0.8], [0.2, 0.9], [1, 2], [2, 0]]
    probabilities, is_positive = np.array([0.95, 0.5, 0.2, 0.85]), np.array([True, False, True, False])
    assert columns_of(cells.with_rows(probabilities, is_positive, 4)) == [
        [0.1, 0.5, 0.8, 0.95],
        [0.2, 0.5, 0.9, 0.95],
        [2, 0, 2, 1],
        [2, 1, 1, 0],
    ]
    assert columns_of(cells.with_rows(probabilities, is_positive, 1)) == [[0.1], [0.95], [5], [4]]


probabilities_of_any_shape = st.one_of(
    st.floats(0, 1, width=32), st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.5, 0.500001), st.floats(0, 1e-9)
)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(probabilities_of_any_shape, st.booleans()), min_size=2, max_size=60),
    limit=st.integers(1, 20),
    batches=st.integers(1, 4),
    is_sorted=st.booleans(),
)
def test_the_exact_areas_are_within_the_error(rows, limit, batches, is_sorted):
    rows = sorted(rows, key=lambda row: row[1]) if is_sorted else rows
    probabilities, is_positive = map(np.array, zip(*rows, strict=True))
    parts = [part for part in np.array_split(np.arange(len(rows)), batches) if len(part)]
    cells = cells_of([(probabilities[part], is_positive[part]) for part in parts], limit)
    assert (cells.low <= cells.high).all()
    assert (cells.high[:-1] < cells.low[1:]).all()
    assert len(cells.low) <= 3 * limit
    assert (cells.positives.sum(), cells.negatives.sum()) == (is_positive.sum(), (~is_positive).sum())
    curve = cells.curve()
    if is_positive.any():
        exact = average_precision_score(is_positive, probabilities)
        assert abs(curve.average_precision - exact) <= curve.average_precision_error + 1e-12
    if is_positive.any() and not is_positive.all():
        exact = roc_auc_score(is_positive, probabilities)
        assert abs(curve.roc_auc - exact) <= curve.roc_auc_error + 1e-12
    for threshold, recall in zip(curve.thresholds[1:], curve.recall[1:], strict=True):
        if is_positive.any():
            assert recall == pytest.approx((is_positive & (probabilities >= threshold)).sum() / is_positive.sum())


@pytest.mark.parametrize("share", [0.5, 0.001])
def test_the_error_is_small(share):
    generator = np.random.default_rng(0)
    is_positive = generator.random(400_000) < share
    probabilities = 1 / (1 + np.exp(-generator.normal(0, 2, 400_000) - 3 * is_positive))
    batches = zip(np.array_split(probabilities, 4), np.array_split(is_positive, 4), strict=True)
    curve = cells_of(batches, limit=2**12).curve()
    assert 0 < curve.roc_auc_error < 2e-4
    assert 0 < curve.average_precision_error < 2e-4


def test_many_rows_of_few_probabilities_are_exact():
    generator = np.random.default_rng(0)
    probabilities, is_positive = generator.integers(0, 11, 20_000) / 10, generator.random(20_000) < 0.4
    batches = zip(np.array_split(probabilities, 4), np.array_split(is_positive, 4), strict=True)
    curve = cells_of(batches, limit=16).curve()
    assert (curve.roc_auc_error, curve.average_precision_error) == (0, 0)
    assert curve.roc_auc == pytest.approx(roc_auc_score(is_positive, probabilities), abs=1e-12)
    assert curve.average_precision == pytest.approx(average_precision_score(is_positive, probabilities), abs=1e-12)


def test_a_frequent_probability_keeps_its_own_cell():
    generator = np.random.default_rng(0)
    probabilities = np.where(generator.random(10_000) < 0.5, 1, generator.random(10_000))
    cells = cells_of([(probabilities, generator.random(10_000) < 0.5)], limit=8)
    assert (cells.low[-1], cells.high[-1]) == (1, 1)
    assert cells.high[-2] < 1
