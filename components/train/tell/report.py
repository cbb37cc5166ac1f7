"""The HTML report of a training job: curves, timeline and resource usage of its replicas. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.run.conclusions.failures import how_it_ended
from kfp_distributed.components.train.run.conclusions.status import JobStatus
from kfp_distributed.components.train.run.facts import ReplicaChanged, ReplicaSample, Span, moment
from kfp_distributed.components.train.run.stored_metrics import Metrics
from kfp_distributed.components.train.tell.log_format import parse_line
from kfp_distributed.reports.charts import FEW_LINES, Chart, Mark, line_chart, timeline
from kfp_distributed.reports.parts import Table
from kfp_distributed.reports.series import LARGEST, Point
from kfp_distributed.trainers.runtime.outputs.fine_tuning_file import FineTuning
from kfp_distributed.trainers.runtime.outputs.metrics_file import NUMBERS

MAX_POINTS = 60_000
"""Number of points of all line charts together. It keeps the page of 300 replicas below 2 MB."""

MAX_EVENTS = 500
"""Number of events that the page shows, the newest."""

MAX_CURVES = 30
"""Number of measures that have a chart. A chart takes 0.15 s to render."""

MAX_TEXT = 2000
"""Number of characters of a log line or an event that the page shows."""

_MAX_POINTS_OF_CHART = 20_000
_MAX_BEST = 4
_FINAL_STATES = ("succeeded", "failed", "stopped")
_LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "rmse", "perplexity")
_HIGHER_IS_BETTER = ("accuracy", "acc", "auc", "precision", "recall", "f1", "score")


@dataclass(frozen=True)
class JobPage:
    """Content of the report.

    Attributes:
        title: Title of the job, or its name.
        succeeded: Whether the job succeeded.
        outcome: How it ended, such as "succeeded after 1 min 2 s".
        job: Name of the job.
        cause: Why it failed, in a few sentences; "" if it succeeded.
        last_lines: Last log lines of the replica that failed first, with the frames of tracebacks; "" if there are
            none.
        facts: Label and value of the job's most important numbers.
        curves: One chart for each measure that replicas recorded, at most `MAX_CURVES`.
        measure_count: Number of all measures.
        answers: One row for each held-out prompt that the base model and the tuned one have answered.
        timeline: States of all replicas over time.
        usage: Throughput, memory and GPU usage of the replicas over time, as far as they are known.
        replicas: One row for each replica.
        events: One row for each event, at most `MAX_EVENTS`.
        manifest: Manifest of the job as JSON; "" if it has none.
    """

    title: str
    succeeded: bool
    outcome: str
    job: str
    cause: str
    last_lines: str
    facts: tuple[tuple[str, str], ...]
    curves: tuple[Chart, ...]
    measure_count: int
    answers: Table
    timeline: Chart
    usage: tuple[Chart, ...]
    replicas: Table
    events: Table
    manifest: str


def job_page(
    status: JobStatus,
    metrics: Metrics,
    manifest: Mapping[str, Any] = MappingProxyType({}),
    cause: str = "",
    model_epoch: float | None = None,
    fine_tuning: FineTuning = FineTuning(),  # noqa: B008  (a tuple)
) -> JobPage:
    """Return the content of the report, for the template train.html.

    Args:
        status: Status of the job.
        metrics: Epochs and steps of each replica that recorded any.
        manifest: Manifest of the job in the cluster.
        cause: Why the job failed: the last log lines of the replica that failed first, then one line of sentences.
        model_epoch: Number of the epoch after which the model was saved. Default: None, unknown.
        fine_tuning: What a fine-tuning tells besides. Default: nothing.
    """
    end = status.ended
    # A job may succeed and leave no complete model. Then the training failed.
    succeeded = bool(end and end.succeeded) and not cause
    end_time = max(moment(end), status.created) if end else status.created
    duration = format_seconds(end_time - status.created)
    last_lines, _, sentences = cause.rpartition("\n")
    measures = _measures(metrics)
    samples = [(title, unit, read) for title, unit, read in _USAGE if _has_values(status, read)]
    max_points = min(_MAX_POINTS_OF_CHART, MAX_POINTS // max(1, len(measures[:MAX_CURVES]) + len(samples)))
    return JobPage(
        title=status.title or status.job,
        succeeded=succeeded,
        outcome=f"{'succeeded' if succeeded else 'failed'} after {duration}",
        job=status.job,
        cause=sentences,
        last_lines="\n".join(map(_short_line, last_lines.splitlines())),
        facts=_facts(status, metrics, duration, model_epoch, fine_tuning.tokens),
        curves=tuple(_curves(number, measure, metrics, max_points) for number, measure in measures[:MAX_CURVES]),
        measure_count=len(measures),
        answers=Table(("prompt", "reference", "base model", "tuned model"), tuple(map(tuple, fine_tuning.answers))),
        timeline=timeline(
            "Replicas over time",
            {replica: _closed(spans, end_time) for replica, spans in status.spans.items()},
            begin=status.created,
        ),
        usage=tuple(_usage(status, title, unit, read, max_points) for title, unit, read in samples),
        replicas=Table(
            ("replica", "state", "end", "restarts", "peak memory", "pip", "node"),
            tuple(_replica_row(replica) for replica in status.replicas.values()),
        ),
        events=_events(status),
        manifest=json.dumps(manifest, indent=1, ensure_ascii=False) if manifest else "",
    )


def _facts(
    status: JobStatus, metrics: Metrics, duration: str, model_epoch: float | None, tokens: str
) -> tuple[tuple[str, str], ...]:
    """Return label and value of the job's most important numbers. Numbers that are not known are left out."""
    replicas = status.replicas.values()
    failed = sum(replica.state == "failed" for replica in replicas)
    epochs, steps = (
        max((row[number] for rows in metrics.values() for row in rows if number in row), default=None)
        for number in NUMBERS
    )
    peak_memory = max((replica.peak_memory for replica in replicas), default=0) / 1024
    samples = (sample.memory_mib or 0.0 for samples in status.samples.values() for sample in samples)
    peak_memory = max(peak_memory, *samples, 0.0)
    facts = [("Duration", duration), ("Replicas", f"{len(replicas)}" + (f", {failed} failed" if failed else ""))]
    if tokens:
        facts.append(("Training rows", tokens))
    if epochs is not None:
        facts.append(("Epochs", f"{epochs:g}"))
    if steps is not None:
        facts.append(("Steps", f"{steps:,.0f}"))
    if model_epoch is not None:
        facts.append(("Saved model", f"of epoch {model_epoch:g}" + (", the last" if model_epoch == epochs else "")))
    for number, measure in _measures(metrics)[:_MAX_BEST]:
        if best := _best(number, measure, _points(number, measure, metrics)):
            of_model = ", the saved model" if number == "epoch" and best.x == model_epoch else ""
            label = f"Best {measure}" if number == "epoch" else f"Best {measure} by step"
            facts.append((label, f"{best.y:.4g} in {number} {best.x:g}{of_model}"))
    facts.append(("Restarts of replicas", str(sum(replica.restart for replica in replicas))))
    if peak_memory:
        facts.append(("Peak memory of a replica", f"{peak_memory:,.0f} MiB"))
    return tuple(facts)


