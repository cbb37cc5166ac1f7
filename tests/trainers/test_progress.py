import pytest

from kfp_distributed.trainers.runtime.monitoring.progress import Progress, format_progress, parse_progress


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (Progress(3, 6, {"loss": 0.1234, "accuracy": 0.9812}), "epoch 3/6 loss=0.1234 accuracy=0.9812"),
        (Progress(1, 1), "epoch 1/1"),
        (Progress(2, 10, {"val_loss": 12.0}), "epoch 2/10 val_loss=12.0000"),
        (Progress(120, 300, {"loss": 0.5}, "step"), "step 120/300 loss=0.5000"),
        (Progress(120, 0, unit="step"), "step 120/0"),
        (Progress(1, 9, {"learning_rate": 2e-5, "loss": -0.0}), "epoch 1/9 learning_rate=0.00002000 loss=-0.0000"),
    ],
)
def test_a_progress_line_can_be_written_and_read(progress, line):
    assert format_progress(progress) == line
    assert parse_progress(line + "\n") == progress


def test_a_metric_whose_name_has_other_signs_is_left_out_of_the_line():
    assert format_progress(Progress(1, 2, {"tokens/s": 9.0, "val loss": 1.0, "loss": 0.5})) == "epoch 1/2 loss=0.5000"


def test_a_diverged_loss_is_still_progress():
    line = format_progress(Progress(1, 2, {"loss": float("nan"), "val_loss": float("inf")}))
    assert str(parse_progress(line)) == str(Progress(1, 2, {"loss": float("nan"), "val_loss": float("inf")}))


@pytest.mark.parametrize(
    "line", ["", "epoch 3", "Epoch 3/6", "epoch 3/6 loss=high", "epoch 3/6 done", "an epoch 1/2", "step 3"]
)
def test_other_lines_are_not_progress(line):
    assert parse_progress(line) is None
