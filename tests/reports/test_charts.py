import math
from typing import NamedTuple

import pytest

from kfp_distributed.reports.charts import (
    FEW_LINES,
    MAX_REMARKS,
    SERIES_ROWS,
    SMOOTHED,
    TABLE_ROWS,
    Chart,
    LegendEntry,
    Mark,
    bar_chart,
    heatmap,
    histogram,
    line_chart,
    timeline,
)
from kfp_distributed.reports.palette import MARK, SERIES, STATES
from kfp_distributed.reports.parts import Table

pytestmark = pytest.mark.figures


class Span(NamedTuple):
    state: str
    begin: float
    end: float | None = None
    reason: str = ""


def data(chart, *columns):
    """The columns of each data source of a figure that has them all, source by source."""
    sources = chart.data or [renderer.data_source.data for renderer in chart.figure.renderers]
    return [tuple(source[column] for column in columns) for source in sources if {*columns} <= {*source}]


def lines(chart):
    """The lines of a figure: x and y of their points by label."""
    return {
        label: list(zip(x, y, strict=True))
        for labels, xs, ys in data(chart, "label", "xs", "ys")
        for label, x, y in zip(labels, xs, ys, strict=True)
    }


def test_line_chart():
    series = {"worker-0": [(1, 2.0), (2, 1.0)], "worker-0 validation": [(1, 3.0), (2, math.nan), (3, 2.5)]}
    chart = line_chart("loss", "epoch", "loss", series, [Mark(3, 2.5, "best: epoch 3")], dashed=["worker-0 validation"])
    assert chart == Chart(
        "loss",
        "Line chart of loss, 2 lines: loss from 1 to 3, epoch from 1 to 3.",
        Table(
            ("epoch", "worker-0", "worker-0 validation"),
            (("1", "2", "3"), ("2", "1", ""), ("3", "", "2.5")),
        ),
        None,
        (
            LegendEntry("worker-0", SERIES[0]),
            LegendEntry("worker-0 validation", SERIES[1], "dashed"),
            LegendEntry("best: epoch 3", MARK, "mark"),
        ),
        ("worker-0 validation: nan at epoch 2",),
    )
    assert lines(chart) == {"worker-0": [(1, 2), (2, 1)], "worker-0 validation": [(1, 3), (3, 2.5)]}
    assert ([3], [2.5], ["best: epoch 3"]) in data(chart, "x", "y", "label")
    assert [axis.axis_label for axis in chart.figure.axis] == ["epoch", "loss"]


def test_a_series_of_one_point_is_a_dot():
    chart = line_chart("loss", "epoch", "loss", {"a": [(1, 0.125)], "b": [(1, 1), (2, 2)]})
    assert data(chart, "x", "y", "label") == [([1], [0.125], ["a"])]


def test_a_line_chart_without_finite_values_has_remarks_alone():
    chart = line_chart("loss", "epoch", "loss", {"a": [(1, math.nan), (2, math.nan)], "b": []})
    assert (chart.table.rows, chart.legend, chart.remarks) == ((), (), ("a: nan from epoch 1 to 2",))
    assert chart.figure is None


def test_the_remarks_name_some_of_many_lines():
    series = {f"a-{i}": [(1, math.nan), (2, 1.0)] for i in range(MAX_REMARKS + 5)}
    remarks = line_chart("loss", "epoch", "loss", series).remarks
    assert len(remarks) == MAX_REMARKS + 2
    assert remarks[-2:] == ("5 more lines have values that are not finite.", SMOOTHED)
    two = line_chart("Memory", "time", "MiB", {"a": [(3671.2, math.inf)], "b": [(0, 1)]}, x_is_time=True)
    assert two.remarks == ("a: inf at time 1:01:11",)


def test_a_curve_may_have_many_points_at_one_x():
    chart = line_chart("ROC", "false positives", "true positives", {"a": [(0, 0), (0, 0.5), (1, 1)]})
    assert chart.table.columns == ("series", "false positives", "true positives")
    assert chart.table.rows == (("a", "0", "0"), ("a", "0", "0.5"), ("a", "1", "1"))


def test_many_lines_are_smoothed_and_their_group_has_a_band():
    replicas = [f"worker-{i}" for i in range(300)]
    series = {replica: [(epoch, i + epoch % 2) for epoch in range(1000)] for i, replica in enumerate(replicas)}
    chart = line_chart("loss", "epoch", "loss", series, groups=dict.fromkeys(replicas, "worker"), max_points=300 * 20)
    assert chart.legend == (LegendEntry("worker", SERIES[0]),)
    assert {len(points) for points in lines(chart).values()} == {20}
    ((low, high),) = data(chart, "low", "high")
    assert (min(low), max(high), len(low)) == (0, 300, 200)
    assert (len(chart.table.rows), chart.table.total) == (SERIES_ROWS, 300)
    assert chart.table.rows[1] == ("worker-1", "1000", "1", "2", "1", "0", "2", "1")


def test_few_long_lines_keep_their_extremes():
    series = {f"a-{i}": [(x, 100.0 if x == 4321 else 0.0) for x in range(9000)] for i in range(FEW_LINES)}
    chart = line_chart("loss", "step", "loss", series, max_points=FEW_LINES * 100)
    assert all((4321, 100) in points and len(points) <= 100 for points in lines(chart).values())
    assert data(chart, "low", "high") == []


