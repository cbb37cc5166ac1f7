"""Charts of parallel coordinates: an axis for each quantity, and a line through all axes for each item. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bokeh.models import ColumnDataSource, HoverTool, LabelSet, MultiLine, Plot, Range1d

from kfp_distributed.reports import figures
from kfp_distributed.reports.charts import TABLE_ROWS, Chart, LegendEntry
from kfp_distributed.reports.frame import empty_figure, name_columns
from kfp_distributed.reports.parts import Table

_HEIGHT = 380
"""Height of the figure in CSS pixels."""


class ParallelAxis(NamedTuple):
    """An axis.

    Attributes:
        label: Its name.
        ticks: Texts at heights from 0, its lower end, to 1.
    """

    label: str
    ticks: Sequence[tuple[float, str]]


class ParallelLine(NamedTuple):
    """A line.

    Attributes:
        label: Its name.
        group: Group whose color it has.
        heights: Its height at each axis, from 0 to 1.
        texts: The value at each axis, as text.
    """

    label: str
    group: str
    heights: Sequence[float]
    texts: Sequence[str]


def parallel_chart(
    title: str, item: str, axes: Sequence[ParallelAxis], lines: Sequence[ParallelLine], colors: Mapping[str, str]
) -> Chart:
    """Return a chart of parallel coordinates.

    Args:
        title: Title of the chart.
        item: What a line is, such as "trial".
        axes: The axes, from left to right.
        lines: The lines. Later ones are drawn over earlier ones.
        colors: Color of each group, in the order of the legend.
    """
    names = [axis.label for axis in axes]
    rows = tuple((line.label, *line.texts) for line in lines[::-1][:TABLE_ROWS])
    return Chart(
        title,
        f"Parallel coordinates of {title}: {len(lines):,} lines through {', '.join(names)}.",
        Table((item, *names), rows, len(lines)),
        _draw(item, axes, lines, colors) if lines else None,
        tuple(LegendEntry(group, color) for group, color in colors.items()),
    )


def _draw(item: str, axes: Sequence[ParallelAxis], lines: Sequence[ParallelLine], colors: Mapping[str, str]) -> Plot:
    x_range, y_range = Range1d(-0.15, len(axes) - 0.5), Range1d(-0.06, 1.06)
    plot = empty_figure("", "", height=_HEIGHT, x_range=x_range, y_range=y_range)
    name_columns(plot, [axis.label for axis in axes])
    plot.xgrid.ticker = plot.xaxis[0].ticker  # The lines of the grid are the axes.
    plot.yaxis.visible = plot.ygrid.visible = False
    columns = {
        "xs": [[*range(len(axes))] for _ in lines],
        "ys": [[round(height, 4) for height in line.heights] for line in lines],
        "label": [line.label for line in lines],
        "color": [colors[line.group] for line in lines],
        "group": [line.group for line in lines],
    }
    glyph = MultiLine(xs="xs", ys="ys", line_color="color", line_width=1.5, line_alpha=0.7, line_join="round")
    renderer = plot.add_glyph(ColumnDataSource(columns), glyph, hover_glyph=glyph.clone(line_alpha=1, line_width=4))
    plot.add_tools(HoverTool(renderers=[renderer], tooltips=[(item, "@label"), ("", "@group")], line_policy="nearest"))
    ticks = [(index, height, text) for index, axis in enumerate(axes) for height, text in axis.ticks]
    source = ColumnDataSource({name: [tick[i] for tick in ticks] for i, name in enumerate(("x", "y", "text"))})
    texts = {"text_font_size": "11px", "text_font": figures.FONT, "text_baseline": "middle", "tags": [figures.TEXT]}
    plot.add_layout(LabelSet(x="x", y="y", text="text", source=source, x_offset=5, **texts))
    return plot
