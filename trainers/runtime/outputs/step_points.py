"""The points of metrics over the steps of a training, thinned to a bounded number. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

MAX_POINTS = 2000
"""Number of points of each metric that are kept: about as many as a chart of a page has pixels."""

MAX_METRICS = 100
"""Number of metrics that are kept, the first ones. With it, the file has at most 10 MB."""


def interval_of(steps: int) -> int:
    """Return of how many consecutive steps one point is kept in a training of so many steps: a power of two."""
    return 1 << (steps // MAX_POINTS).bit_length()


class StepPoints:
    """Metrics of steps, with at most `MAX_POINTS` points of each of at most `MAX_METRICS` metrics.

    Of each interval of steps, the last point of a metric is kept. So a value of every 500 steps loses no point beside
    one of every step. The intervals grow with the training, so one that ends early has its points, too. Which points
    are kept depends on the numbers of the steps alone, so a training that was interrupted keeps the same ones.

    Args:
        rows: Points that `rows` has returned. Default: none.
        last: Number of the step that counts as the last one. Default: the last one of `rows`.

    Attributes:
        left_out: Names of the metrics that came when there were `MAX_METRICS`.
        last: Number of the last step; 0 if there is none.
    """

    def __init__(self, rows: Sequence[Mapping[str, float]] = (), last: int | None = None) -> None:
        self.left_out: set[str] = set()
        self.last, self._interval = 0, 1
        self._points: dict[str, dict[int, tuple[int, float]]] = {}
        self._newest: dict[str, int] = {}
        """Last step of each metric."""
        for row in rows:
            self.add(int(row["step"]), {name: value for name, value in row.items() if name != "step"})
        self.last = self.last if last is None else last

    def add(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Add the metrics of a step, and return those that are the first of their interval.

        A step before the last one removes the points after it, because the training has begun again at a checkpoint.
        So does a step before the last one of one of its metrics, which another process may have added, such as a fork
        whose checkpoint this one continues. Step 0 removes none: a program may score the model before it loads the
        checkpoint.

        Args:
            step: Number of the step; 0 before the training.
            metrics: Metrics of the step, by name.
        """
        interval = max(self._interval, interval_of(step))
        # After step 0, the next one says where the training goes on.
        last = step or self.last
        begins_again = step and any(step < self._newest.get(name, 0) for name in metrics)
        if begins_again or last < self.last or interval > self._interval:
            self._newest = {name: min(newest, last) for name, newest in self._newest.items()} if step else self._newest
            self._points = {
                name: {number // interval: (number, value) for number, value in points.values() if number <= last}
                for name, points in self._points.items()
            }
        self.last, self._interval = last, interval
        first = {}
        for name, value in metrics.items():
            if name not in self._points and len(self._points) == MAX_METRICS:
                self.left_out.add(name)
                continue
            points = self._points.setdefault(name, {})
            if step // interval not in points:
                first[name] = value
            if step or points.get(0, (0,))[0] == 0:
                points[step // interval] = (step, value)
                self._newest[name] = step or self._newest.get(name, 0)
        return first

    def rows(self) -> list[dict[str, float]]:
        """Return the points by step: [{"step": 1, "loss": ..., ...}, ...]."""
        rows: dict[int, dict[str, float]] = defaultdict(dict)
        for name, points in self._points.items():
            for step, value in points.values():
                rows[step][name] = value
        return [{"step": step, **rows[step]} for step in sorted(rows)]
