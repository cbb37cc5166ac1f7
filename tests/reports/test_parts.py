"""Charts as plain data."""

import math

import pytest

from kfp_distributed.reports.parts import Line, LineChart, line_chart


def test_lines_have_one_scale():
    series = {"worker-0 loss": [(1, 2.0), (2, 1.0)], "worker-0 val_loss": [(1, 3.0), (2, 2.0)], "chief": [(2, 1.5)]}
    assert line_chart("loss", series) == LineChart(
        "loss",
        (
            Line("worker-0 loss", "0,80 0,80 600,160"),
            Line("worker-0 val_loss", "0,0 0,0 600,80"),
            Line("chief", "600,120 600,120"),
        ),
        low="1",
        high="3",
        last_epoch="2",
    )


def test_one_epoch_is_a_dot():
    assert line_chart("loss", {"a": [(1, 0.125)]}) == LineChart(
        "loss", (Line("a", "0,0 0,0"),), low="0.125", high="0.125", last_epoch="1"
    )


@pytest.mark.parametrize(
    ("pairs", "points", "remarks"),
    [
        ([(1, 4.0), (2, math.inf), (3, 2.0)], "0,0 0,0 600,160", ("a: inf in epoch 2",)),
        ([(1, 4.0), (2, 2.0), (3, math.nan)], "0,0 0,0 300,160", ("a: nan in epoch 3",)),
        (
            [(1, 4.0), (2, -math.inf), (3, math.nan), (4, math.nan), (5, 2.0)],
            "0,0 0,0 600,160",
            ("a: -inf in epoch 2", "a: nan in epochs 3 to 4"),
        ),
    ],
)
def test_values_that_are_not_finite_are_named(pairs, points, remarks):
    chart = line_chart("loss", {"a": pairs})
    assert (chart.lines, chart.remarks) == ((Line("a", points),), remarks)
    assert chart.last_epoch == str(len(pairs))


def test_a_chart_without_finite_values_has_remarks_alone():
    assert line_chart("loss", {"a": [(1, math.nan), (2, math.nan)], "b": []}) == LineChart(
        "loss", remarks=("a: nan in epochs 1 to 2",)
    )
