import json
import math

import pytest

from kfp_distributed.trainers.runtime.monitoring.progress import Progress
from kfp_distributed.trainers.runtime.monitoring.trainer_status import (
    MAX_METRICS,
    TimedProgress,
    measured_from,
    status_body,
)

TIME = 1795442712.0
"""2026-11-23T14:05:12Z"""


def end(done, total=10, seconds=0.0, metrics=(), unit="epoch"):
    """The end of an epoch or a step, so many seconds after TIME."""
    return TimedProgress(Progress(done, total, dict(metrics), unit), TIME + seconds)


def test_the_body_has_the_progress_the_estimate_and_the_metrics():
    last = end(3, seconds=60, metrics={"loss": 0.25, "accuracy": 0.98123456, "rows": 1e9, "bad": math.nan})
    assert status_body(end(1), last) == {
        "trainerStatus": {
            "progressPercentage": 30,
            "estimatedRemainingSeconds": 210,
            "metrics": [
                {"name": "loss", "value": "0.25"},
                {"name": "accuracy", "value": "0.981235"},
                {"name": "rows", "value": "1e+09"},
                {"name": "bad", "value": "nan"},
            ],
            "lastUpdatedTime": "2026-11-23T14:06:12Z",
        }
    }


@pytest.mark.parametrize(
    ("first", "last", "percentage", "seconds"),
    [
        (end(1), end(1), 10, None),  # There is no speed yet.
        (end(4), end(5, seconds=3.4), 50, 17),
        (end(1, 3), end(2, 3, seconds=1), 66, 1),
        (end(1), end(10, seconds=9), 100, 0),
        (end(1, 1), end(1, 1), 100, 0),
        (end(11), end(12, seconds=9), 100, 0),  # A program may count in its own way.
        (end(0, 0), end(0, 0), None, 0),
        (end(1, 0, unit="step"), end(9, 0, seconds=9, unit="step"), None, None),
        (end(-3), end(-2, seconds=1), 0, 12),
        (end(1), end(2, seconds=-60), 20, 0),  # The clock was set back.
        (end(1, 10**9), end(2, 10**9, seconds=10**6), 0, 2**31 - 1),
    ],
)
def test_percentage_and_estimate(first, last, percentage, seconds):
    status = status_body(first, last)["trainerStatus"]
    assert status.get("progressPercentage") == percentage
    assert status.get("estimatedRemainingSeconds") == seconds


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (None, end(3), end(3)),
        (end(3), end(5, seconds=9), end(3)),
        (end(3), end(1, seconds=9), end(1, seconds=9)),  # The program trains a second model.
        (end(3), end(4, 20, seconds=9), end(4, 20, seconds=9)),
        (end(3), end(4, seconds=9, unit="step"), end(4, seconds=9, unit="step")),
    ],
)
def test_a_program_that_begins_again_is_measured_again(first, last, expected):
    assert measured_from(first, last) == expected


def test_names_that_the_server_refuses_are_left_out():
    last = end(1, metrics={"x" * 65: 1.0, "": 2.0, "x" * 64: 3.0})
    assert status_body(last, last)["trainerStatus"]["metrics"] == [{"name": "x" * 64, "value": "3"}]


def test_the_largest_body_is_below_64_kib():
    last = end(1, metrics={f"{number:03}" + "\x00" * 61: -1.23456e-300 for number in range(300)})
    body = status_body(last, last)
    assert len(body["trainerStatus"]["metrics"]) == MAX_METRICS
    assert len(json.dumps(body, ensure_ascii=False).encode()) < 64 << 10
