"""Charts of a page: each is a figure with its title, a sentence for screen readers and a table of its data. Pure.

The macro `chart` of `templates/macros.html` places a chart on a page.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Protocol

from kfp_distributed.reports import figures
from kfp_distributed.reports.palette import STATES, series_color
from kfp_distributed.reports.parts import Table

Point = tuple[float, float]

MATRIX_CELLS = 600
"""Number of cells up to which the table of a line chart has a row for each x and a column for each series."""

TABLE_ROWS = 500
"""Number of rows that the table of a chart shows."""


@dataclass(frozen=True)
class LegendEntry:
    """An entry of a chart's legend.

    Attributes:
        label: Text of the entry.
        color: CSS color.
        dashed: Whether the lines are dashed.
    """

    label: str
    color: str
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart of a page. Two charts are equal if their texts and tables are.

    Attributes:
        title: Title, shown above the figure.
        summary: One sentence for screen readers: what the chart shows.
        table: The data, shown below the figure when the reader opens it.
        figure: The Bokeh model.
        legend: Entries of the legend; () shows none.
        remarks: Sentences below the title, such as "worker-0 loss: nan in epochs 3 to 5".
    """

    title: str
    summary: str
    table: Table
    figure: Any = field(compare=False, repr=False)
    legend: tuple[LegendEntry, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A marked point of a line chart, such as the best epoch.

    Attributes:
        x: Its x.
        y: Its y.
        label: Text beside the point.
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
) -> Chart:
    """Return a chart with one line for each series.

    Args:
        title: Title of the chart.
        x: Label of the x axis, such as "epoch".
        y: Label of the y axis, such as "loss".
        series: Points by label. Points whose y is NaN or infinite are named in `remarks`. Points whose x is not
            finite are left out.
        marks: Marked points.
        groups: Legend entry by label of the series, default the label itself. The lines of a group have one color.
        dashed: Groups that are drawn as dashed lines.
        max_points: Number of points of all lines. Longer series are reduced to the smallest and the largest value of
            each interval.
    """
    floats = {label: _with_finite_x(points) for label, points in series.items()}
    finite = {label: [point for point in points if math.isfinite(point[1])] for label, points in floats.items()}
    finite = {label: points for label, points in finite.items() if points}
    groups = {label: (groups or {}).get(label, label) for label in finite}
    legend = _legend(dict.fromkeys(groups.values()), dashed)
    entries = {entry.label: entry for entry in legend}
    limit = max(8, max_points // max(1, len(finite)))
    lines = [
        figures.Line(label, decimate(points, limit), entries[groups[label]].color, entries[groups[label]].dashed)
        for label, points in finite.items()
    ]
    return Chart(
        title,
        _summary_of_lines(title, x, y, finite),
        _table_of_lines(x, finite),
        figures.draw_lines(x, y, lines, [(mark.x, mark.y, mark.label) for mark in marks]),
        legend if len(legend) > 1 else (),
        tuple(f"{label}: {text}" for label, points in floats.items() for text in _not_finite(x, points)),
    )


def bar_chart(
    title: str, categories: Sequence[str], series: Mapping[str, Sequence[float]], *, x: str = "", y: str = "rows"
) -> Chart:
    """Return a chart with a group of bars for each category and a bar for each series.

    Args:
        title: Title of the chart.
        categories: Labels of the x axis.
        series: Values by label, one for each category.
        x: Label of the x axis.
        y: Label of the y axis.
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
        figures.draw_bars(x, y, categories, bars),
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
        figures.draw_histogram(x, y, edges, {entry.label: (entry.color, series[entry.label]) for entry in legend}),
        legend if len(legend) > 1 else (),
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


def scatter_chart(title: str, x: str, y: str, points: Sequence[tuple[float, float, str]]) -> Chart:
    """Return a chart of single points.

    Args:
        title: Title of the chart.
        x: Label of the x axis.
        y: Label of the y axis.
        points: x, y and label of each point. The label is shown on hover.
    """
    finite = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    return Chart(
        title,
        f"Scatter chart of {y} by {x}: {_count(len(finite), 'point', 'points')}.",
        _cut(Table((x, y, "label"), tuple((_number(point[0]), _number(point[1]), point[2]) for point in finite))),
        figures.draw_points(x, y, finite),
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
        Table(("replica", "state", "from", "to", "reason"), table, len(bars)),
        figures.draw_timeline(tuple(rows), bars),
        tuple(LegendEntry(state, STATES[state]) for state in states),
    )


def decimate(points: Sequence[Point], limit: int) -> list[Point]:
    """Reduce a series to at most `limit` points: the first, the last, and of each interval the lowest and the highest.

    Args:
        points: Points, in the order in which they are joined.
        limit: Number of points, at least 4.
    """
    if len(points) <= limit:
        return list(points)
    inner, intervals = range(1, len(points) - 1), (limit - 2) // 2
    kept = [0]
    for index in range(intervals):
        interval = inner[index * len(inner) // intervals : (index + 1) * len(inner) // intervals]
        kept += sorted({min(interval, key=lambda i: points[i][1]), max(interval, key=lambda i: points[i][1])})
    return [points[index] for index in (*kept, len(points) - 1)]


def _legend(labels: Collection[str], dashed: Collection[str] = ()) -> tuple[LegendEntry, ...]:
    return tuple(LegendEntry(label, series_color(index), label in dashed) for index, label in enumerate(labels))


def _summary_of_lines(title: str, x: str, y: str, series: Mapping[str, Sequence[Point]]) -> str:
    points = [point for points in series.values() for point in points]
    if not points:
        return f"Line chart of {title} without points."
    (x_low, x_high), (y_low, y_high) = (
        (_number(min(point[axis] for point in points)), _number(max(point[axis] for point in points)))
        for axis in (0, 1)
    )
    return (
        f"Line chart of {y}, {_count(len(series), 'line', 'lines')}: {y_low} to {y_high} over {x} {x_low} to {x_high}."
    )


def _table_of_lines(x: str, series: Mapping[str, Sequence[Point]]) -> Table:
    """Return all points if they are few, else one row for each series."""
    xs = sorted({point[0] for points in series.values() for point in points})
    if len(xs) * len(series) <= MATRIX_CELLS and len(series) <= 12:
        values = [dict(points) for points in series.values()]
        return Table(
            (x, *series),
            tuple((_number(value), *(_number(ys[value]) if value in ys else "" for ys in values)) for value in xs),
        )
    return _cut(
        Table(
            ("series", "points", "first", "last", "smallest", f"at {x}", "largest", f"at {x}"),
            tuple(_row_of_series(label, points) for label, points in series.items()),
        )
    )


def _row_of_series(label: str, points: Sequence[Point]) -> tuple[str, ...]:
    low, high = (choose(points, key=lambda point: point[1]) for choose in (min, max))
    numbers = (points[0][1], points[-1][1], low[1], low[0], high[1], high[0])
    return (label, str(len(points)), *map(_number, numbers))


def _cut(table: Table) -> Table:
    return Table(table.columns, table.rows[:TABLE_ROWS], max(len(table.rows), table.total))


def _number(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.4g}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _with_finite_x(points: Sequence[Point]) -> list[Point]:
    floats = [(_as_float(x), _as_float(y)) for x, y in points]
    return [(x, y) for x, y in floats if math.isfinite(x)]


def _as_float(number: float) -> float:
    """Convert an int or float to a float. An integer that is too large becomes infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _not_finite(x: str, points: Sequence[Point]) -> list[str]:
    """Return the runs of equal values that are NaN or infinite, such as "nan in epochs 3 to 5"."""
    texts = []
    for text, run in groupby(points, lambda point: "" if math.isfinite(point[1]) else str(point[1])):
        places = [f"{place:g}" for place, _ in run]
        if text:
            texts.append(
                f"{text} in {x} {places[0]}" if len(places) == 1 else f"{text} in {x}s {places[0]} to {places[-1]}"
            )
    return texts
