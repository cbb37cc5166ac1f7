import math

import numpy as np
import pytest

from kfp_distributed.components.evaluate.scores import Scores, answer_matrix, check_probabilities


def test_classes_that_are_never_predicted_or_without_examples():
    scores = Scores(("ant", "bee", "cat"), np.array([[2, 1, 0], [0, 0, 0], [1, 0, 0]]), 0.5)
    assert (scores.rows, scores.accuracy) == (4, 0.5)
    expected = [(2 / 3, 2 / 3), (0.0, math.nan), (math.nan, 0.0)]
    assert scores.precision_and_recall() == [pytest.approx(pair, nan_ok=True) for pair in expected]


@pytest.mark.parametrize(("classes", "drawn"), [(100, 100), (101, 0)])
def test_few_classes_are_drawn(classes, drawn):
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
    values = answer_matrix(np.array(output), 1, 2)
    np.testing.assert_allclose(check_probabilities(values, np.array([0])), expected)


@pytest.mark.parametrize(
    ("output", "rows", "classes", "message"),
    [
        ([[0.5, 0.5]], 1, 3, r"an array of shape \(1, 2\), where \(1, 3\) is needed"),
        ([[0.5]], 1, 3, r"an array of shape \(1, 1\), where \(1, 3\)"),
        ([[0.5, 0.5]], 2, 2, r"answered 2 rows with an array of shape \(1, 2\)"),
        ([[1, 0], [2.5, -1.5]], 2, 2, r"row 101 is \[ 2.5 -1.5\], not probabilities: end it with a softmax"),
        ([[0.9, 0.9]], 1, 2, "not probabilities"),
        ([[3.0]], 1, 2, "not probabilities"),
    ],
)
def test_no_probabilities(output, rows, classes, message):
    with pytest.raises(ValueError, match=message):
        check_probabilities(answer_matrix(np.array(output), rows, classes), 100 + np.arange(rows))
