"""Draws the figures of charts by Bokeh. Pure: data -> a Bokeh model."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from bokeh.core.properties import value
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    HBar,
    HoverTool,
    LabelSet,
    MultiLine,
    Plot,
    Quad,
    Range1d,
    Rect,
    Scatter,
    VArea,
)
from bokeh.transform import factor_cmap
from numpy.typing import NDArray

from kfp_distributed.reports.frame import HEIGHT, empty_figure, name_columns, name_ticks, show_time
from kfp_distributed.reports.palette import MARK, SERIES, STATES
from kfp_distributed.reports.series import Series

FONT = value("system-ui, sans-serif")
"""Font of texts inside a figure."""

TEXT = "text"
"""Tag of models whose text is inside the figure. The page's script gives them the page's text color."""

_ROW_LABELS = 40
"""Number of rows up to which a timeline names each row at its axis."""

_FINAL_STATES = {"succeeded": "circle", "failed": "x", "stopped": "square"}
"""Markers of the states in which a replica ends."""


@dataclass(frozen=True)
class Line:
    """A line of a line chart: its name, its points, its CSS color, and whether it is dashed."""

    label: str
    points: Series
    color: str
    dashed: bool = False


@dataclass(frozen=True)
class Band:
    """An area between two lines: x, the lower and the upper y of each point, and its CSS color."""

    points: NDArray[np.float64]
    color: str


@dataclass(frozen=True)
class Bar:
    """A span of a timeline: number and name of its row, the state, and seconds since the left edge."""

    row: int
    replica: str
    state: str
    begin: float
    end: float
    reason: str


def draw_lines(
    x: str,
    y: str,
    lines: Sequence[Line],
    bands: Sequence[Band],
    marks: Sequence[tuple[float, float, str]],
    *,
    x_is_time: bool = False,
) -> Plot:
    """Draw lines, the areas behind them, and marked points in front of them."""
    plot = empty_figure(f"{x} (h:mm:ss)" if x_is_time else x, y, zoom="width")
    format_x = "00:00:00" if x_is_time else "0.[0000]"
    many = len(lines) > len(SERIES)
    for band in bands:
        source = ColumnDataSource(dict(zip(("x", "low", "high"), map(_short, band.points.T), strict=True)))
        plot.add_glyph(source, VArea(x="x", y1="low", y2="high", fill_color=band.color, fill_alpha=0.2))
    for dashed in (False, True):
        drawn = [line for line in lines if line.dashed == dashed]
        glyph = MultiLine(
            xs="xs",
            ys="ys",
            line_color="color",
            line_width=1 if many else 2,
            line_alpha=0.5 if many else 1,
            line_dash="dashed" if dashed else "solid",
            line_join="round",
        )
        hover_glyph = glyph.clone(line_alpha=1, line_width=3)
        renderer = plot.add_glyph(_source_of_lines(drawn), glyph, hover_glyph=hover_glyph)
        tooltips = [("", "@label"), (x, f"$snap_x{{{format_x}}}"), (y, "$snap_y{0.[0000]}")]
        plot.add_tools(HoverTool(renderers=[renderer], tooltips=tooltips, line_policy="nearest", limit=3))
    _draw_single_points(plot, x, y, [line for line in lines if len(line.points) == 1])
    if marks:
        _draw_marks(plot, marks)
    if x_is_time:
        show_time(plot)
        plot.x_range.start = 0
    elif all((line.points[:, 0] % 1 == 0).all() for line in lines):
        plot.xaxis.ticker = BasicTicker(min_interval=1)
        plot.xgrid.ticker = plot.xaxis[0].ticker
    return plot


def _source_of_lines(lines: Sequence[Line]) -> ColumnDataSource:
    return ColumnDataSource(
        {
            "xs": [_short(line.points[:, 0]) for line in lines],
            "ys": [_short(line.points[:, 1]) for line in lines],
            "label": [_breakable(line.label) for line in lines],
            "color": [line.color for line in lines],
        }
    )


def draw_bars(
    x: str,
    y: str,
    categories: Sequence[str],
    series: Mapping[str, tuple[str, Sequence[float]]],
    y_end: float | None = None,
) -> Plot:
    """Draw a group of bars for each category; `series` has the color and the values by label."""
    plot = empty_figure(x, y, x_range=Range1d(-0.5, max(len(categories), 1) - 0.5))
    width = 0.8 / max(len(series), 1)
    for number, (label, (color, values)) in enumerate(series.items()):
        left = [index - 0.4 + number * width for index in range(len(categories))]
        source = ColumnDataSource(
            {
                "left": left,
                "right": [edge + width * 0.92 for edge in left],
                "top": list(values),
                "category": list(map(_breakable, categories)),
            }
        )
        quad = Quad(left="left", right="right", bottom=0, top="top", fill_color=color, line_color=None)
        bars = plot.add_glyph(source, quad)
        plot.add_tools(HoverTool(renderers=[bars], tooltips=[(x or label, "@category"), (label, "@top{0,0.[0000]}")]))
    name_columns(plot, categories)
    plot.xgrid.visible = False
    plot.y_range.start = 0
    if y_end is not None:
        plot.y_range.end = y_end
    return plot


@lru_cache(maxsize=16)
def draw_histogram(x: str, y: str, colors: tuple[tuple[str, str], ...]) -> Plot:
    """Draw a histogram without bins: label and color of each series.

    Histograms that differ in their bins alone share a figure, because Bokeh needs 30 ms for each. `histogram_data`
    returns their bins.
    """
    plot = empty_figure(x, y)
    for label, color in colors:
        quad = Quad(
            left="left",
            right="right",
            bottom=0,
            top="top",
            fill_color=color,
            fill_alpha=0.35,
            line_color=color,
            line_width=1.5,
        )
        bins = plot.add_glyph(ColumnDataSource(), quad)
        tooltips = [(label, "@top{0,0.[0000]}"), ("from", "@left{0.[0000]}"), ("to", "@right{0.[0000]}")]
        plot.add_tools(HoverTool(renderers=[bins], tooltips=tooltips))
    plot.y_range.start = 0
    return plot


def histogram_data(edges: Sequence[float], heights: Sequence[float]) -> dict[str, list[float]]:
    """Return the columns of the data source of a histogram's series."""
    return {"left": list(edges[:-1]), "right": list(edges[1:]), "top": list(heights)}


