"""The measure of a column that predicts the label alone."""

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.neighbors import KNeighborsClassifier

from kfp_distributed.components.prepare_data.report.leakage import SUSPICIOUS_REDUCTION, Predictor, rank_predictors
from kfp_distributed.storage.dataset import Column

ROWS = 1000
GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, 3, ROWS).astype(np.int32)


def predictor(values, kind="number", labels=LABELS):
    column = Column("x", kind, "float32" if kind == "number" else "int32")
    (result,) = rank_predictors([column], {"x": np.asarray(values, np.float32)[:, None]}, labels)
    return result


def with_gaps(values, share=0.2):
    return np.where(GENERATOR.random(ROWS) < share, np.nan, values)


def test_error_reduction():
    assert Predictor("x", 0.95, 0.5).error_reduction == pytest.approx(0.9)
    assert Predictor("x", 0.5, 0.5).error_reduction == 0
    assert Predictor("x", 0.4, 0.5).error_reduction == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (LABELS, "number"),
        (LABELS, "category"),
        (LABELS % 2 + 10 * (LABELS // 2), "number"),
        (100 - LABELS + GENERATOR.uniform(-0.4, 0.4, ROWS), "number"),
        (np.argsort(np.argsort(LABELS, kind="stable")), "number"),
        (np.where(GENERATOR.random(ROWS) < 0.02, (LABELS + 1) % 3, LABELS), "category"),
        (np.where(LABELS == 0, np.nan, LABELS), "number"),
    ],
    ids=["code", "category", "other codes", "continuous", "ID in a sorted file", "2 % noise", "missing for a class"],
)
def test_a_column_that_predicts_the_label_is_suspicious(values, kind):
    assert predictor(values, kind).error_reduction > SUSPICIOUS_REDUCTION


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (GENERATOR.normal(size=ROWS), "number"),
        (np.arange(ROWS), "category"),
        (np.arange(ROWS), "number"),
        (LABELS + GENERATOR.normal(0, 1, ROWS), "number"),
        (np.full(ROWS, np.nan), "number"),
        (np.where(GENERATOR.random(ROWS) < 0.3, (LABELS + 1) % 3, LABELS), "category"),
        (with_gaps(LABELS, 0.3), "number"),
    ],
    ids=["noise", "ID as category", "ID in a mixed file", "informative", "missing", "30 % noise", "30 % missing"],
)
def test_other_columns_are_not_suspicious(values, kind):
    assert predictor(values, kind).error_reduction < 0.75


def test_accuracies_are_those_of_scikit_learn():
    # A step of 1/8, so that no value has two equally near ones.
    values = GENERATOR.permutation(ROWS).astype(np.float64) ** 2 / 8
    labels = (values > values.mean()).astype(np.int32)
    labels[::7] = 1
    halves = np.arange(ROWS) % 2 == 0
    expected = [
        np.mean(
            [
                rule.fit(values[fit, None], labels[fit]).score(values[~fit, None], labels[~fit])
                for fit in (halves, ~halves)
            ]
        )
        for rule in (KNeighborsClassifier(1), DummyClassifier())
    ]
    result = predictor(values, labels=labels)
    assert [result.accuracy, result.majority_accuracy] == pytest.approx(expected)


def test_columns_are_ranked_and_tensors_left_out():
    columns = [
        Column("noise", "number", "float32"),
        Column("image", "tensor", "uint8", (4,)),
        Column("leak", "category", "int32"),
    ]
    values = {
        "noise": GENERATOR.normal(size=(ROWS, 1)).astype(np.float32),
        "image": np.zeros((ROWS, 4), np.float32),
        "leak": LABELS[:, None].astype(np.float32),
    }
    assert [result.column for result in rank_predictors(columns, values, LABELS)] == ["leak", "noise"]


def test_nothing_is_measured_with_too_few_rows_of_other_classes():
    labels = np.zeros(ROWS, np.int32)
    labels[:19] = 1
    column = Column("x", "number", "float32")
    assert rank_predictors([column], {"x": labels[:, None].astype(np.float32)}, labels) == []
    assert rank_predictors([column], {"x": np.ones((1, 1), np.float32)}, np.zeros(1, np.int32)) == []
