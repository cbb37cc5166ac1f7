"""The HTML report of a job: its training curves, its replicas, its timeline. Pure."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

from kfp_distributed.components.train.durations import format_seconds
from kfp_distributed.components.train.failures import how_it_ended
from kfp_distributed.components.train.status import JobStatus

# The first three lines are those of the reports of `prepare_data` and `evaluate`.
_STYLE = (
    ":root{color-scheme:light dark}body{font:15px system-ui;margin:2em}"
    "table{border-collapse:collapse;display:block;overflow:auto;margin:1em 0}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #8884}"
    "th,td:first-child{white-space:nowrap}pre{white-space:pre-wrap}"
    "svg{display:block;max-width:100%}text{fill:currentColor;font-size:12px}"
)


def job_report(
    status: JobStatus,
    metrics: Mapping[str, Sequence[Mapping[str, float]]],
    manifest: Mapping[str, Any] = MappingProxyType({}),
    cause: str = "",
) -> str:
    """Makes the report of a job.

    Args:
        status: How it went.
        metrics: The epochs of each replica that kept them: [{"epoch": 1, "loss": ..., ...}, ...].
        manifest: What the job looks like to a cluster.
        cause: Why it failed, the last lines of its root included.

    Returns:
        A page that needs nothing else.
    """
    ended = status.ended
    title = escape(status.title or status.job)
    verdict = "succeeded" if ended and ended.succeeded else "failed"
    seconds = format_seconds((ended.time if ended else status.started) - status.started)
    replicas = [
        (
            each.replica,
            # What was not waited for is ended with its job.
            "stopped" if each.state == "running" else each.state,
            how_it_ended(each),
            str(each.restart),
            f"{each.peak_memory / 1024:.0f} MiB" if each.peak_memory else "",
            format_seconds(each.install_seconds) if each.install_seconds else "",
            each.node,
        )
        for each in status.replicas.values()
    ]
    timeline = [(format_seconds(time - status.started), text) for time, text in sorted(status.timeline)]
    measures = {name.removeprefix("val_") for epochs in metrics.values() for epoch in epochs for name in epoch}
    page = (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        f"<h1>{title} {verdict} after {seconds}</h1><p>Job {escape(status.job)}"
        + (f"<pre>{escape(cause)}</pre>" if cause else "")
        + "".join(_curve(each, metrics) for each in sorted(measures - {"epoch"}))
        + _table(("replica", "state", "end", "restarts", "peak memory", "pip", "node"), replicas)
        + _table(("after", "what happened"), timeline)
        + (
            f"<details><summary>manifest</summary><pre>{escape(json.dumps(manifest, indent=1))}</pre></details>"
            if manifest
            else ""
        )
    )
    # HTML allows no control characters, and replicas may print any.
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "\N{REPLACEMENT CHARACTER}", page)


def _curve(measure: str, metrics: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """One measure over the epochs: a line for each replica, and one for its validation data."""
    lines = {
        f"{replica} {key}": [
            (epoch["epoch"], epoch[key]) for epoch in epochs if math.isfinite(epoch.get(key, math.nan))
        ]
        for replica, epochs in metrics.items()
        for key in (measure, f"val_{measure}")
    }
    lines = {label: points for label, points in lines.items() if points}
    if not lines:
        return ""
    last = max(epoch for points in lines.values() for epoch, _ in points)
    values = [value for points in lines.values() for _, value in points]
    low, high = min(values), max(values)
    texts = [(0, 40, f"{high:.3g}"), (0, 200, f"{low:.3g}"), (40, 225, "epoch 1"), (560, 225, f"epoch {last:g}")]
    drawn = [f"<text x={x} y={y}>{text}</text>" for x, y, text in texts]
    for number, (label, points) in enumerate(lines.items()):
        colour = f"hsl({210 + number * 140},60%,50%)"
        places = [
            f"{40 + 560 * (epoch - 1) / max(1, last - 1):.0f},{200 - 160 * (value - low) / (high - low or 1):.0f}"
            # The first point twice: a single one, with round ends, is a dot.
            for epoch, value in points[:1] + points
        ]
        drawn.append(
            f'<polyline points="{" ".join(places)}" fill=none stroke="{colour}" stroke-width=3 stroke-linecap=round />'
            f'<text x={48 + number * 190} y=14 style="fill:{colour}">{escape(label)}</text>'
        )
    return f'<svg viewBox="0 0 680 240" width=680>{"".join(drawn)}</svg>'


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["".join(f"<th>{each}" for each in header)]
    lines += ["".join(f"<td>{escape(each)}" for each in row) for row in rows]
    return f"<table><tr>{'<tr>'.join(lines)}</table>"
