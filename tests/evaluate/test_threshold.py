"""Whether a model is good enough."""

import math

import pytest

from kfp_distributed.components.acceptance.threshold import DIRECTIONS, Threshold
from kfp_distributed.storage.dataset import Label

CLASSES, NUMBER = Label("kind", ("no", "yes")), Label("price", (), "regression")


@pytest.mark.parametrize(
    ("label", "metric", "bound", "score", "is_good_enough"),
    [
        (CLASSES, "accuracy", 0.9, 0.9, True),
        (CLASSES, "macro_f1", 0.9, 0.89, False),
        (CLASSES, "roc_auc", 0.9, 0.95, True),
        (CLASSES, "average_precision", 0.9, 0.1, False),
        (CLASSES, "recall_yes", 0.9, 0.95, True),
        (CLASSES, "precision_no", 0.9, 0.1, False),
        (CLASSES, "loss", 0.5, 0.5, True),
        (CLASSES, "loss", 0.5, 0.6, False),
        (CLASSES, "calibration_error", 0.1, 0.05, True),
        (NUMBER, "r2", 0.0, -1.0, False),
        (NUMBER, "r2", 0.8, 0.9, True),
        (NUMBER, "mae", 3.0, 2.0, True),
        (NUMBER, "mae", 3.0, 4.0, False),
        (NUMBER, "rmse", 3.0, 3.0, True),
        (NUMBER, "rmse", None, 1e9, True),
    ],
)
def test_a_metric_is_compared_in_its_direction(label, metric, bound, score, is_good_enough):
    assert Threshold.of_label(label, metric, bound).judge({metric: score}) == (score, is_good_enough)


@pytest.mark.parametrize(("label", "metric"), [(CLASSES, "accuracy"), (NUMBER, "r2")])
def test_each_task_has_a_default(label, metric):
    assert Threshold.of_label(label).metric == metric


@pytest.mark.parametrize(
    ("label", "metric", "message"),
    [
        (NUMBER, "accuracy", "metric 'accuracy' is not a metric of the task 'regression' (label 'price'): allowed are "
         "r2, mae, rmse"),
        (CLASSES, "recall_maybe", "metric 'recall_maybe' is not a metric of the task 'classification' (label 'kind'): "
         "allowed are accuracy, macro_f1, roc_auc, average_precision, loss, calibration_error, precision_CLASS and "
         "recall_CLASS of each class"),
        (CLASSES, "examples", "metric 'examples' is not a metric"),
    ],
)  # fmt: skip
def test_a_metric_that_the_task_lacks_is_refused(label, metric, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the message is compared)
        Threshold.of_label(label, metric)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("bound", [math.nan, math.inf, -math.inf, "x"])
def test_a_bound_that_is_not_finite_is_refused(bound):
    with pytest.raises(ValueError, match=rf"bound is {bound!r}, no finite number: set one, or None for no bound"):
        Threshold.of_label(NUMBER, bound=bound)
    with pytest.raises(ValueError, match=rf"bound is {bound!r}, no finite number"):
        Threshold.of_texts("exact_match", bound)


def test_an_undefined_metric_is_refused():
    message = "the metric 'r2' is undefined for the rows of this dataset: pass another one .*, such as mae, rmse, or"
    with pytest.raises(ValueError, match=message):
        Threshold.of_label(NUMBER).judge({"mae": 1.0, "rmse": 1.0, "examples": 3})


@pytest.mark.parametrize("score", [math.inf, math.nan])
def test_a_score_that_is_not_finite_is_refused(score):
    with pytest.raises(ValueError, match=f"the metric 'perplexity' is {score}, which is no score"):
        Threshold.of_texts("perplexity").judge({"loss": 800.0, "perplexity": score})


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (None, "score=0.25 (loss), no bound is set"),
        (0.3, "score=0.25 (loss) is good enough: the bound is at most 0.3"),
        (0.2, "score=0.25 (loss) is not good enough: the bound is at most 0.2"),
    ],
)
def test_the_log_says_whether_the_model_is_good_enough(bound, expected):
    threshold = Threshold.of_label(CLASSES, "loss", bound)
    assert threshold.describe(threshold.judge({"loss": 0.25})) == expected


def test_every_task_but_none_has_metrics():
    assert {task for task, names in DIRECTIONS.items() if not names} == {"none"}
