import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from kfp_distributed.components.evaluate.scoring.curves import curve_of_counts, exact_curve


def random_predictions(rows, seed=0):
    """Probabilities of a class by a classifier that is right more often than not, and whether rows are of it."""
    generator = np.random.default_rng(seed)
    is_positive = generator.random(rows) < 0.3
    return 1 / (1 + np.exp(-generator.normal(0, 2, rows) - 3 * is_positive)), is_positive


def test_a_curve_is_that_of_scikit_learn():
    probabilities, is_positive = random_predictions(1500)
    curve = exact_curve(probabilities, is_positive)
    false_positive_rate, recall, thresholds = roc_curve(is_positive, probabilities, drop_intermediate=False)
    np.testing.assert_allclose(curve.recall, recall)
    np.testing.assert_allclose(curve.false_positive_rate, false_positive_rate)
    np.testing.assert_allclose(curve.thresholds, [1, *thresholds[1:]])
    assert curve.roc_auc == pytest.approx(roc_auc_score(is_positive, probabilities))
    assert curve.average_precision == pytest.approx(average_precision_score(is_positive, probabilities))
    assert (curve.roc_auc_error, curve.average_precision_error) == (0, 0)


def test_points_of_a_curve():
    probabilities = np.repeat([1.0, 0.5, 0.0], [3, 2, 4])
    curve = exact_curve(probabilities, np.array([True, True, True, True, False, False, False, False, False]))
    assert curve.thresholds.tolist() == [1.0, 1.0, 0.5, 0.0]
    assert curve.recall.tolist() == [0.0, 0.75, 1.0, 1.0]
    assert curve.false_positive_rate.tolist() == [0.0, 0.0, 0.2, 1.0]
    assert curve.precision.tolist() == [1.0, 1.0, 0.8, 4 / 9]
    assert (curve.roc_auc, curve.average_precision) == (pytest.approx(0.2 * 0.875 + 0.8), 0.75 + 0.25 * 0.8)
    counted = curve_of_counts(np.array([1, 0.5, 0]), np.array([3, 1, 0]), np.array([0, 1, 4]))
    for name in ("thresholds", "recall", "false_positive_rate", "precision"):
        np.testing.assert_array_equal(getattr(counted, name), getattr(curve, name))


def test_a_class_without_rows_has_no_areas(recwarn):
    all_rows = exact_curve(np.array([0.2, 0.6, 0.6]), np.array([True, True, True]))
    assert math.isnan(all_rows.roc_auc)
    assert all_rows.average_precision == 1
    assert all_rows.recall.tolist() == [0, 2 / 3, 1]
    no_rows = exact_curve(np.array([0.8, 0.4]), np.array([False, False]))
    assert math.isnan(no_rows.roc_auc)
    assert math.isnan(no_rows.average_precision)
    assert no_rows.thresholds.tolist() == [1, 0.8, 0.4]
    assert list(recwarn) == []


def test_a_thinned_curve_keeps_its_ends_and_its_shape():
    curve = exact_curve(*random_predictions(5000))
    assert len(curve.thresholds) <= 2000
    thinned = curve.thinned(50)
    assert len(thinned.thresholds) <= 50
    assert (thinned.recall[0], thinned.recall[-1]) == (0, 1)
    assert np.trapezoid(thinned.recall, thinned.false_positive_rate) == pytest.approx(curve.roc_auc, abs=0.005)
    assert thinned.roc_auc == curve.roc_auc
    assert curve.thinned(5000) is curve


def test_a_curve_of_one_kind_of_rows_is_thinned():
    probabilities = np.linspace(0, 1, 5000)
    curve = exact_curve(probabilities, np.zeros(5000, bool))
    assert len(curve.thresholds) <= 2000
    assert (curve.false_positive_rate[0], curve.false_positive_rate[-1]) == (0, 1)
