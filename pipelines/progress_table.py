"""Draws the progress of a training, and of the steps around it, as a table of rich."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.run.shown_progress.training_progress import ReplicaProgress

_COLORS = {"running": "", "succeeded": "green", "failed": "red", "stopped": "dim"}
_BAR_WIDTH = 16
_COLUMNS = ("replica", "state", "done", "metrics", "rows/s", "memory", "GPU", "time")
_DETAIL = "metrics"
"""The column that is truncated if the terminal is narrow."""


class StepProgress(NamedTuple):
    """A step of a pipeline.

    Attributes:
        name: Its name.
        state: "running", "succeeded" or "failed".
        seconds: Seconds since it was started, or its duration.
    """

    name: str
    state: str
    seconds: float


def progress_table(
    groups: Iterable[tuple[StepProgress | None, Sequence[ReplicaProgress]]], now: float, lines: int = 1000
) -> Table:
    """Return a table with a row for each step and below it a row for each of its replicas.

    Args:
        groups: Each step with its replicas. Replicas without a step have no row above them.
        now: Seconds since 1970.
        lines: Number of lines that fit. The last line counts the replicas that do not fit. Default: 1000.
    """
    groups = list(groups)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in _COLUMNS:
        table.add_column(title, no_wrap=title != _DETAIL, header_style="dim")
    counts = shown_replicas([len(replicas) for _, replicas in groups], lines - 1 - sum(1 for step, _ in groups if step))
    for (step, replicas), count in zip(groups, counts, strict=True):
        indent = "  " if step else ""
        if step:
            cells = (Text(step.name, "bold"), _mark(step.state), "", "", "", "", "", format_seconds(step.seconds))
            table.add_row(*cells)
        for replica in replicas[:count]:
            table.add_row(*_replica_cells(replica, now, indent))
        if count < len(replicas):
            table.add_row(f"{indent}and {len(replicas) - count} more")
    if not any(replica.sample.gpu_percent is not None for _, replicas in groups for replica in replicas):
        del table.columns[_COLUMNS.index("GPU")]
    return table


def shown_replicas(counts: Sequence[int], lines: int) -> list[int]:
    """Return how many replicas of each group are shown. The last group, which still runs, has precedence.

    Args:
        counts: Replicas of each group.
        lines: Lines for all replicas. Replicas that are not shown take one line for each group.
    """
    shown = []
    for count in reversed(counts):
        fits = count if count <= lines else max(0, lines - 1)
        shown.append(fits)
        lines -= fits + (fits < count)
    return shown[::-1]


def _mark(state: str) -> Spinner | Text:
    if state == "running":
        return Spinner("dots")
    return Text("done", "green") if state == "succeeded" else Text(state, "red")


def _replica_cells(replica: ReplicaProgress, now: float, indent: str) -> tuple[str | Text | ProgressBar, ...]:
    sample, left = replica.sample, replica.seconds_left(now)
    memory = sample.memory_mib if replica.state == "running" else replica.peak_memory_mib
    metrics = "  ".join(f"{name} {value:.4f}" for name, value in replica.metrics.items() if "val_" not in name)
    return (
        f"{indent}{replica.name}",
        _state(replica),
        str(replica.progress or "").partition(" ")[2],
        Text(replica.reason or metrics, no_wrap=True, overflow="ellipsis"),
        "" if sample.rows_per_second is None else f"{sample.rows_per_second:,.0f}",
        f"{memory:,.0f} MiB" if memory else "",
        "" if sample.gpu_percent is None else f"{sample.gpu_percent:.0f}%",
        "" if left is None else f"{format_seconds(round(left))} left",
    )


def _state(replica: ReplicaProgress) -> Text | ProgressBar:
    """Return a bar for a replica that reports epochs or steps, and the state of any other one."""
    if replica.state == "running" and replica.progress and replica.progress.total:
        return ProgressBar(total=replica.progress.total, completed=replica.progress.done, width=_BAR_WIDTH)
    return Text(replica.state.ljust(_BAR_WIDTH), _COLORS.get(replica.state, "yellow"))