def _events(status: JobStatus) -> Table:
    rows = [(format_seconds(max(0.0, time - status.created)), _cut(text)) for time, text in sorted(status.timeline)]
    return Table(("after", "what happened"), tuple(rows[-MAX_EVENTS:]), len(rows))


def _short_line(line: str) -> str:
    """Return a log line without time and level, and at most `MAX_TEXT` characters of it."""
    entry = parse_line(line)
    return _cut(f"[{entry.replica}] {entry.message}" if entry else line)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text):,} characters)"


def _measures(metrics: Metrics) -> list[tuple[str, str]]:
    """Return the number and the name of each measure: those of epochs, then those of steps."""
    found = {
        (NUMBERS.index(number), measure != "loss", measure)
        for rows in metrics.values()
        for row in rows
        for number in NUMBERS
        if number in row
        for measure in (name.removeprefix("val_") for name in row if name != number)
    }
    return [(NUMBERS[index], measure) for index, _, measure in sorted(found)]


def _points(number: str, measure: str, metrics: Metrics) -> dict[str, list[Point]]:
    """Return the points of each replica's lines by label. Lines of validation data end with " validation"."""
    lines = {
        f"{replica}{suffix}": [(row[number], row[name]) for row in rows if number in row and name in row]
        for replica, rows in metrics.items()
        for name, suffix in ((measure, ""), (f"val_{measure}", " validation"))
    }
    return {label: points for label, points in lines.items() if points}


