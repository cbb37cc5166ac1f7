"""Charts of a page: each is a figure with its title, a sentence for screen readers and a table of its data. Pure.

The macro `chart` of `templates/macros.html` places a chart on a page.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np

from kfp_distributed.reports import figures
from kfp_distributed.reports.palette import MARK, STATES, series_color
from kfp_distributed.reports.parts import Table
from kfp_distributed.reports.series import (
    Point,
    Series,
    decimate,
    describe_not_finite,
    envelope,
    finite,
    smooth,
    to_series,
)

FEW_LINES = 8
"""Number of lines that can be told apart."""

MATRIX_CELLS = 600
"""Number of cells up to which the table of a line chart has a row for each x and a column for each series."""

TABLE_ROWS = 300
"""Number of rows that the table of a chart shows."""

SERIES_ROWS = 100
"""Number of rows of the table of a line chart that has a row for each series."""

MAX_REMARKS = 8
"""Number of series whose values that are NaN or infinite the remarks of a chart name."""

SMOOTHED = "Lines of many points show means over intervals. The area is the range of all values."
"""Remark of a chart with more than `FEW_LINES` lines."""


@dataclass(frozen=True)
class LegendEntry:
    """An entry of a chart's legend.

    Attributes:
        label: Text of the entry.
        color: CSS color.
        style: "solid" or "dashed" for a line, "mark" for a marked point, "box" for an area.
    """

    label: str
    color: str
    style: Literal["solid", "dashed", "mark", "box"] = "solid"


@dataclass(frozen=True)
class Chart:
    """A chart of a page. Two charts are equal if their texts and tables are.

    Attributes:
        title: Title, shown above the figure.
        summary: One sentence for screen readers: what the chart shows.
        table: The data, shown below the figure when the reader opens it.
        figure: The Bokeh model; None if there is nothing to draw.
        data: Columns of the data source of each of the figure's renderers, instead of the model's own: charts that
            differ in their data alone share a model. () for the model's own data.
        legend: Entries of the legend; () shows none.
        remarks: Sentences below the title, such as "worker-0: nan from epoch 3 to 5".
    """

    title: str
    summary: str
    table: Table
    figure: Any = field(compare=False, repr=False)
    legend: tuple[LegendEntry, ...] = ()
    remarks: tuple[str, ...] = ()
    data: tuple[Mapping[str, list[float]], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Mark:
    """A marked point of a line chart, such as the best epoch.

    Attributes:
        x: Its x.
        y: Its y.
        label: Text of its entry in the legend.
    """

    x: float
    y: float
    label: str


class SpanOfTime(Protocol):
    """A replica was in one state from `begin` to `end`, in seconds; `end` is None while the state lasts."""

    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def begin(self) -> float: ...  # noqa: D102
    @property
    def end(self) -> float | None: ...  # noqa: D102
    @property
    def reason(self) -> str: ...  # noqa: D102


def line_chart(
    title: str,
    x: str,
    y: str,
    series: Mapping[str, Sequence[Point]],
    marks: Sequence[Mark] = (),
    *,
    groups: Mapping[str, str] | None = None,
    dashed: Collection[str] = (),
    max_points: int = 6000,
    x_is_time: bool = False,
) -> Chart:
    """Return a chart with one line for each series.

    Args:
        title: Title of the chart.
        x: Label of the x axis, such as "epoch".
        y: Label of the y axis, such as "loss".
        series: Points by label. Points whose y is NaN or infinite are named in `remarks`. Points whose x is not
            finite are left out. Without any finite point the chart has no figure.
        marks: Marked points.
        groups: Legend entry by label of the series, default the label itself. The lines of a group have one color.
        dashed: Groups that are drawn as dashed lines.
        max_points: Number of points of all lines. Longer series are reduced to the smallest and the largest value of
            each interval. Of more than `FEW_LINES` each is reduced to the mean of each interval, and an area shows
            the range of all values of a group.
        x_is_time: Whether x is a time in seconds, shown as h:mm:ss.
    """
    format_x = figures.format_clock if x_is_time else "{:g}".format
    arrays = {label: to_series(points) for label, points in series.items()}
    lines = {label: finite(array) for label, array in arrays.items() if np.isfinite(array[:, 1]).any()}
    groups = {label: (groups or {}).get(label, label) for label in lines}
    entries = {
        group: LegendEntry(group, series_color(index), "dashed" if group in dashed else "solid")
        for index, group in enumerate(dict.fromkeys(groups.values()))
    }
    drawn = _lines(lines, {label: entries[group] for label, group in groups.items()}, max_points)
    points = [(mark.x, mark.y, mark.label) for mark in marks]
    bands = _bands(lines, groups, entries)
    return Chart(
        title,
        _summary_of_lines(title, x, y, lines, format_x),
        _table_of_lines(x, y, lines, format_x),
        figures.draw_lines(x, y, drawn, bands, points, x_is_time=x_is_time) if lines else None,
        (*entries.values(), *(LegendEntry(mark.label, MARK, "mark") for mark in marks)),
        _remarks({label: describe_not_finite(array, x, format_x) for label, array in arrays.items()}, len(lines)),
    )


def _remarks(not_finite: Mapping[str, str], lines: int) -> tuple[str, ...]:
    """Return the remarks of a line chart.

    Args:
        not_finite: Description of the values of each series that are NaN or infinite; "" if there are none.
        lines: Number of lines.
    """
    remarks = [f"{label}: {text}" for label, text in not_finite.items() if text]
    more = len(remarks) - MAX_REMARKS
    remarks = [*remarks[:MAX_REMARKS], *([f"{more} more lines have values that are not finite."] if more > 0 else [])]
    return (*remarks, SMOOTHED) if lines > FEW_LINES else tuple(remarks)


def _lines(lines: Mapping[str, Series], entries: Mapping[str, LegendEntry], max_points: int) -> list[figures.Line]:
    reduce = decimate if len(lines) <= FEW_LINES else smooth
    limit = max(8, max_points // max(1, len(lines)))
    return [
        figures.Line(label, reduce(line, limit), entries[label].color, entries[label].style == "dashed")
        for label, line in lines.items()
    ]


def _bands(
    lines: Mapping[str, Series], groups: Mapping[str, str], entries: Mapping[str, LegendEntry]
) -> list[figures.Band]:
    """Return the range of values of each group, if there are many lines, which are smoothed."""
    if len(lines) <= FEW_LINES:
        return []
    return [
        figures.Band(envelope([line for label, line in lines.items() if groups[label] == group]), entry.color)
        for group, entry in entries.items()
    ]


def bar_chart(
    title: str,
    categories: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    x: str = "",
    y: str = "rows",
    y_end: float | None = None,
) -> Chart:
    """Return a chart with a group of bars for each category and a bar for each series.

    Args:
        title: Title of the chart.
        categories: Labels of the x axis.
        series: Values by label, one for each category.
        x: Label of the x axis.
        y: Label of the y axis.
        y_end: Upper end of the y axis; by default it follows the highest bar.
    """
    legend = _legend(series)
    bars = {entry.label: (entry.color, series[entry.label]) for entry in legend}
    highest = max(
        ((values[index], category) for values in series.values() for index, category in enumerate(categories)),
        default=None,
    )
    text = f" The highest bar is {highest[1]} with {_number(highest[0])}." if highest else ""
    return Chart(
        title,
        f"Bar chart of {y} of {_count(len(categories), 'category', 'categories')}: {', '.join(series)}.{text}",
        _cut(
            Table(
                (x or "category", *series),
                tuple(
                    (category, *(_number(values[index]) for values in series.values()))
                    for index, category in enumerate(categories)
                ),
            )
        ),
        figures.draw_bars(x, y, categories, bars, y_end),
        legend if len(legend) > 1 else (),
    )


def histogram(
    title: str, edges: Sequence[float], series: Mapping[str, Sequence[float]], *, x: str = "", y: str = "rows"
) -> Chart:
    """Return a histogram, with an outline for each series.

    Args:
        title: Title of the chart.
        edges: Limits of the bins, one more than there are bins, in ascending order.
        series: Height of each bin by label.
        x: Label of the x axis.
        y: Label of the y axis.
    """
    legend = _legend(series)
    bins = [f"{_number(low)} to {_number(high)}" for low, high in pairwise(edges)]
    return Chart(
        title,
        f"Histogram of {title}: {_count(len(bins), 'bin', 'bins')} from {_number(edges[0])} to {_number(edges[-1])}; "
        f"{', '.join(series)}.",
        _cut(
            Table(
                (x or "bin", *series),
                tuple((text, *(_number(values[i]) for values in series.values())) for i, text in enumerate(bins)),
            )
        ),
        figures.draw_histogram(x, y, tuple((entry.label, entry.color) for entry in legend)),
        legend if len(legend) > 1 else (),
        data=tuple(figures.histogram_data(edges, heights) for heights in series.values()),
    )


def heatmap(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    counts: Sequence[Sequence[float]],
    *,
    x: str = "predicted",
    y: str = "true",
) -> Chart:
    """Return a chart of a matrix, such as a confusion matrix. The color of a cell is its share of the row's sum.

    Args:
        title: Title of the chart.
        rows: Labels of the rows, from top to bottom.
        columns: Labels of the columns.
        counts: Values of each row.
        x: What the columns are.
        y: What the rows are.
    """
    return Chart(
        title,
        f"Matrix of {_count(len(rows), 'row', 'rows')} ({y}) and {_count(len(columns), 'column', 'columns')} ({x}).",
        _cut(
            Table(
                (f"{y} / {x}", *columns),
                tuple((name, *map(_number, values)) for name, values in zip(rows, counts, strict=True)),
            )
        ),
        figures.draw_heatmap(x, y, rows, columns, counts),
    )


def timeline(title: str, rows: Mapping[str, Sequence[SpanOfTime]], *, begin: float | None = None) -> Chart:
    """Return a Gantt chart: a row for each replica, a bar for each of its states.

    Args:
        title: Title of the chart.
        rows: Spans by replica, in the order from top to bottom.
        begin: Time of the left edge; by default the earliest begin.
    """
    spans = [span for spans in rows.values() for span in spans]
    zero = min((span.begin for span in spans), default=0.0) if begin is None else begin
    last = max((span.begin if span.end is None else span.end for span in spans), default=zero)
    bars = [
        figures.Bar(
            row, replica, span.state, span.begin - zero, (last if span.end is None else span.end) - zero, span.reason
        )
        for row, (replica, spans_of_replica) in enumerate(rows.items())
        for span in spans_of_replica
    ]
    states = [state for state in STATES if any(bar.state == state for bar in bars)]
    shown = bars if len(bars) <= TABLE_ROWS else [bar for bar in bars if bar.reason or bar.state == "failed"]
    table = tuple(
        (bar.replica, bar.state, figures.format_clock(bar.begin), figures.format_clock(bar.end), bar.reason)
        for bar in shown[:TABLE_ROWS]
    )
    failed = sorted({bar.replica for bar in bars if bar.state == "failed"})
    return Chart(
        title,
        f"Timeline of {_count(len(rows), 'replica', 'replicas')} over {figures.format_clock(last - zero)}. "
        + (f"Failed: {', '.join(failed[:10])}{' and more' if len(failed) > 10 else ''}." if failed else "None failed."),
        Table(("replica", "state", "from", "to", "reason"), table, len(bars) if len(bars) > len(table) else 0),
        figures.draw_timeline(tuple(rows), bars),
        tuple(LegendEntry(state, STATES[state], "box") for state in states),
    )


def _legend(labels: Collection[str]) -> tuple[LegendEntry, ...]:
    return tuple(LegendEntry(label, series_color(index), "box") for index, label in enumerate(labels))


def _summary_of_lines(title: str, x: str, y: str, lines: Mapping[str, Series], format_x: Callable[[float], str]) -> str:
    if not lines:
        return f"Line chart of {title} without points."
    x_low, y_low = np.min([line.min(axis=0) for line in lines.values()], axis=0)
    x_high, y_high = np.max([line.max(axis=0) for line in lines.values()], axis=0)
    return (
        f"Line chart of {title}, {_count(len(lines), 'line', 'lines')}: {y} from {_number(y_low)} to "
        f"{_number(y_high)}, {x} from {format_x(x_low)} to {format_x(x_high)}."
    )


def _table_of_lines(x: str, y: str, lines: Mapping[str, Series], format_x: Callable[[float], str]) -> Table:
    """Return all points if they are few, else one row for each line."""
    if sum(map(len, lines.values())) > MATRIX_CELLS:
        columns = ("series", "points", "first", "last", "smallest", f"at {x}", "largest", f"at {x}")
        return _cut(Table(columns, tuple(_row_of_line(*line, format_x) for line in lines.items())), SERIES_ROWS)
    values = [dict(line.tolist()) for line in lines.values()]
    xs = sorted({value for column in values for value in column})
    if len(xs) * len(lines) <= MATRIX_CELLS and [*map(len, values)] == [*map(len, lines.values())]:
        rows = [(format_x(x), *(_number(column[x]) if x in column else "" for column in values)) for x in xs]
        return Table((x, *lines), tuple(rows))
    rows = [(label, format_x(point[0]), _number(point[1])) for label, line in lines.items() for point in line]
    return Table(("series", x, y), tuple(rows))


def _row_of_line(label: str, line: Series, format_x: Callable[[float], str]) -> tuple[str, ...]:
    lowest, highest = line[line[:, 1].argmin()], line[line[:, 1].argmax()]
    values = [text for point in (lowest, highest) for text in (_number(point[1]), format_x(point[0]))]
    return (label, str(len(line)), _number(line[0, 1]), _number(line[-1, 1]), *values)


def _cut(table: Table, rows: int = TABLE_ROWS) -> Table:
    return Table(table.columns, table.rows[:rows], len(table.rows)) if len(table.rows) > rows else table


def _number(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.4g}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