def test_times_are_shown_as_hours_minutes_and_seconds():
    chart = line_chart("Memory", "time", "MiB", {"worker-0": [(0.4, 512.0), (3671.2, 600.0)]}, x_is_time=True)
    assert chart.table.rows == (("0:00:00", "512"), ("1:01:11", "600"))
    assert chart.summary.endswith("time from 0:00:00 to 1:01:11.")
    assert chart.figure.xaxis[0].formatter.format == "00:00:00"


def test_bar_chart():
    chart = bar_chart("Rows by class", ["zero", "one"], {"train": [1200, 3], "validation": [300, 1]}, x="class")
    assert chart == Chart(
        "Rows by class",
        "Bar chart of rows of 2 categories: train, validation. The highest bar is zero with 1,200.",
        Table(("class", "train", "validation"), (("zero", "1,200", "300"), ("one", "3", "1"))),
        None,
        (LegendEntry("train", SERIES[0], "box"), LegendEntry("validation", SERIES[1], "box")),
    )
    assert data(chart, "category", "top") == [(["zero", "one"], [1200, 3]), (["zero", "one"], [300, 1])]
    assert bar_chart("", [], {"train": []}).table.rows == ()
    assert bar_chart("", ["a"], {"train": [0.2]}, y_end=1.0).figure.y_range.end == 1


def test_long_names_are_shortened_in_figures_but_not_in_tables():
    names = [f"a_long_common_beginning_of_names_{i}" for i in range(2)]
    chart = bar_chart("", names, {"train": [1, 2]}, x="x" * 100)
    labels = chart.figure.xaxis[0].major_label_overrides
    assert labels == {i: f"a_long_comm…g_of_names_{i}" for i in range(2)}
    assert len(chart.figure.xaxis[0].axis_label) == 40
    assert [row[0] for row in chart.table.rows] == names


def test_histogram():
    chart = histogram("age", [0, 10, 20], {"train": [5, 7]}, x="years")
    assert (chart.table, chart.legend) == (Table(("years", "train"), (("0 to 10", "5"), ("10 to 20", "7"))), ())
    assert data(chart, "left", "right", "top") == [([0, 10], [10, 20], [5, 7])]


def test_heatmap():
    chart = heatmap("Confusion", ["a", "b"], ["a", "b"], [[3, 1], [0, 0]])
    assert chart.table == Table(("true / predicted", "a", "b"), (("a", "3", "1"), ("b", "0", "0")))
    assert data(chart, "row", "column", "text", "share") == [
        (["a", "a", "b", "b"], ["a", "b", "a", "b"], ["3", "1", "", ""], [0.75, 0.25, 0, 0])
    ]


def test_timeline():
    chart = timeline(
        "Replicas",
        {
            "worker-0": [Span("waiting", 100, 104), Span("running", 104)],
            "worker-1": [Span("running", 103, 110), Span("failed", 110, 110, "exit code 1")],
        },
    )
    assert chart == Chart(
        "Replicas",
        "Timeline of 2 replicas over 0:00:10. Failed: worker-1.",
        Table(
            ("replica", "state", "from", "to", "reason"),
            (
                ("worker-0", "waiting", "0:00:00", "0:00:04", ""),
                ("worker-0", "running", "0:00:04", "0:00:10", ""),
                ("worker-1", "running", "0:00:03", "0:00:10", ""),
                ("worker-1", "failed", "0:00:10", "0:00:10", "exit code 1"),
            ),
        ),
        None,
        tuple(LegendEntry(state, STATES[state], "box") for state in ("waiting", "running", "failed")),
    )
    assert data(chart, "row", "state", "begin", "end", "reason") == [
        ([0, 0, 1], ["waiting", "running", "running"], [0, 4, 3], [4, 10, 10], ["", "", ""]),
        ([1], ["failed"], [10], [10], ["exit code 1"]),
    ]


def test_a_failure_that_was_restarted_has_a_marker():
    chart = timeline("Replicas", {"worker-0": [Span("failed", 5, 6, "signal 9"), Span("running", 6, 900)]})
    bars, markers = data(chart, "state", "begin")
    assert (bars, markers) == ((["failed", "running"], [0, 1]), (["failed"], [0]))


def test_long_words_break_in_tooltips():
    chart = timeline("Replicas", {"worker-0": [Span("waiting", 0, 1, f"pulls {'x' * 40}")]})
    (reasons,) = data(chart, "reason")
    assert max(map(len, reasons[0][0].split("\N{ZERO WIDTH SPACE}"))) < 24
    assert chart.table.rows[0][-1] == f"pulls {'x' * 40}"


def test_the_table_of_a_long_timeline_has_the_spans_with_a_reason():
    rows = {f"worker-{i}": [Span("running", 0, 9), Span("failed", 9, 9, "signal 9")] for i in range(TABLE_ROWS)}
    table = timeline("Replicas", rows).table
    assert (len(table.rows), table.total) == (TABLE_ROWS, 2 * TABLE_ROWS)
    assert {row[1] for row in table.rows} == {"failed"}


def test_a_timeline_without_replicas_is_empty():
    assert timeline("Replicas", {}).table.rows == ()


def contrast(color, background):
    """Contrast of two colors as WCAG 2 defines it."""

    def luminance(text):
        parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((luminance(color), luminance(background)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("background", ["#ffffff", "#181c22"])
def test_colors_are_visible_on_both_backgrounds(background):
    assert {color for color in (*SERIES, MARK, *STATES.values()) if contrast(color, background) < 3} == set()
