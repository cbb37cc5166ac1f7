"""The scores of predicted numbers, against scikit-learn."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from kfp_distributed.components.evaluate.scoring.regression_scores import (
    ErrorSums,
    LargestErrors,
    PairSample,
    RowError,
)
from kfp_distributed.components.summaries.moments import Moments

pytestmark = [pytest.mark.takes(4), pytest.mark.figures]


def scores(targets, predictions, batch=4096):
    moments, sums = Moments(), ErrorSums()
    for begin in range(0, len(targets), batch):
        part = slice(begin, begin + batch)
        moments.add(targets[part])
        sums.add(targets[part] - predictions[part])
    return sums.scores(moments)


def scores_of_scikit_learn(targets, predictions):
    return (
        mean_absolute_error(targets, predictions),
        root_mean_squared_error(targets, predictions),
        r2_score(targets, predictions),
    )


@pytest.mark.parametrize("error", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("offset", "deviation"), [(0, 1), (1e9, 1), (-1e12, 1), (1e-9, 1e-12), (0, 1e140)])
def test_scores_equal_those_of_scikit_learn(offset, deviation, error):
    random = np.random.default_rng(0)
    targets = offset + deviation * random.normal(size=50_001)
    predictions = targets + error * deviation * random.normal(0.2, 1, 50_001)
    expected = scores_of_scikit_learn(targets, predictions)
    assert scores(targets, predictions)[:2] == pytest.approx(expected[:2], rel=1e-6)
    # It may be close to 0.
    assert scores(targets, predictions).r2 == pytest.approx(expected[2], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("offset", "deviation"), [(1e9, 1), (1e11, 0.01), (-1e12, 0.1), (0, 1e-150)])
def test_r2_is_that_of_fractions(offset, deviation):
    random = np.random.default_rng(0)
    targets = offset + deviation * random.normal(size=10_000)
    predictions = targets + 0.3 * deviation * random.normal(size=10_000)
    exact, mean = [Fraction(target) for target in targets], sum(map(Fraction, targets)) / len(targets)
    errors = sum((a - Fraction(b)) ** 2 for a, b in zip(exact, predictions, strict=True))
    expected = float(1 - errors / sum((target - mean) ** 2 for target in exact))
    assert scores(targets, predictions).r2 == pytest.approx(expected, abs=1e-12)


def test_r2_is_undefined_if_the_squared_deviations_are_too_small_for_64_bit_floats():
    targets = np.array([1e-170, 2e-170])
    assert scores(targets, 2 * targets) == pytest.approx((1.5e-170, 0, math.nan), nan_ok=True)


def test_rows_in_rising_order_keep_their_deviation():
    """The batches' means then differ much more than the numbers of a batch."""
    targets = 1e9 + np.arange(100_000.0)
    predictions = targets[::-1] + 0.5
    expected = scores_of_scikit_learn(targets, predictions)
    assert scores(targets, predictions, batch=7) == pytest.approx(expected, rel=1e-9)


NUMBERS = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=200, deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(2, 60), st.just(2)), elements=NUMBERS), st.integers(1, 60))
def test_scores_do_not_depend_on_the_batches(pairs, batch):
    targets, predictions = pairs.T
    mae, rmse, r2 = scores(targets, predictions, batch)
    expected = scores_of_scikit_learn(targets, predictions)
    assert (mae, rmse) == pytest.approx(expected[:2], rel=1e-6)
    if np.ptp(targets) > 1e-3:
        assert r2 == pytest.approx(expected[2], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("target", [0.0, 0.1, 1e9 + 0.1])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_r2_of_equal_numbers_is_undefined(target, rows):
    targets = np.full(rows, target)
    assert scores(targets, targets + 0.5, batch=2) == pytest.approx((0.5, 0.5, math.nan), nan_ok=True)
    assert scores(targets, targets, batch=2) == pytest.approx((0, 0, math.nan), nan_ok=True)


def test_a_sample_of_few_rows_has_all_of_them_in_order():
    sample = PairSample(limit=6)
    sample.add(np.array([1.0, 2, 3]), np.array([10.0, 20, 30]))
    sample.add(np.array([4.0, 5, 6]), np.array([40.0, 50, 60]))
    assert sample.pairs.tolist() == [[1, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 60]]


def test_a_sample_of_many_rows_is_uniform_and_bounded():
    sample, rows = PairSample(limit=1000), 0
    for size in (1, 999, 1, 5000, 40_000, 13, 53_986):
        numbers = np.arange(rows, rows + size, dtype=float)
        rows += size
        sample.add(numbers, -numbers)
        assert len(sample.pairs) == min(rows, 1000)
    assert sample.rows == rows == 100_000
    targets, predictions = sample.pairs.T
    assert (predictions == -targets).all()
    assert len(set(targets)) == 1000
    # Each tenth of the rows has 100 rows of the sample, with a standard deviation of 9.5.
    counts = np.histogram(targets, 10, (0, 100_000))[0]
    assert abs(counts - 100).max() < 40


def test_the_largest_errors_of_all_batches_are_kept():
    features = np.arange(12, dtype=np.float32).reshape(6, 2)
    targets = np.array([1.0, 2, 3, 4, 5, 6])
    predictions = np.array([1.0, 4, 3, 1, 8, 5])
    largest = LargestErrors(3)
    for begin in (0, 2, 4):
        part = slice(begin, begin + 2)
        largest.add(features[part], targets[part], predictions[part], begin)
    assert largest == LargestErrors(
        3, [RowError(3, 4, 1, features[3]), RowError(4, 5, 8, features[4]), RowError(1, 2, 4, features[1])]
    )
    assert [error.features.tolist() for error in largest.errors] == [[6, 7], [8, 9], [2, 3]]
    assert [error.residual for error in largest.errors] == [3, -3, -2]


def test_rows_without_an_error_are_left_out():
    largest = LargestErrors(3)
    largest.add(np.zeros((2, 1), np.float32), np.array([1.0, 2]), np.array([1.0, 2.5]), 0)
    assert [error.row for error in largest.errors] == [1]
