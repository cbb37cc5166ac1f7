"""Draws the progress of a training, and of the steps around it, as a table of rich."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kfp_distributed.components.train.durations import format_seconds
from kfp_distributed.pipelines.training_progress import ReplicaProgress

_COLORS = {"running": "", "succeeded": "green", "failed": "red", "stopped": "dim"}
_BAR_WIDTH = 16
_COLUMNS = ("replica", "state", "epoch", "metrics", "rows/s", "memory", "GPU", "time")
_DETAIL = "metrics"
"""The column that is cut where the terminal is narrow."""


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
        lines: Lines that there is room for. Replicas without room are counted in one line. Default: 1000.
    """
    groups = list(groups)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in _COLUMNS:
        table.add_column(title, no_wrap=title != _DETAIL, header_style="dim")
    room = max(3, lines - len(groups) - 1)
    for step, replicas in groups:
        if step:
            cells = (Text(step.name, "bold"), _mark(step.state), "", "", "", "", "", format_seconds(step.seconds))
            table.add_row(*cells)
        shown = replicas if len(replicas) <= room else replicas[: room - 1]
        for replica in shown:
            table.add_row(*_replica_cells(replica, now, "  " if step else ""))
        if len(shown) < len(replicas):
            table.add_row(f"and {len(replicas) - len(shown)} more")
    if not any(replica.sample.gpu_percent is not None for _, replicas in groups for replica in replicas):
        del table.columns[_COLUMNS.index("GPU")]
    return table


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
        f"{replica.epoch}/{replica.epochs}" if replica.epochs else "",
        Text(replica.reason or metrics, no_wrap=True, overflow="ellipsis"),
        "" if sample.rows_per_second is None else f"{sample.rows_per_second:,.0f}",
        f"{memory:,.0f} MiB" if memory else "",
        "" if sample.gpu_percent is None else f"{sample.gpu_percent:.0f}%",
        "" if left is None else f"{format_seconds(round(left))} left",
    )


def _state(replica: ReplicaProgress) -> Text | ProgressBar:
    """Return a bar for a replica that reports epochs, and the state of any other one."""
    if replica.state == "running" and replica.epochs:
        return ProgressBar(total=replica.epochs, completed=replica.epoch, width=_BAR_WIDTH)
    return Text(replica.state.ljust(_BAR_WIDTH), _COLORS.get(replica.state, "yellow"))
