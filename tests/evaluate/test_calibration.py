"""The calibration of the predicted class' probability, against scikit-learn."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from kfp_distributed.components.evaluate.scoring.calibration import Calibration


def test_bins_are_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    probabilities = generator.uniform(0.3, 1, 1000)
    is_correct = generator.random(1000) < probabilities**2
    calibration = Calibration()
    for part in np.array_split(np.arange(1000), 3):
        calibration.add(probabilities[part], is_correct[part])
    accuracy, probability = calibration_curve(is_correct, probabilities, n_bins=10)
    np.testing.assert_allclose(calibration.accuracy[3:], accuracy)
    np.testing.assert_allclose(calibration.probability[3:], probability)
    assert np.isnan(calibration.accuracy[:3]).all()
    assert calibration.error == pytest.approx(np.abs(accuracy - probability) @ calibration.rows[3:] / 1000)


def test_counts():
    calibration = Calibration()
    calibration.add(np.array([1.0, 0.9, 0.5, 0.55]), np.array([True, False, True, False]))
    assert calibration.rows.tolist() == [0, 0, 0, 0, 0, 2, 0, 0, 0, 2]
    assert calibration.correct.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert calibration.error == pytest.approx((0.05 + 0.9) / 4)
