"""Which epoch is the best, and when a training ends early."""

import math
import re

import pytest

from kfp_distributed.trainers.epochs.best_epoch import (
    BestEpoch,
    EpochChoice,
    choose_epoch,
    describe_end,
    describe_model,
    follow_epoch,
    resume_best,
)
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters

NAN = math.nan


def followed(metric, values, patience=0):
    """Return the best epochs after each of some epochs, as tuples, and the epochs after which the training ends."""
    choice, best, states, ends = EpochChoice(True, metric, patience), None, [], []
    for epoch, value in enumerate(values, 1):
        best = follow_epoch(choice, best, epoch, {metric: value})
        states.append((best.epoch, best.value, best.last, best.waited))
        ends += [epoch] * choice.ends_after(best)
    return states, ends


@pytest.mark.parametrize(
    ("metric", "values", "states", "ends"),
    [
        ("val_loss", [3, 1, 2, 1], [(1, 3, 1, 0), (2, 1, 2, 0), (2, 1, 3, 1), (2, 1, 4, 2)], [4]),
        ("val_accuracy", [3, 1, 2, 4], [(1, 3, 1, 0), (1, 3, 2, 1), (1, 3, 3, 2), (4, 4, 4, 0)], [3]),
        ("accuracy", [0.5, 0.6], [(1, 0.5, 1, 0), (2, 0.6, 2, 0)], []),
        ("rmse", [0.5, 0.6], [(1, 0.5, 1, 0), (1, 0.5, 2, 1)], []),
        ("loss", [2, NAN, math.inf, 1], [(1, 2, 1, 0), (1, 2, 2, 1), (1, 2, 3, 2), (4, 1, 4, 0)], [3]),
    ],
)
def test_the_best_epoch_is_the_first_with_the_best_value(metric, values, states, ends):
    assert followed(metric, values, patience=2) == (states, ends)
    assert followed(metric, values) == (states, []), "without patience, no training ends early"


def test_a_value_is_better_than_nan():
    states, _ = followed("val_loss", [NAN, NAN, 7.0])
    assert repr(states) == repr([(1, NAN, 1, 0), (1, NAN, 2, 1), (3, 7.0, 3, 0)])


@pytest.mark.parametrize(
    ("epoch", "value", "expected"),
    [
        (6, 5.0, BestEpoch("val_loss", 4, 3.0, 6, 2)),
        (4, 3.5, BestEpoch("val_loss", 4, 3.5, 4)),
    ],
    ids=["a later one", "the best one"],
)
def test_an_epoch_that_is_trained_again_does_not_count_twice(epoch, value, expected):
    best = BestEpoch("val_loss", 4, 3.0, 6, 2)
    assert follow_epoch(EpochChoice(), best, epoch, {"val_loss": value}) == expected


def test_an_epoch_without_the_metric_is_an_error():
    with pytest.raises(ValueError, match=r"^epoch 1 has no metric val_loss, only loss, accuracy; set another metric$"):
        follow_epoch(EpochChoice(True), None, 1, {"loss": 1, "accuracy": 0})


def chosen(keep, metric, patience, *data):
    return choose_epoch(TrainingParameters(keep=keep, metric=metric, patience=patience), *data)


