import math

import numpy as np
import pytest

from kfp_distributed.reports.series import LARGEST, decimate, describe_not_finite, envelope, smooth, to_series


@pytest.mark.parametrize(
    ("points", "series"),
    [
        ([], []),
        ([(1, 2), (2, 3.5)], [[1, 2], [2, 3.5]]),
        ([(1, math.nan), (math.nan, 1), (math.inf, 1)], [[1, math.nan]]),
        ([(1, 10**400), (2, -(10**400)), (10**400, 1)], [[1, math.inf], [2, -math.inf]]),
        ([(1, 1e301), (2, -1e301), (3, LARGEST)], [[1, math.inf], [2, -math.inf], [3, LARGEST]]),
    ],
)
def test_points_become_an_array(points, series):
    np.testing.assert_array_equal(to_series(points), np.array(series, float).reshape(-1, 2))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([4.0, 2.0], ""),
        ([4.0, math.inf, 2.0], "inf at epoch 2"),
        ([4.0, -math.inf, math.nan, math.nan, 2.0], "-inf at epoch 2, nan from epoch 3 to 4"),
        ([math.nan, 1.0] * 5, "nan at epoch 1, nan at epoch 3, nan at epoch 5 and 2 more times"),
    ],
)
def test_values_that_are_not_finite_are_described(values, text):
    assert describe_not_finite(to_series([*enumerate(values, 1)]), "epoch") == text


def test_decimation_keeps_the_ends_and_the_extremes_in_order():
    values = [math.sin(i / 50) for i in range(1000)]
    values[333], values[777] = 9.0, -9.0
    series = to_series([*enumerate(values)])
    decimated = decimate(series, 50)
    assert len(decimated) <= 50
    assert [decimated[0, 0], decimated[-1, 0]] == [0, 999]
    assert {(333, 9.0), (777, -9.0)} <= {tuple(point) for point in decimated.tolist()}
    assert (np.diff(decimated[:, 0]) > 0).all()
    assert decimate(series, 1000) is series


def test_smoothing_keeps_the_mean():
    series = to_series([(i, i % 10) for i in range(1000)])
    assert smooth(series, 100).tolist() == [[10 * i + 4.5, 4.5] for i in range(100)]
    assert smooth(series, 1000) is series


def test_the_envelope_is_the_range_of_all_series_in_each_interval():
    lines = [to_series([(0, 1), (1, 5), (10, 2)]), to_series([(0, -1), (10, 8)])]
    assert envelope(lines, 2).tolist() == [[1 / 3, -1, 5], [10, 2, 8]]
    assert envelope([to_series([(3, 1)]), to_series([(3, 2)])]).tolist() == [[3, 1, 2]]
