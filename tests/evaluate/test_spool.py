import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from kfp_distributed.components.evaluate.scoring.spool import ScoreSpool, compact


def filled(probabilities, labels, **limits):
    spool = ScoreSpool(probabilities.shape[1], **limits)
    for begin in range(0, len(labels), 700):
        spool.add(probabilities[begin : begin + 700], labels[begin : begin + 700])
    return spool


@pytest.fixture(params=[2, 4])
def predictions(request):
    classes, generator = request.param, np.random.default_rng(request.param)
    labels = generator.integers(0, classes, 5000)
    logits = generator.normal(0, 3, (5000, classes)) + 3 * np.eye(classes)[labels]
    probabilities = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    truth = np.eye(classes)[labels]
    areas = [
        (roc_auc_score(truth[:, i], probabilities[:, i]), average_precision_score(truth[:, i], probabilities[:, i]))
        for i in range(classes)
    ]
    micro = [score(truth, probabilities, average="micro") for score in (roc_auc_score, average_precision_score)]
    return probabilities.astype(float), labels, areas, micro


def test_curves_are_exact_while_the_rows_fit(predictions):
    probabilities, labels, areas, micro = predictions
    spool = filled(probabilities, labels)
    assert spool.is_exact
    np.testing.assert_allclose([(curve.roc_auc, curve.average_precision) for curve in spool.curves], areas, atol=1e-9)
    average = spool.micro_average
    np.testing.assert_allclose([average.roc_auc, average.average_precision], micro, atol=1e-9)
    assert {curve.roc_auc_error for curve in [*spool.curves, average]} == {0}


# 1 byte does not hold one batch. 300,000 bytes hold 3 batches of 700 rows.
@pytest.mark.parametrize("memory", [1, 300_000])
def test_curves_of_more_rows_state_their_error(predictions, memory):
    probabilities, labels, areas, micro = predictions
    spool = filled(probabilities, labels, memory=memory, most_cells=512)
    assert not spool.is_exact
    for curve, exact in zip([*spool.curves, spool.micro_average], [*areas, micro], strict=True):
        assert 0 < curve.roc_auc_error < 0.002
        assert curve.roc_auc == pytest.approx(exact[0], abs=curve.roc_auc_error)
        assert 0 < curve.average_precision_error < 0.01
        assert curve.average_precision == pytest.approx(exact[1], abs=curve.average_precision_error)


def test_the_micro_average_of_too_many_pairs_is_counted(predictions):
    probabilities, labels, areas, micro = predictions
    classes = probabilities.shape[1]
    memory = 5000 * (4 * classes + 4 + 140)
    spool = filled(probabilities, labels, memory=memory)
    assert spool.is_exact
    np.testing.assert_allclose([curve.roc_auc for curve in spool.curves], [area for area, _ in areas], atol=1e-9)
    average = spool.micro_average
    # Fewer pairs than cells lose nothing.
    assert average.roc_auc_error == pytest.approx(0, abs=1e-4)
    assert average.roc_auc == pytest.approx(micro[0], abs=average.roc_auc_error + 1e-9)


def test_float32_is_kept_as_float32():
    short = np.array([[0.1, 0.9]], np.float32).astype(np.float64)
    assert compact(short).dtype == np.float32
    np.testing.assert_array_equal(compact(short), short)
    # The complement of a small probability needs float64.
    long = np.array([[1 - 1e-12, 1e-12]])
    assert compact(long).dtype == np.float64
    np.testing.assert_array_equal(compact(long), long)
