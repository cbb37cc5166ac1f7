"""All scores of an evaluation, against scikit-learn, for probabilities of every shape."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    log_loss,
    precision_recall_fscore_support,
    roc_auc_score,
)

from kfp_distributed.components.evaluate.classification import metric_values, score_rows
from kfp_distributed.storage.dataset import Column, DatasetManifest, Label, Shard

pytestmark = pytest.mark.takes(7)


@pytest.fixture(scope="module")
def metrics_of(tmp_path_factory):
    """Score the outputs of a model on a dataset whose rows are their numbers, and return the metrics."""
    folder = tmp_path_factory.mktemp("dataset")

    def score(outputs, labels, classes):
        numbers = np.arange(len(labels), dtype=np.float32)
        pq.write_table(pa.table({"number": numbers, "kind": labels.astype(np.int32)}), folder / "part.parquet")
        manifest = DatasetManifest(
            "test",
            (Column("number", "number", "float32"),),
            Label("kind", tuple(map(str, range(classes)))),
            (Shard("part.parquet", len(labels), 1, "0"),),
            tuple(np.bincount(labels, minlength=classes).tolist()),
            0,
            "made up",
        )
        return metric_values(score_rows(lambda rows: outputs[rows[:, 0].astype(int)], folder, manifest))

    return score


def scores_of_scikit_learn(probabilities, labels):
    """The metrics of `evaluate`, computed by scikit-learn. Those that it cannot define are left out."""
    classes, predicted = probabilities.shape[1], probabilities.argmax(axis=1)
    names, truth = range(classes), np.eye(classes, dtype=int)[labels]
    columns = [1] if classes == 2 else names
    areas = [roc_auc_score(truth[:, i], probabilities[:, i]) for i in columns if 0 < truth[:, i].sum() < len(truth)]
    precisions = [average_precision_score(truth[:, i], probabilities[:, i]) for i in columns if truth[:, i].any()]
    precision, recall, _, _ = precision_recall_fscore_support(labels, predicted, labels=names, zero_division=np.nan)
    values = {
        "accuracy": accuracy_score(labels, predicted),
        "loss": log_loss(labels, probabilities.clip(1e-7), labels=names),
        "examples": len(labels),
        "macro_f1": f1_score(labels, predicted, average="macro"),
        "roc_auc": np.mean(areas) if areas else math.nan,
        "average_precision": np.mean(precisions) if precisions else math.nan,
    }
    for name in names:
        values |= {f"precision_{name}": precision[name], f"recall_{name}": recall[name]}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def logits(generator, labels, classes, scale):
    """Numbers that are higher for the true class of most rows."""
    return scale * (generator.normal(0, 1, (len(labels), classes)) + 2.7 * np.eye(classes)[labels])


def softmax(values):
    exponentials = np.exp(values - values.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def rounded(values):
    """Round to 1 digit, so that many rows have equal probabilities. The last class has the rest."""
    tenths = np.floor(values[:, :-1] * 10)
    return np.column_stack([tenths, 10 - tenths.sum(axis=1)]) / 10


SHAPES = {
    "spread": lambda generator, labels, classes: softmax(logits(generator, labels, classes, 1)),
    "close together": lambda generator, labels, classes: softmax(logits(generator, labels, classes, 1e-6)),
    "near 0 and 1": lambda generator, labels, classes: softmax(logits(generator, labels, classes, 4)),
    "constant": lambda generator, labels, classes: np.full((len(labels), classes), 1 / classes),
    "ties": lambda generator, labels, classes: rounded(softmax(logits(generator, labels, classes, 1))),
}


@pytest.mark.filterwarnings("ignore:The y_p")  # scikit-learn warns that the sums of rounded float16 rows are not 1.
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_those_of_scikit_learn(metrics_of, shape, classes, dtype):
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes, 5000)
    outputs = SHAPES[shape](generator, labels, classes).astype(dtype)
    # scikit-learn clips float16 at 0.001. float64 holds the same numbers.
    expected = scores_of_scikit_learn(outputs.astype(np.float64), labels)
    metrics = metrics_of(outputs, labels, classes)
    assert 0 <= metrics.pop("calibration_error") <= 1
    assert metrics == pytest.approx(expected, abs=1e-6)


def test_probabilities_close_together_are_ranked(metrics_of):
    """The model ranks most rows rightly, and all its probabilities are 0.5 within 1e-6."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 4000)
    values = 0.5 + 1e-7 * (generator.normal(0, 1, 4000) + 2.7 * labels)
    metrics = metrics_of(values, labels, 2)
    assert metrics["roc_auc"] == pytest.approx(roc_auc_score(labels, values), abs=1e-6)
    assert metrics["roc_auc"] == pytest.approx(0.974, abs=0.001)
    assert metrics["average_precision"] == pytest.approx(average_precision_score(labels, values), abs=1e-6)


def test_tiny_probabilities_of_a_sigmoid_are_ranked(metrics_of):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 3000)
    values = (10.0 ** generator.uniform(-12, -9, 3000) * (1 + 20 * labels)).astype(np.float32)
    metrics = metrics_of(values[:, None], labels, 2)
    assert metrics["roc_auc"] == pytest.approx(roc_auc_score(labels, values), abs=1e-6)
    assert metrics["average_precision"] == pytest.approx(average_precision_score(labels, values), abs=1e-6)
    # Half of the rows have a probability below 1e-7, which counts as 1e-7.
    assert metrics["loss"] == pytest.approx(log_loss(labels, values.astype(np.float64).clip(1e-7)), abs=1e-6)


@pytest.mark.parametrize("labels", [[1], [0, 0, 2], [2, 2, 2, 2]], ids=["one row", "class without rows", "one class"])
def test_classes_without_rows(metrics_of, labels):
    outputs = np.tile([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], (2, 1))[: len(labels)]
    metrics = metrics_of(outputs, np.array(labels), 3)
    metrics.pop("calibration_error")
    assert metrics == pytest.approx(scores_of_scikit_learn(outputs, np.array(labels)), abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), classes=st.integers(2, 5), dtype=st.sampled_from([np.float32, np.float64]))
def test_scores_of_any_probabilities_are_those_of_scikit_learn(metrics_of, data, classes, dtype):
    weight = st.one_of(st.floats(1e-6, 1), st.sampled_from([0.25, 1.0]), st.floats(0.5, 0.500001))
    row = st.tuples(st.integers(0, classes - 1), *[weight] * classes)
    rows = data.draw(st.lists(row, min_size=1, max_size=30))
    labels, weights = np.array([row[0] for row in rows]), np.array([row[1:] for row in rows])
    outputs = (weights / weights.sum(axis=1, keepdims=True)).astype(dtype)
    metrics = metrics_of(outputs, labels, classes)
    metrics.pop("calibration_error")
    assert metrics == pytest.approx(scores_of_scikit_learn(outputs, labels), abs=1e-6)
