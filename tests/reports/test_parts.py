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
        first_epoch="1",
        last_epoch="2",
    )


def test_one_epoch_is_a_dot():
    assert line_chart("loss", {"a": [(1, 0.125)]}) == LineChart(
        "loss", (Line("a", "0,0 0,0"),), low="0.125", high="0.125", first_epoch="1", last_epoch="1"
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


@pytest.mark.parametrize(
    ("pairs", "points", "epochs"),
    [
        ([(0, 2.0), (1, 1.0), (2, 0.0)], "0,0 0,0 300,80 600,160", ("0", "2")),
        ([(7, 2.0), (9, 0.0)], "0,0 0,0 600,160", ("7", "9")),
        ([(1, 2.0), (math.nan, 9.0), (2, 0.0), (math.inf, 9.0)], "0,0 0,0 600,160", ("1", "2")),
        ([(1, 2.0), (10**400, 9.0), (2, 0.0)], "0,0 0,0 600,160", ("1", "2")),
        ([(1, 1e308), (2, 0.0), (3, -1e308)], "0,0 0,0 300,80 600,160", ("1", "3")),
        ([(-1e308, 2.0), (0, 1.0), (1e308, 0.0)], "0,0 0,0 300,80 600,160", ("-1e+308", "1e+308")),
    ],
)
def test_all_points_are_inside_the_chart(pairs, points, epochs):
    chart = line_chart("loss", {"a": pairs})
    assert (chart.lines, chart.remarks) == ((Line("a", points),), ())
    assert (chart.first_epoch, chart.last_epoch) == epochs


def test_integers_too_large_for_a_float_are_infinite():
    chart = line_chart("loss", {"a": [(1, 10**400), (2, 5), (3, -(10**400))]})
    assert chart.remarks == ("a: inf in epoch 1", "a: -inf in epoch 3")
    assert chart.lines == (Line("a", "300,0 300,0"),)
