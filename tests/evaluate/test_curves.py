"""ROC and precision-recall curves, against scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from kfp_distributed.components.evaluate.curves import ScoreCounts, bins_of, make_curve


def random_predictions(rows, classes, seed=0):
    """Probabilities of a classifier that is right more often than not, and the true classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, rows)
    logits = generator.normal(0, 3, (rows, classes))
    logits[np.arange(rows), labels] += 3
    values = np.exp(logits)
    return values / values.sum(axis=1, keepdims=True), labels


def test_areas_are_those_of_scikit_learn():
    probabilities, labels = random_predictions(3000, 4)
    counts = ScoreCounts(4)
    for begin in range(0, 3000, 700):
        counts.add(probabilities[begin : begin + 700], labels[begin : begin + 700])
    truth = np.eye(4)[labels]
    areas = [(curve.roc_auc, curve.average_precision) for curve in counts.curves]
    expected = [
        (roc_auc_score(truth[:, i], probabilities[:, i]), average_precision_score(truth[:, i], probabilities[:, i]))
        for i in range(4)
    ]
    np.testing.assert_allclose(areas, expected, atol=1e-3)
    micro = counts.micro_average()
    assert micro.roc_auc == pytest.approx(roc_auc_score(truth, probabilities, average="micro"), abs=1e-3)
    expected_micro = average_precision_score(truth, probabilities, average="micro")
    assert micro.average_precision == pytest.approx(expected_micro, abs=1e-3)


def test_areas_are_exact_for_probabilities_that_fall_into_different_bins():
    probabilities, labels = random_predictions(60, 2, seed=3)
    _, first_rows = np.unique(bins_of(probabilities[:, 1]), return_index=True)
    probabilities, labels = probabilities[first_rows], labels[first_rows]
    counts = ScoreCounts(2)
    counts.add(probabilities, labels)
    curve = counts.curves[1]
    assert curve.roc_auc == pytest.approx(roc_auc_score(labels, probabilities[:, 1]))
    assert curve.average_precision == pytest.approx(average_precision_score(labels, probabilities[:, 1]))
    false_positive_rate, recall, _ = roc_curve(labels, probabilities[:, 1], drop_intermediate=False)
    np.testing.assert_allclose(curve.recall, recall)
    np.testing.assert_allclose(curve.false_positive_rate, false_positive_rate)


def test_probabilities_near_0_and_1_fall_into_different_bins():
    probabilities = np.array([0.99999, 0.9999, 1e-5, 1e-6])
    assert len(set(bins_of(probabilities).tolist())) == 4
    assert bins_of(np.array([0.0, 0.5, 1.0])).tolist() == [0, 1024, 2047]


def test_points_of_a_curve():
    positives, negatives = np.zeros((2, 2048), int)
    positives[[2047, 1024]] = 3, 1
    negatives[[1024, 0]] = 1, 4
    curve = make_curve(positives, negatives)
    assert curve.thresholds.round(4).tolist() == [1.0, 1.0, 0.5, 0.0]
    assert curve.recall.tolist() == [0.0, 0.75, 1.0, 1.0]
    assert curve.false_positive_rate.tolist() == [0.0, 0.0, 0.2, 1.0]
    assert curve.precision.tolist() == [1.0, 1.0, 0.8, 4 / 9]
    assert (curve.roc_auc, curve.average_precision) == (0.2 * 0.875 + 0.8, 0.75 + 0.25 * 0.8)


def test_a_class_without_rows_has_no_areas(recwarn):
    counts = ScoreCounts(2)
    counts.add(np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([0, 0]))
    all_rows, no_rows = counts.curves
    assert math.isnan(all_rows.roc_auc)
    assert all_rows.average_precision == 1
    assert math.isnan(no_rows.roc_auc)
    assert math.isnan(no_rows.average_precision)
    assert list(recwarn) == []


def test_a_thinned_curve_keeps_its_ends_and_its_shape():
    counts = ScoreCounts(2)
    counts.add(*random_predictions(5000, 2))
    curve = counts.curves[1]
    thinned = curve.thinned(50)
    assert len(thinned.thresholds) <= 50
    assert (thinned.recall[0], thinned.recall[-1]) == (0, 1)
    assert np.trapezoid(thinned.recall, thinned.false_positive_rate) == pytest.approx(curve.roc_auc, abs=0.005)
    assert thinned.roc_auc == curve.roc_auc
    assert curve.thinned(5000) is curve