def draw_heatmap(
    x: str, y: str, rows: Sequence[str], columns: Sequence[str], counts: Sequence[Sequence[float]]
) -> Plot:
    """Draw a matrix. The opacity of a cell is its share of the row's sum."""
    height = max(HEIGHT, min(640, 90 + 34 * len(rows)))
    x_range = Range1d(-0.5, len(columns) - 0.5)
    plot = empty_figure(x, y, height=height, x_range=x_range, y_range=Range1d(len(rows) - 0.5, -0.5))
    cells = [(i, j, value, sum(values)) for i, values in enumerate(counts) for j, value in enumerate(values)]
    source = ColumnDataSource(
        {
            "x": [j for _, j, _, _ in cells],
            "y": [i for i, _, _, _ in cells],
            "row": [_breakable(rows[i]) for i, _, _, _ in cells],
            "column": [_breakable(columns[j]) for _, j, _, _ in cells],
            "count": [value for _, _, value, _ in cells],
            "text": [f"{value:,}" if value else "" for _, _, value, _ in cells],
            "share": [value / total if total else 0.0 for _, _, value, total in cells],
            "alpha": [0.04 + 0.56 * value / total if total else 0.04 for _, _, value, total in cells],
        }
    )
    cell = Rect(x="x", y="y", width=0.96, height=0.94, fill_color=SERIES[0], fill_alpha="alpha", line_color=None)
    rects = plot.add_glyph(source, cell)
    plot.add_tools(
        HoverTool(
            renderers=[rects],
            tooltips=[(y, "@row"), (x, "@column"), ("count", "@count{0,0.[00]}"), ("share of the row", "@share{0.0%}")],
        )
    )
    if len(columns) <= 20 and len(rows) <= 25:
        plot.add_layout(
            LabelSet(
                x="x",
                y="y",
                text="text",
                source=source,
                text_align="center",
                text_baseline="middle",
                text_font_size="12px",
                text_font=FONT,
                tags=[TEXT],
            )
        )
    name_columns(plot, columns)
    name_ticks(plot.yaxis[0], rows, 40)
    plot.grid.visible = False
    return plot


