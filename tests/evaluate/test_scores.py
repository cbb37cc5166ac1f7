import math

import numpy as np
import pytest
from sklearn.metrics import (
    confusion_matrix,
    log_loss,
)

from kfp_distributed.components.evaluate.classification import log_lines, metric_values
from kfp_distributed.components.evaluate.scoring.calibration import Calibration
from kfp_distributed.components.evaluate.scoring.classification_scores import (
    Evaluation,
    Scores,
    check_probabilities,
    shown_error,
)
from kfp_distributed.components.evaluate.scoring.mistakes import WorstMistakes
from kfp_distributed.components.evaluate.scoring.spool import ScoreSpool
from kfp_distributed.components.model_formats.model_outputs import class_matrix


def test_scores_of_classes_without_rows_or_predictions():
    scores = Scores(("ant", "bee", "cat"), np.array([[2, 1, 0], [0, 0, 0], [1, 0, 0]]), 0.5)
    assert (scores.rows, scores.accuracy) == (4, 0.5)
    expected = [(2 / 3, 2 / 3, 2 / 3), (0.0, math.nan, 0.0), (math.nan, 0.0, 0.0)]
    assert scores.class_scores() == [pytest.approx(values, nan_ok=True) for values in expected]


def evaluation_of(probabilities, labels, **limits):
    """The evaluation of these probabilities, and the predicted classes."""
    classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    spool, calibration = ScoreSpool(classes, **limits), Calibration()
    spool.add(probabilities, labels)
    calibration.add(probabilities.max(axis=1), predicted == labels)
    names = tuple(map(str, range(classes)))
    scores = Scores(
        names,
        confusion_matrix(labels, predicted, labels=range(classes)),
        log_loss(labels, probabilities, labels=range(classes)),
    )
    return Evaluation(scores, spool, calibration, WorstMistakes(1)), predicted


def test_scores_that_are_not_exact_state_their_error():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 2000)
    probabilities = generator.dirichlet(np.ones(3), 2000) / 2 + np.eye(3)[labels] / 2
    exact, _ = evaluation_of(probabilities, labels)
    assert exact.errors() == {}
    counted, _ = evaluation_of(probabilities, labels, memory=1, most_cells=100)
    errors, expected = counted.errors(), exact.summary()
    curves = counted.spool.curves
    assert errors == {
        "roc_auc": pytest.approx(np.mean([curve.roc_auc_error for curve in curves])),
        "average_precision": pytest.approx(np.mean([curve.average_precision_error for curve in curves])),
    }
    for name, value in counted.summary().items():
        assert value == pytest.approx(expected[name], abs=errors.get(name, 0))
    assert [line.partition(" is within ")[0] for line in log_lines(counted)[:-1]] == list(errors)
    assert log_lines(exact) == log_lines(counted)[-1:]
    metrics = metric_values(counted)
    assert {name: metrics[name] for name in metrics if name.endswith("_error")} == {
        "calibration_error": expected["calibration_error"],
        "roc_auc_error": errors["roc_auc"],
        "average_precision_error": errors["average_precision"],
    }


@pytest.mark.parametrize(("error", "shown"), [(0.0, 0.0001), (0.00005, 0.0001), (0.00006, 0.0002), (0.0123, 0.0124)])
def test_a_shown_error_covers_the_rounding_of_the_score(error, shown):
    assert shown_error(error) == shown


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
    values = class_matrix(np.array(output), 1, 2)
    np.testing.assert_allclose(check_probabilities(values, np.array([0])), expected)


@pytest.mark.parametrize(
    ("output", "rows", "classes", "message"),
    [
        ([[0.5, 0.5]], 1, 3, r"the shape \[1, 2\] for a batch of 1 rows, where \[1, 3\], one probability"),
        ([[0.5]], 1, 3, r"the shape \[1, 1\] .*\[1, 3\]"),
        ([[0.5, 0.5]], 2, 2, r"the shape \[1, 2\] for a batch of 2 rows"),
        ([[1, 0], [2.5, -1.5]], 2, 2, r"row 101 is \[ 2.5 -1.5\], not probabilities: end it with a softmax"),
        ([[0.9, 0.9]], 1, 2, "not probabilities"),
        ([[3.0]], 1, 2, "not probabilities"),
    ],
)
def test_outputs_that_are_not_probabilities_are_refused(output, rows, classes, message):
    with pytest.raises(ValueError, match=message):
        check_probabilities(class_matrix(np.array(output), rows, classes), 100 + np.arange(rows))