@pytest.mark.parametrize(
    ("arguments", "choice"),
    [
        (("last", "", 0, "classification", False), EpochChoice(False, "val_loss", 0)),
        (("last", "", 0, "none", False), EpochChoice(False, "val_loss", 0)),
        (("best", "", 3, "classification", True), EpochChoice(True, "val_loss", 3)),
        (("best", "loss", 0, "regression", False), EpochChoice(True, "loss", 0)),
        (("last", "val_rmse", 2, "regression", True), EpochChoice(False, "val_rmse", 2)),
    ],
)
def test_choice_of_the_parameters(arguments, choice):
    assert chosen(*arguments) == choice
    assert choice.is_followed == (arguments[0] == "best" or arguments[2] > 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("last", "val_accuracy", 0, "regression", True),
            "metric is 'val_accuracy', but the dataset has the task 'regression'; allowed is 'val_loss', 'val_rmse', "
            "'loss' or 'rmse'",
        ),
        (
            ("best", "rmse", 0, "classification", True),
            "metric is 'rmse', but the dataset has the task 'classification'; allowed is 'val_loss', 'val_accuracy', "
            "'loss' or 'accuracy'",
        ),
        (
            ("best", "", 0, "classification", False),
            "keep is 'best' and metric is 'val_loss', but there are no validation rows; pass a validation_dataset with "
            "rows, or set metric to 'loss' or 'accuracy'",
        ),
        (
            ("last", "val_rmse", 3, "regression", False),
            "patience is 3 and metric is 'val_rmse', but there are no validation rows; pass a validation_dataset with "
            "rows, or set metric to 'loss' or 'rmse'",
        ),
        (("best", "", -1, "regression", True), "patience is -1; allowed is 0, for none, or more"),
        (
            ("last", "val_accuracy", 0, "classification", True),
            "metric is 'val_accuracy', but keep is 'last' and patience is 0, so no epochs are compared; set keep to "
            "'best' or patience to 1 or more, or leave metric out",
        ),
    ],
)
def test_a_choice_that_the_data_cannot_have_is_refused(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        chosen(*arguments)


BEST = BestEpoch("val_loss", 7, 0.23141, 12, 5)


@pytest.mark.parametrize(
    ("choice", "saved", "has_weights", "expected"),
    [
        (EpochChoice(True), BEST.to_json(), True, (BEST, "")),
        (EpochChoice(patience=3), BEST.to_json(), False, (BEST, "")),
        (EpochChoice(), BEST.to_json(), True, (None, "")),
        (
            EpochChoice(True),
            "",
            False,
            (None, "the checkpoint does not say which epoch is the best; only epochs after 12 count"),
        ),
        (
            EpochChoice(True, "loss"),
            BEST.to_json(),
            True,
            (None, "the checkpoint has the best epoch by val_loss, not by loss; only epochs after 12 count"),
        ),
        (
            EpochChoice(True),
            BEST.to_json(),
            False,
            (
                None,
                'the checkpoint has no weights of its best epoch, because it was made with keep "last"; only epochs '
                "after 12 count",
            ),
        ),
    ],
    ids=["best", "patience", "last", "earlier version", "other metric", "no weights"],
)
def test_a_resumed_training_has_the_best_epoch_of_its_checkpoint(choice, saved, has_weights, expected):
    assert resume_best(choice, saved, has_weights, 12) == expected
    assert resume_best(choice, "", False, 0) == (None, ""), "there is no checkpoint"


def test_lines_of_the_log():
    patient = EpochChoice(True, "val_loss", 5)
    assert [describe_end(patient, BEST, epochs) for epochs in (12, 20)] == [
        "",
        "the training ends after epoch 12 of 20: val_loss has not improved for 5 epochs, and patience is 5",
    ]
    assert describe_end(EpochChoice(True, "val_loss", 6), BEST, 20) == describe_end(patient, None, 20) == ""
    lines = [describe_model(EpochChoice(True), BEST), describe_model(EpochChoice(patience=5), BEST)]
    lines += [describe_model(EpochChoice(True), best) for best in (BestEpoch("accuracy", 1, 1, 2), None)]
    lines.append(describe_model(EpochChoice(True), BestEpoch("loss", 1, NAN, 2)))
    assert lines == [
        "the model is that of epoch 7 of 12 (val_loss 0.2314, the lowest)",
        "the model is that of epoch 12, the last; the best was epoch 7 (val_loss 0.2314, the lowest)",
        "the model is that of epoch 1 of 2 (accuracy 1, the highest)",
        "",
        "the model is that of epoch 1 of 2 (loss nan)",
    ]