def _curves(number: str, measure: str, metrics: Metrics, max_points: int) -> Chart:
    lines = _points(number, measure, metrics)
    groups = {label: _group(label, len(lines)) for label in lines}
    best = _best(number, measure, lines)
    dashed = [group for group in groups.values() if group.endswith(" validation")]
    return line_chart(
        measure if number == "epoch" else f"{measure} by {number}",
        number,
        measure,
        lines,
        [best] if best else [],
        groups=groups,
        dashed=dashed,
        max_points=max_points,
    )


def _best(number: str, measure: str, lines: Mapping[str, Sequence[Point]]) -> Mark | None:
    """Return the best epoch, or the best step by the validation data.

    The best epoch is that of the validation data where there are any. Without them, no step is the best: its value is
    that of a few rows. The result is also None if it is not known whether a lower value is better.
    """
    words = measure.lower().replace("-", "_").split("_")
    if any(word in _LOWER_IS_BETTER for word in words):
        choose: Callable[..., Point] = min
    elif any(word in _HIGHER_IS_BETTER for word in words):
        choose = max
    else:
        return None
    validation = {label: points for label, points in lines.items() if label.endswith(" validation")}
    if not validation and number == "epoch":
        validation = dict(lines)
    # Values may be NaN, infinite, or integers too large for a float. No comparison with NaN is true.
    points = [point for points in validation.values() for point in points if abs(point[1]) <= LARGEST]
    if not points:
        return None
    x, value = choose(points, key=lambda point: point[1])
    return Mark(x, value, f"best: {number} {x:g}")


def _usage(
    status: JobStatus, title: str, unit: str, read: Callable[[ReplicaSample], float | None], max_points: int
) -> Chart:
    # In the order of the topology, then replicas that are not in it.
    lines = {
        replica: [
            (max(0.0, moment(sample) - status.created), value)
            for sample in status.samples.get(replica, ())
            if (value := read(sample)) is not None
        ]
        for replica in dict.fromkeys([*status.replicas, *status.samples])
    }
    lines = {replica: points for replica, points in lines.items() if points}
    return line_chart(
        title,
        "time",
        unit,
        lines,
        groups={label: _group(label, len(lines)) for label in lines},
        max_points=max_points,
        x_is_time=True,
    )


_USAGE: tuple[tuple[str, str, Callable[[ReplicaSample], float | None]], ...] = (
    ("Throughput", "rows/s", lambda sample: sample.rows_per_second),
    ("Memory", "MiB", lambda sample: sample.memory_mib),
    ("GPU utilization", "%", lambda sample: sample.gpu_percent),
    ("GPU memory", "MiB", lambda sample: sample.gpu_memory_mib),
)
"""Title, unit and value of each chart of resource usage."""


def _has_values(status: JobStatus, read: Callable[[ReplicaSample], float | None]) -> bool:
    return any(read(sample) is not None for samples in status.samples.values() for sample in samples)


def _group(label: str, lines: int) -> str:
    """Return the legend entry of a line: its label or, if there are many lines, the role of its replica."""
    if lines <= FEW_LINES:
        return label
    replica, _, data = label.partition(" ")
    return " ".join(filter(None, (replica.rpartition("-")[0] or replica, data)))


def _closed(spans: Sequence[Span], end: float) -> tuple[Span, ...]:
    """Return the spans of a replica with an end. Of the state in which it stays, only the begin is shown."""
    if not spans or spans[-1].end is not None:
        return tuple(spans)
    last = spans[-1]
    return (*spans[:-1], replace(last, end=last.begin if last.state in _FINAL_STATES else max(end, last.begin)))


def _replica_row(replica: ReplicaChanged) -> tuple[str, ...]:
    return (
        replica.replica,
        # The end of a job stops the replicas that it does not wait for.
        "stopped" if replica.state == "running" else replica.state,
        how_it_ended(replica),
        str(replica.restart),
        f"{replica.peak_memory / 1024:,.0f} MiB" if replica.peak_memory else "",
        format_seconds(replica.install_seconds) if replica.install_seconds else "",
        replica.node,
    )
