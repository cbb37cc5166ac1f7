"""Scatter charts."""

import numpy as np
import pytest

from kfp_distributed.reports.charts import LegendEntry
from kfp_distributed.reports.figure_json import figure_json
from kfp_distributed.reports.palette import MARK
from kfp_distributed.reports.parts import Table
from kfp_distributed.reports.scatter import scatter_chart

pytestmark = pytest.mark.figures

LINE = ("perfect", ((1.0, 1.0), (3.0, 3.0)))


def drawn(chart):
    """The points and the line that are drawn."""
    points, line = (renderer.data_source.data for renderer in chart.figure.renderers)
    return [*zip(points["x"], points["y"], strict=True)], (line["xs"], line["ys"])


def test_a_chart_of_points():
    chart = scatter_chart("Predictions", "true", "predicted", np.array([[1, 2.5], [3, 1.25]]), LINE)
    assert chart.title == "Predictions"
    assert chart.summary == ("Scatter chart of Predictions, 2 points: predicted from 1.25 to 2.5, true from 1 to 3.")
    assert chart.table == Table(("true", "predicted"), (("1", "2.5"), ("3", "1.25")), 2)
    assert chart.legend == (LegendEntry("perfect", MARK, "dashed"),)
    assert chart.remarks == ()
    assert drawn(chart) == ([(1, 2.5), (3, 1.25)], ([[1, 3]], [[1, 3]]))
    assert figure_json(chart.figure)["root_id"] == chart.figure.id


def test_a_sample_says_of_how_many_rows():
    chart = scatter_chart("P", "x", "y", np.array([[1.0, 2], [3, 4]]), LINE, total=5000)
    assert chart.remarks == ("A sample of 2 of 5,000 rows.",)
    assert "2 of 5,000 points" in chart.summary
    assert chart.table.total == 5000


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1e9, 1e9 + 1], [1e9, 1e9 + 1]),
        ([1e9 + 0.123456, 1e9 + 1], [1e9 + 0.1235, 1e9 + 1]),
        ([0.1234567, 100], [0.123, 100]),
        ([1e-12, 3.00000004e-12], [1e-12, 3e-12]),
        ([1 / 3, 1 / 3], [0.33333, 0.33333]),
        ([0, 0], [0, 0]),
        ([-1e150, 1.000004e150], [-1e150, 1e150]),
        ([1e-310, 2e-310], [1e-310, 2e-310]),
    ],
)
def test_points_keep_the_digits_that_a_screen_shows(values, expected):
    chart = scatter_chart("P", "x", "y", np.array([values, values], float).T, LINE)
    points, _ = drawn(chart)
    for axis in zip(*points, strict=True):
        assert axis == pytest.approx(expected, rel=1e-12, abs=0)
