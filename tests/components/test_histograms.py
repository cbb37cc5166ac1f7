"""The bins of histograms."""

import numpy as np
import pytest

from kfp_distributed.components.summaries.histograms import bin_edges, count_bins

pytestmark = pytest.mark.figures


def counted(values, labels=None, classes=tuple("abcdef")):
    values = np.asarray(values, np.float32)[:, None]
    return count_bins(values, np.zeros(len(values), int) if labels is None else np.asarray(labels), classes)


def test_whole_numbers_have_a_bin_each_and_few_classes_their_own_counts():
    edges, counts, outliers = counted([1, 2, 2, 4, np.nan], [0, 0, 1, 1, 1], ("yes", "no"))
    assert edges == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert counts == {"yes": [1, 1, 0, 0], "no": [0, 1, 0, 1]}
    assert outliers == 0


@pytest.mark.parametrize("classes", [tuple("abcdef"), ()])
def test_the_rows_of_many_or_no_classes_are_counted_together(classes):
    assert counted([0, 1, 1], classes=classes)[1:] == ({"training rows": [1, 2]}, 0)


def test_other_numbers_have_30_bins_over_their_range():
    edges, counts, outliers = counted(np.linspace(0, 1, 61))
    assert edges == pytest.approx(np.linspace(0, 1, 31))
    assert sum(counts["training rows"]) == 61
    assert set(counts["training rows"]) <= {1, 2, 3}
    assert outliers == 0


def test_far_outliers_are_left_out():
    numbers = np.append(np.linspace(0, 1, 1000), [1e6])
    edges, counts, outliers = counted(numbers)
    assert edges[-1] < 1
    assert outliers == 1001 - sum(counts["training rows"])
    assert 8 <= outliers <= 12


@pytest.mark.parametrize("numbers", [[0.5], [0.5, 0.5], [3e38, -3e38], [0] * 1000 + [0.5]])
def test_bins_of_odd_numbers(numbers):
    edges = bin_edges(np.array(numbers, np.float32))
    assert np.isfinite(edges).all()
    assert np.histogram(numbers, edges)[0].sum() == len(numbers)


@pytest.mark.parametrize(
    ("numbers", "bins"),
    [
        ([1e16], 2),
        ([-1e17, -1e17], 2),
        ([1e17, 1e17 + 16], 1),
        ([2.0**53, 2.0**53 + 4], 2),
        ([2.0**52, 2.0**52 + 1], 1),
        ([1e15 + 0.5], 8),
        ([1e30, 2e30], 30),
        ([0, 5e-324], 1),
        ([5e-324], 30),
        ([1e-310, 2e-310], 30),
    ],
)
def test_no_bin_is_narrower_than_a_step_of_64_bit_floats(numbers, bins):
    edges = bin_edges(np.array(numbers))
    assert len(edges) == bins + 1
    assert (np.diff(edges) > 0).all()
    assert np.histogram(numbers, edges)[0].sum() == len(numbers)


def test_a_column_without_numbers_has_no_bins():
    assert counted([np.nan]) == ([], {}, 0)
