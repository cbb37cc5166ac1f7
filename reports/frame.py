"""The frame of a figure by Bokeh: its axes, its grids and the labels of its ticks.

Figures are built without bokeh.plotting, whose import needs 60 ms, and which adds models to each figure that the pages
do not use.
"""

from collections.abc import Sequence
from typing import Literal

from bokeh.models import (
    AdaptiveTicker,
    Axis,
    BasicTickFormatter,
    BoxZoomTool,
    DataRange1d,
    FixedTicker,
    Grid,
    LinearAxis,
    NoOverlap,
    NumeralTickFormatter,
    Plot,
    Range1d,
)

HEIGHT = 280
"""Height of a figure in CSS pixels, if its content needs no other."""

_LABEL_LENGTH = 24
"""Number of characters of a tick's label. A longer one would leave no room for the figure."""

_AXIS_LABEL_LENGTH = 40
"""Number of characters of an axis' label. A longer one would not fit beside a figure."""


def empty_figure(
    x: str,
    y: str,
    *,
    height: int = HEIGHT,
    zoom: Literal["width", "both"] | None = None,
    x_range: Range1d | None = None,
    y_range: Range1d | None = None,
) -> Plot:
    """Return an empty figure with its axes and grids; `zoom` are the dimensions in which a drag zooms."""
    plot = Plot(
        height=height,
        sizing_mode="stretch_width",
        x_range=x_range or DataRange1d(),
        y_range=y_range or DataRange1d(),
        toolbar_location=None,
    )
    for dimension, (label, side) in enumerate(((x, "below"), (y, "left"))):
        axis = LinearAxis(
            axis_label=_shorten(label, _AXIS_LABEL_LENGTH) or None,
            major_label_policy=NoOverlap(),
            # Powers of ten are harder to read than some zeros.
            formatter=BasicTickFormatter(power_limit_high=7),
        )
        plot.add_layout(Grid(dimension=dimension, axis=axis))
        plot.add_layout(axis, side)
    if zoom:
        plot.add_tools(BoxZoomTool(dimensions=zoom))
    return plot


def show_time(plot: Plot) -> None:
    """Show x, in seconds, as h:mm:ss."""
    plot.xaxis.formatter = NumeralTickFormatter(format="00:00:00")
    plot.xaxis.ticker = AdaptiveTicker(base=60, mantissas=[1, 2, 5, 10, 15, 20, 30], min_interval=1)
    plot.xgrid.ticker = plot.xaxis[0].ticker


def name_ticks(axis: Axis, names: Sequence[str], most: int) -> None:
    """Name the integers of an axis; with more than `most` names only each nth."""
    step = -(-len(names) // most) if names else 1
    axis.ticker = FixedTicker(ticks=list(range(0, len(names), step)), minor_ticks=[])
    axis.major_label_overrides = {index: _shorten(names[index], _LABEL_LENGTH) for index in range(0, len(names), step)}


def name_columns(plot: Plot, names: Sequence[str]) -> None:
    """Name the integers of the x axis. Many or long names are rotated."""
    name_ticks(plot.xaxis[0], names, 40)
    plot.xaxis.major_label_orientation = 0.7 if sum(map(len, names)) > 60 else 0


def _shorten(text: str, length: int) -> str:
    """Return a text of at most `length` characters, without its middle, because names often differ at the end."""
    if len(text) <= length:
        return text
    end = length // 2
    return f"{text[: length - end - 1]}…{text[-end:]}"
