import math

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    confusion_matrix,
    f1_score,
    log_loss,
    precision_recall_fscore_support,
    roc_auc_score,
)

from kfp_distributed.components.evaluate.calibration import Calibration
from kfp_distributed.components.evaluate.curves import ScoreCounts
from kfp_distributed.components.evaluate.mistakes import WorstMistakes
from kfp_distributed.components.evaluate.scores import Evaluation, Scores, check_probabilities, output_matrix


def test_scores_of_classes_without_rows_or_predictions():
    scores = Scores(("ant", "bee", "cat"), np.array([[2, 1, 0], [0, 0, 0], [1, 0, 0]]), 0.5)
    assert (scores.rows, scores.accuracy) == (4, 0.5)
    expected = [(2 / 3, 2 / 3, 2 / 3), (0.0, math.nan, 0.0), (math.nan, 0.0, 0.0)]
    assert scores.class_scores() == [pytest.approx(values, nan_ok=True) for values in expected]


def evaluation_of(probabilities, labels):
    """The evaluation of these probabilities, and the predicted classes."""
    classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    counts, calibration = ScoreCounts(classes), Calibration()
    counts.add(probabilities, labels)
    calibration.add(probabilities.max(axis=1), predicted == labels)
    names = tuple(map(str, range(classes)))
    scores = Scores(
        names,
        confusion_matrix(labels, predicted, labels=range(classes)),
        log_loss(labels, probabilities, labels=range(classes)),
    )
    return Evaluation(scores, counts, calibration, WorstMistakes(1)), predicted


@pytest.mark.parametrize("classes", [2, 4])
def test_the_summary_is_that_of_scikit_learn(classes):
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes, 2000)
    probabilities = generator.dirichlet(np.ones(classes), 2000) / 2 + np.eye(classes)[labels] / 2
    probabilities = np.where(generator.random((2000, 1)) < 0.3, np.roll(probabilities, 1, axis=1), probabilities)
    evaluation, predicted = evaluation_of(probabilities, labels)
    truth = np.eye(classes)[labels]
    positive = slice(1, None) if classes == 2 else slice(None)
    expected = {
        "accuracy": accuracy_score(labels, predicted),
        "loss": log_loss(labels, probabilities),
        "examples": 2000,
        "macro_f1": f1_score(labels, predicted, average="macro"),
        "roc_auc": roc_auc_score(truth[:, positive], probabilities[:, positive]),
        "average_precision": average_precision_score(truth[:, positive], probabilities[:, positive]),
        "calibration_error": evaluation.calibration.error,
    }
    assert evaluation.summary() == pytest.approx(expected, abs=1e-3)
    precision, recall, f1, _ = precision_recall_fscore_support(labels, predicted)
    np.testing.assert_allclose(evaluation.scores.class_scores(), np.column_stack([precision, recall, f1]))
    average = "micro" if classes > 2 else "macro"
    area = roc_auc_score(truth[:, positive], probabilities[:, positive], average=average)
    assert evaluation.roc_curve().roc_auc == pytest.approx(area, abs=1e-3)


def test_undefined_scores_are_left_out():
    evaluation, _ = evaluation_of(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 0]))
    assert list(evaluation.summary()) == ["accuracy", "loss", "examples", "macro_f1", "calibration_error"]


@pytest.mark.parametrize(("classes", "drawn"), [(100, 100), (101, 0)])
def test_up_to_100_classes_are_in_the_matrix_of_kfp(classes, drawn):
    names = tuple(map(str, range(classes)))
    assert Scores(names, np.eye(classes, dtype=int), 0.5).drawn == names[:drawn]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([[0.25, 0.75]], [[0.25, 0.75]]),
        ([[0.75]], [[0.25, 0.75]]),
        ([0.75], [[0.25, 0.75]]),
        ([[1.001, -0.001]], [[1.0, 0.0]]),
    ],
    ids=["softmax", "sigmoid", "flat sigmoid", "rounded"],
)
def test_probabilities_of_two_classes(output, expected):
    values = output_matrix(np.array(output), 1, 2)
    np.testing.assert_allclose(check_probabilities(values, np.array([0])), expected)


@pytest.mark.parametrize(
    ("output", "rows", "classes", "message"),
    [
        ([[0.5, 0.5]], 1, 3, r"an array of shape \(1, 2\) for 1 rows, where \(1, 3\) is needed"),
        ([[0.5]], 1, 3, r"an array of shape \(1, 1\) .*\(1, 3\)"),
        ([[0.5, 0.5]], 2, 2, r"an array of shape \(1, 2\) for 2 rows"),
        ([[1, 0], [2.5, -1.5]], 2, 2, r"row 101 is \[ 2.5 -1.5\], not probabilities: end it with a softmax"),
        ([[0.9, 0.9]], 1, 2, "not probabilities"),
        ([[3.0]], 1, 2, "not probabilities"),
    ],
)
def test_outputs_that_are_not_probabilities_are_refused(output, rows, classes, message):
    with pytest.raises(ValueError, match=message):
        check_probabilities(output_matrix(np.array(output), rows, classes), 100 + np.arange(rows))
