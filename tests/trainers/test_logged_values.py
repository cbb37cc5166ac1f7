"""What of the logs of a Trainer is recorded, and the share of its GPUs that it uses."""

import pytest

from kfp_distributed.trainers.logged_values import counted_tokens, step_values, utilization

SPEEDS = {"runtime": 3.1, "samples_per_second": 9.0, "steps_per_second": 1.0, "tokens_per_second": 80.0}


def test_metrics_are_recorded_and_durations_counters_and_summaries_of_the_trainer_are_not():
    logs = {"loss": 2.5, "grad_norm": 1, "epoch": 0.5, "num_tokens": 900.0, "note": "x"}
    assert step_values(logs) == {"loss": 2.5, "grad_norm": 1.0}
    for prefix in ("train", "eval", "eval_hard_questions"):
        speeds = {f"{prefix}_{name}": value for name, value in SPEEDS.items()}
        assert step_values(speeds | {"total_flos": 1e9, "train_loss": 1.0, "eval_num_tokens": 900.0}) == {}
    assert step_values({"eval_loss": 2.0, "eval_model_preparation_time": 0.1}) == {"val_loss": 2.0}


def test_metrics_that_a_program_logs_itself_are_recorded():
    logs = {"train_accuracy": 0.5, "eval_tokens": 3.0, "my_runtime": 1.0, "pages_per_second": 2.0}
    assert step_values(logs) == {"train_accuracy": 0.5, "val_tokens": 3.0, "my_runtime": 1.0, "pages_per_second": 2.0}


def test_tokens_before_each_restart_count():
    assert counted_tokens([{"loss": 1.0, "num_tokens": 100, "tokens": 1100}, {"eval_loss": 1.0}]) == 1100
    assert counted_tokens([{"loss": 1.0}]) == 0


@pytest.mark.parametrize(
    ("gpu", "trained", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 1.0, 0.5),
        ("NVIDIA A100-SXM4-80GB", 0.0, 0.5 * 4 / 6),  # An adapter.
        ("NVIDIA H100 80GB HBM3", 1.0, 0.5 * 312 / 989),
        ("NVIDIA H100 PCIe", 1.0, 0.5 * 312 / 756),
        ("NVIDIA L40S", 1.0, 0.5 * 312 / 362),
        ("NVIDIA L40", 1.0, None),
        ("Tesla V100-SXM2-16GB", 1.0, 0.5 * 312 / 125),
    ],
)
def test_utilization(gpu, trained, expected):
    """Two GPUs compute half of the peak of an A100 each, in ten seconds."""
    result = utilization(312e12 * 10, trained, 10, 2, gpu)
    assert result == (expected if expected is None else pytest.approx(expected))