def draw_timeline(replicas: Sequence[str], bars: Sequence[Bar]) -> Plot:
    """Draw a row for each replica and a bar for each span. Failures and the end of a replica are markers."""
    height = max(140, min(640, 90 + 26 * len(replicas)))
    plot = empty_figure("time since the start (h:mm:ss)", "", height=height, zoom="both")
    margin = max(0.6, len(replicas) / 100)  # Leaves room for the markers of the first and the last row.
    plot.y_range = Range1d(len(replicas) - 1 + margin, -margin)
    color = factor_cmap("state", palette=[*STATES.values()], factors=[*STATES])
    tooltips = [("", "@replica"), ("state", "@state"), ("from", "@begin{00:00:00}"), ("to", "@end{00:00:00}")]
    tooltips += [("reason", "@reason")]
    lasting = [bar for bar in bars if bar.state not in _FINAL_STATES or bar.end > bar.begin]
    # Bars that only touch would leave seams.
    height_of_bar = 0.72 if len(replicas) <= _ROW_LABELS else 1.2
    hbar = HBar(y="row", left="begin", right="end", height=height_of_bar, fill_color=color, line_color=None)
    renderer = plot.add_glyph(_source_of_bars(lasting), hbar)
    plot.add_tools(HoverTool(renderers=[renderer], tooltips=tooltips))
    for state, marker in _FINAL_STATES.items():
        # The bar of a failure between many replicas is too small to be seen.
        ends = [bar for bar in bars if bar.state == state and (bar.end <= bar.begin or state == "failed")]
        if ends:
            glyph = Scatter(
                x="begin",
                y="row",
                marker=value(marker),
                fill_color=color,
                line_color=color,
                size=10 if len(replicas) <= _ROW_LABELS else 6,
                line_width=2.5 if marker == "x" else 1,
            )
            renderer = plot.add_glyph(_source_of_bars(ends), glyph)
            plot.add_tools(HoverTool(renderers=[renderer], tooltips=tooltips))
    name_ticks(plot.yaxis[0], replicas, _ROW_LABELS)
    plot.ygrid.visible = False
    show_time(plot)
    plot.x_range = Range1d(0, max((bar.end for bar in bars), default=0.0) * 1.03 or 1.0)
    return plot


def format_clock(seconds: float) -> str:
    """Return seconds as "h:mm:ss"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _draw_marks(plot: Plot, marks: Sequence[tuple[float, float, str]]) -> None:
    source = ColumnDataSource({name: [mark[i] for mark in marks] for i, name in enumerate(("x", "y", "label"))})
    plot.add_glyph(source, Scatter(x="x", y="y", size=11, fill_color=None, line_color=MARK, line_width=2.5))


def _draw_single_points(plot: Plot, x: str, y: str, lines: Sequence[Line]) -> None:
    """Draw the series of one point, of which a line shows nothing."""
    if not lines:
        return
    columns = {
        "x": [line.points[0][0] for line in lines],
        "y": [line.points[0][1] for line in lines],
        "label": [line.label for line in lines],
        "color": [line.color for line in lines],
    }
    dots = plot.add_glyph(
        ColumnDataSource(columns), Scatter(x="x", y="y", size=7, fill_color="color", line_color="color")
    )
    plot.add_tools(HoverTool(renderers=[dots], tooltips=[("", "@label"), (x, "@x{0.[0000]}"), (y, "@y{0.[0000]}")]))


def _source_of_bars(bars: Sequence[Bar]) -> ColumnDataSource:
    return ColumnDataSource(
        {
            "row": [bar.row for bar in bars],
            "replica": [bar.replica for bar in bars],
            "state": [bar.state for bar in bars],
            "begin": [round(bar.begin, 1) for bar in bars],
            "end": [round(bar.end, 1) for bar in bars],
            "reason": [_breakable(bar.reason) for bar in bars],
        }
    )


def _breakable(text: str) -> str:
    """Return a text that breaks within long words, because a tooltip would be as wide as its longest word."""
    return re.sub(r"\S{16}", "\\g<0>\N{ZERO WIDTH SPACE}", text)


def _short(numbers: NDArray[np.float64]) -> list[float]:
    """Round to four digits, and large numbers to integers: the page must be small, and no screen shows more."""
    return [
        # JavaScript has no larger integers.
        round(number)
        if abs(number) < 2**53 and (number.is_integer() or abs(number) >= 1000)
        else float(f"{number:.4g}")
        for number in numbers.tolist()
    ]
