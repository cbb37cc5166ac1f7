"""The JSON of figures."""

import pytest
from bokeh.embed import json_item

from kfp_distributed.reports.charts import bar_chart, histogram, line_chart
from kfp_distributed.reports.figure_json import figure_json

pytestmark = pytest.mark.figures


def data_of(value):
    """The data of each source in the JSON of a figure, by the name of the column."""
    if isinstance(value, list):
        return [data for item in value for data in data_of(item)]
    if not isinstance(value, dict):
        return []
    own = [dict(value["attributes"]["data"]["entries"])] if value.get("name") == "ColumnDataSource" else []
    return [*own, *data_of(list(value.values()))]


def test_the_json_is_that_of_bokeh():
    for chart in (
        bar_chart("rows", ["a", "b"], {"train": [1, 2], "test": [3, 4]}),
        line_chart("loss", "epoch", "loss", {"a": [(1, 2.0), (2, 1.0)]}),
    ):
        item = figure_json(chart.figure)
        assert item == json_item(chart.figure)
        assert figure_json(chart.figure) == item


def test_histograms_of_the_same_series_share_a_figure_and_keep_their_data():
    first = histogram("age", [0, 10, 20], {"yes": [5, 7], "no": [1, 2]})
    second = histogram("height", [0.5, 1.5], {"yes": [3], "no": [float("nan")]})
    assert first.figure is second.figure
    items = [figure_json(chart.figure, chart.data) for chart in (first, second, first)]
    assert [data_of(item["doc"]["roots"]) for item in items] == [
        [{"left": [0, 10], "right": [10, 20], "top": top} for top in ([5, 7], [1, 2])],
        [{"left": [0.5], "right": [1.5], "top": top} for top in ([3], [{"type": "number", "value": "nan"}])],
        [{"left": [0, 10], "right": [10, 20], "top": top} for top in ([5, 7], [1, 2])],
    ]


def test_histograms_of_other_series_or_axes_have_their_own_figures():
    charts = [
        histogram("age", [0, 1], {name: [1] for name in names}, y=y)
        for names, y in ((("a",), "rows"), (("b",), "rows"), (("a",), "values"), (("a", "b"), "rows"))
    ]
    assert len({id(chart.figure) for chart in charts}) == len(charts)
    assert [len(chart.figure.renderers) for chart in charts] == [1, 1, 1, 2]
