"""Parts that pages have in common, as plain data. `templates/macros.html` draws them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        columns: Names of the columns.
        rows: Texts of the cells. A row may have fewer cells than there are columns.
        total: Number of rows, if it is larger than that of `rows`; then the table says so in its last row.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: int = 0


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        label: What it shows, such as "worker-0 loss".
        points: Corners as SVG takes them: "x,y x,y".
    """

    label: str
    points: str


@dataclass(frozen=True)
class LineChart:
    """A measure over the epochs of a training.

    Attributes:
        title: Name of the measure.
        lines: Lines in an area of `WIDTH` times `HEIGHT`, whose origin is at the top left. All have the same scale.
        low: Smallest value of all lines; "" without lines.
        high: Largest value of all lines; "" without lines.
        first_epoch: Number of the epoch at the left edge; "" without lines.
        last_epoch: Number of the epoch at the right edge; "" without lines.
        remarks: Where values are not finite, such as "worker-0 loss: nan in epochs 3 to 5".
    """

    title: str
    lines: tuple[Line, ...] = ()
    low: str = ""
    high: str = ""
    first_epoch: str = ""
    last_epoch: str = ""
    remarks: tuple[str, ...] = ()

    WIDTH: ClassVar[int] = 600
    HEIGHT: ClassVar[int] = 160


def line_chart(title: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> LineChart:
    """Make a chart of some series of values.

    Args:
        title: Name of the measure.
        series: Pairs of epoch and value by label, sorted by epoch. NaN and infinite values become remarks. An integer
            too large for a float counts as infinite. Pairs whose epoch is not finite are left out.
    """
    known = {label: _with_finite_epochs(pairs) for label, pairs in series.items()}
    remarks = tuple(f"{label}: {text}" for label, pairs in known.items() for text in _not_finite(pairs))
    finite = {label: [pair for pair in pairs if math.isfinite(pair[1])] for label, pairs in known.items()}
    values = [value for pairs in finite.values() for _, value in pairs]
    if not values:
        return LineChart(title, remarks=remarks)
    low, high = min(values), max(values)
    epochs = [epoch for pairs in known.values() for epoch, _ in pairs]
    first_epoch, last_epoch = min(epochs), max(epochs)

    def corner(epoch: float, value: float) -> str:
        x = LineChart.WIDTH * _share(epoch, first_epoch, last_epoch)
        y = LineChart.HEIGHT * _share(value, high, low)
        return f"{round(x)},{round(y)}"

    lines = tuple(
        # The first point twice: a single one, with round ends, is a dot.
        Line(label, " ".join(corner(*pair) for pair in pairs[:1] + pairs))
        for label, pairs in finite.items()
        if pairs
    )
    return LineChart(title, lines, f"{low:.3g}", f"{high:.3g}", f"{first_epoch:g}", f"{last_epoch:g}", remarks)


def _with_finite_epochs(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    floats = [(_as_float(epoch), _as_float(value)) for epoch, value in pairs]
    return [(epoch, value) for epoch, value in floats if math.isfinite(epoch)]


def _as_float(number: float) -> float:
    """Convert an int or float to a float. An integer that is too large becomes infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _share(number: float, begin: float, end: float) -> float:
    """Return where a number lies between two others: 0 at `begin`, 1 at `end`, and 0 if they are equal."""
    # Halves, because the difference of two finite numbers may be infinite.
    length = end / 2 - begin / 2
    return (number / 2 - begin / 2) / length if length else 0.0


def _not_finite(pairs: Sequence[tuple[float, float]]) -> list[str]:
    """Return the runs of equal values that are NaN or infinite, such as "nan in epochs 3 to 5"."""
    texts = []
    for text, run in groupby(pairs, lambda pair: "" if math.isfinite(pair[1]) else str(pair[1])):
        epochs = [f"{epoch:g}" for epoch, _ in run]
        if text:
            where = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}"
            texts.append(f"{text} in {where}")
    return texts
