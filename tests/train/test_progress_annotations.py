"""The annotations with the progress of a training, by whole values."""

import json

import pytest

from kfp_distributed.components.train.run.facts import JobEnded, LogLine, ReplicaChanged
from kfp_distributed.components.train.run.shown_progress.progress_annotations import MAX_METRICS, progress_annotations
from kfp_distributed.components.train.run.shown_progress.training_progress import TrainingProgress

# 2026-11-23T14:05:12Z
TIME = 1795442712.0
RUNNING = ReplicaChanged(TIME, "worker-0", "running")


def annotations(*facts, leader="worker-0", ended=None):
    progress = TrainingProgress()
    for fact in facts:
        progress.add_fact(fact)
    return progress_annotations(progress, leader, ended)


def line(seconds, text, replica="worker-0"):
    return LogLine(TIME + seconds, replica, text)


def test_before_the_end_of_the_first_epoch_there_are_none():
    assert annotations() == {}
    assert annotations(RUNNING, line(1, "worker-0 begins")) == {}
    assert annotations(RUNNING, ended=JobEnded(TIME, False, "The TFJob was deleted.")) == {}


def test_after_the_first_epoch_there_is_no_estimate():
    assert annotations(RUNNING, line(60, "epoch 1/3 loss=0.5000 accuracy=0.2500")) == {
        "kfp-distributed/epoch": "1/3",
        "kfp-distributed/percentage": "33",
        "kfp-distributed/metrics": '{"loss": 0.5, "accuracy": 0.25}',
        "kfp-distributed/progress": "epoch 1/3 (33%), loss=0.5000 accuracy=0.2500",
    }


EPOCHS = [RUNNING, line(60, "epoch 1/10 loss=0.5000"), line(120, "epoch 3/10 loss=0.2500 val_loss=0.3000")]


def test_a_running_training():
    """It has trained two epochs in 60 seconds, so the other seven take 210."""
    assert annotations(*EPOCHS) == {
        "kfp-distributed/epoch": "3/10",
        "kfp-distributed/percentage": "30",
        "kfp-distributed/estimated-end": "2026-11-23T14:10:42Z",
        "kfp-distributed/metrics": '{"loss": 0.25, "val_loss": 0.3}',
        "kfp-distributed/progress": ("epoch 3/10 (30%), ends about 2026-11-23T14:10:42Z, loss=0.2500 val_loss=0.3000"),
    }


@pytest.mark.parametrize(("succeeded", "outcome"), [(True, "succeeded"), (False, "failed")])
def test_an_ended_training_has_no_estimate(succeeded, outcome):
    assert annotations(*EPOCHS, ended=JobEnded(TIME + 130, succeeded)) == {
        "kfp-distributed/epoch": "3/10",
        "kfp-distributed/percentage": "30",
        "kfp-distributed/metrics": '{"loss": 0.25, "val_loss": 0.3}',
        "kfp-distributed/progress": f"{outcome}, epoch 3/10 (30%), loss=0.2500 val_loss=0.3000",
    }


def test_a_replica_that_does_not_run_has_no_estimate():
    failed = ReplicaChanged(TIME + 130, "worker-0", "failed", exit_code=137)
    assert annotations(*EPOCHS, failed)["kfp-distributed/progress"] == ("epoch 3/10 (30%), loss=0.2500 val_loss=0.3000")


@pytest.mark.parametrize(("leader", "epoch"), [("worker-0", "2/9"), ("launcher-0", "3/9")])
def test_the_leader_has_precedence_over_the_latest_replica(leader, epoch):
    lines = [line(1, "epoch 2/9"), line(2, "epoch 3/9", "worker-1"), ReplicaChanged(TIME, "launcher-0", "running")]
    assert annotations(*lines, leader=leader)["kfp-distributed/epoch"] == epoch


def test_metrics_that_are_not_finite_are_null_in_json():
    result = annotations(line(1, "epoch 1/2 loss=nan accuracy=inf"))
    assert result["kfp-distributed/metrics"] == '{"loss": null, "accuracy": null}'
    assert result["kfp-distributed/progress"] == "epoch 1/2 (50%), loss=nan accuracy=inf"


def test_many_metrics_are_cut():
    names = [f"metric_{number}" for number in range(MAX_METRICS + 1)]
    result = annotations(line(1, "epoch 1/2" + "".join(f" {name}=0.5000" for name in names)))
    assert list(json.loads(result["kfp-distributed/metrics"])) == names[:MAX_METRICS]
    assert result["kfp-distributed/progress"].endswith("metric_2=0.5000 metric_3=0.5000")


@pytest.mark.parametrize(
    ("lines", "epoch", "percentage"),
    [
        (["epoch 4/3"], "4/3", "100"),
        (["epoch 199/200"], "199/200", "99"),
        (["epoch 5/9", "epoch 2/9"], "2/9", "22"),
        (["epoch 0/0"], None, None),
        (["epoch 1/2 ", f"epoch 2/{'9' * 5000}"], "1/2", "50"),
    ],
    ids=["more than all", "rounded down", "restarted from an earlier epoch", "no epochs", "too many digits"],
)
def test_unusual_epochs(lines, epoch, percentage):
    result = annotations(*(line(number, text) for number, text in enumerate(lines)))
    assert (result.get("kfp-distributed/epoch"), result.get("kfp-distributed/percentage")) == (epoch, percentage)


def test_the_largest_number_of_epochs_has_an_estimate():
    result = annotations(RUNNING, line(0, "epoch 1/999999999"), line(10**7, "epoch 2/999999999"))
    assert result["kfp-distributed/estimated-end"].endswith("Z")


def test_the_progress_of_steps():
    """It has trained 100 steps in 60 seconds, so the other 180 take 108. The epochs say nothing about the speed."""
    facts = [
        RUNNING,
        line(60, "step 20/300 loss=0.5000"),
        line(90, "step 100/300 val_loss=0.6000"),
        line(119, "epoch 1/3 accuracy=0.7500"),
        line(120, "step 120/300 loss=0.2500"),
    ]
    assert annotations(*facts) == {
        "kfp-distributed/epoch": "1/3",
        "kfp-distributed/step": "120/300",
        "kfp-distributed/percentage": "40",
        "kfp-distributed/estimated-end": "2026-11-23T14:09:00Z",
        "kfp-distributed/metrics": '{"loss": 0.25, "val_loss": 0.6, "accuracy": 0.75}',
        "kfp-distributed/progress": (
            "epoch 1/3, step 120/300 (40%), ends about 2026-11-23T14:09:00Z, "
            "loss=0.2500 val_loss=0.6000 accuracy=0.7500"
        ),
    }


def test_steps_whose_end_is_not_known():
    assert annotations(RUNNING, line(60, "step 20/0 loss=0.5000"), line(90, "step 25/0")) == {
        "kfp-distributed/step": "25",
        "kfp-distributed/metrics": '{"loss": 0.5}',
        "kfp-distributed/progress": "step 25, loss=0.5000",
    }
