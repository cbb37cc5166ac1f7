"""The HTML report of a training job: its curves, its replicas and its timeline. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kfp_distributed.components.train.durations import format_seconds
from kfp_distributed.components.train.failures import how_it_ended
from kfp_distributed.components.train.job import ReplicaChanged
from kfp_distributed.components.train.status import JobStatus
from kfp_distributed.reports.charts import Chart, line_chart
from kfp_distributed.reports.parts import Table


@dataclass(frozen=True)
class JobPage:
    """Content of the report.

    Attributes:
        title: Title of the job, or its name.
        outcome: How it ended, such as "succeeded after 1 min 2 s".
        job: Name of the job.
        cause: Why it failed; "" if it succeeded.
        charts: One chart for each measure that replicas recorded.
        replicas: One row for each replica.
        timeline: One row for each event.
        manifest: Manifest of the job as JSON; "" if it has none.
    """

    title: str
    outcome: str
    job: str
    cause: str
    charts: tuple[Chart, ...]
    replicas: Table
    timeline: Table
    manifest: str


def job_page(
    status: JobStatus,
    metrics: Mapping[str, Sequence[Mapping[str, float]]],
    manifest: Mapping[str, Any] = MappingProxyType({}),
    cause: str = "",
) -> JobPage:
    """Return the content of the report, for the template train.html.

    Args:
        status: Status of the job.
        metrics: Epochs of each replica that recorded any: [{"epoch": 1, "loss": ..., ...}, ...].
        manifest: Manifest of the job in the cluster.
        cause: Why the job failed, with the last log lines of the replica that failed first.
    """
    end = status.ended
    result = "succeeded" if end and end.succeeded else "failed"
    duration = format_seconds((end.time if end else status.started) - status.started)
    events = sorted(status.timeline)
    return JobPage(
        title=status.title or status.job,
        outcome=f"{result} after {duration}",
        job=status.job,
        cause=cause,
        charts=_charts(metrics),
        replicas=Table(
            ("replica", "state", "end", "restarts", "peak memory", "pip", "node"),
            tuple(_replica_row(replica) for replica in status.replicas.values()),
        ),
        timeline=Table(
            ("after", "what happened"),
            tuple((format_seconds(time - status.started), text) for time, text in events),
        ),
        manifest=json.dumps(manifest, indent=1, ensure_ascii=False) if manifest else "",
    )


def _replica_row(replica: ReplicaChanged) -> tuple[str, ...]:
    return (
        replica.replica,
        # The end of a job stops the replicas that nobody waits for.
        "stopped" if replica.state == "running" else replica.state,
        how_it_ended(replica),
        str(replica.restart),
        f"{replica.peak_memory / 1024:.0f} MiB" if replica.peak_memory else "",
        format_seconds(replica.install_seconds) if replica.install_seconds else "",
        replica.node,
    )


def _charts(metrics: Mapping[str, Sequence[Mapping[str, float]]]) -> tuple[Chart, ...]:
    """Return a chart for each measure, with a line for each replica and one for its validation data."""
    names = {name.removeprefix("val_") for epochs in metrics.values() for epoch in epochs for name in epoch}
    return tuple(
        line_chart(
            measure,
            "epoch",
            measure,
            {
                f"{replica} {name}": [(epoch["epoch"], epoch[name]) for epoch in epochs if name in epoch]
                for replica, epochs in metrics.items()
                for name in (measure, f"val_{measure}")
            },
        )
        for measure in sorted(names - {"epoch"})
    )
