"""Scatter charts: points, and a dashed line to compare them with. Pure."""

import math

import numpy as np
from bokeh.models import BoxZoomTool, ColumnDataSource, HoverTool, MultiLine, Plot, Scatter
from numpy.typing import NDArray

from kfp_distributed.reports.charts import TABLE_ROWS, Chart, LegendEntry
from kfp_distributed.reports.frame import empty_figure
from kfp_distributed.reports.palette import MARK, SERIES
from kfp_distributed.reports.parts import Table
from kfp_distributed.reports.series import Point

_DIGITS = 4
"""Digits of the range of an axis that a point keeps: the page must be small, and no screen shows more."""


def scatter_chart(
    title: str,
    x: str,
    y: str,
    points: NDArray[np.float64],
    line: tuple[str, tuple[Point, Point]],
    *,
    total: int = 0,
) -> Chart:
    """Return a chart of points and a dashed line.

    Args:
        title: Title of the chart.
        x: Label of the x axis.
        y: Label of the y axis.
        points: Finite x and y of each point, [n, 2]. All are drawn.
        line: Label, begin and end of the dashed line.
        total: Number of the points of which `points` is a sample. Default: 0, which means that `points` is complete.
    """
    rounded = np.column_stack([_round_to_range(values) for values in points.T])
    total = max(total, len(points))
    shown = "" if total == len(points) else f" of {total:,}"
    (x_low, y_low), (x_high, y_high) = points.min(axis=0), points.max(axis=0)
    label, ends = line
    return Chart(
        title,
        f"Scatter chart of {title}, {len(points):,}{shown} points: {y} from {y_low:.6g} to {y_high:.6g}, {x} from "
        f"{x_low:.6g} to {x_high:.6g}.",
        Table((x, y), tuple((f"{a:,.15g}", f"{b:,.15g}") for a, b in rounded[:TABLE_ROWS].tolist()), total),
        _draw(x, y, rounded, ends),
        (LegendEntry(label, MARK, "dashed"),),
        (f"A sample of {len(points):,}{shown} rows.",) if shown else (),
    )


def _draw(x: str, y: str, points: NDArray[np.float64], ends: tuple[Point, Point]) -> Plot:
    plot = empty_figure(x, y)
    plot.add_tools(BoxZoomTool(dimensions="both"))
    source = ColumnDataSource({"x": points[:, 0].tolist(), "y": points[:, 1].tolist()})
    # Many points that overlap show how dense they are.
    alpha = max(0.15, min(0.7, 150 / len(points)))
    marker = Scatter(x="x", y="y", size=5, fill_color=SERIES[0], fill_alpha=alpha, line_color=None)
    dots = plot.add_glyph(source, marker)
    plot.add_tools(HoverTool(renderers=[dots], tooltips=[(x, "@x{0,0.[0000]}"), (y, "@y{0,0.[0000]}")]))
    (x_begin, y_begin), (x_end, y_end) = ends
    columns = {"xs": [[x_begin, x_end]], "ys": [[y_begin, y_end]]}
    plot.add_glyph(
        ColumnDataSource(columns), MultiLine(xs="xs", ys="ys", line_color=MARK, line_width=1.5, line_dash="dashed")
    )
    return plot


def _round_to_range(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to a fraction of the range, because numbers may be large and differ in their last digits alone."""
    extent = float(np.ptp(values)) or float(np.abs(values).max()) or 1.0
    decimals = _DIGITS - math.floor(math.log10(extent))
    return np.round(values, decimals) if decimals < 300 else values
