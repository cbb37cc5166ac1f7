"""Status of one replica: its last change, and what its output tells about its progress. Pure.

Times are in seconds since 1970, as in the facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.run.conclusions.failures import lines_of_cause
from kfp_distributed.components.train.run.facts import LogLine, ReplicaChanged, ReplicaSample
from kfp_distributed.trainers.runtime.monitoring.progress import parse_progress

LAST_LINES = 200
"""Number of log lines that are kept for each replica: the frames and the text of most exceptions have fewer. If the
text of an exception has more, the cause of the failure does not name the exception."""

_SHOWN_LINES = 20
"""So many of them are in the cause of a failure, or more if they would begin within an exception."""

_SHOWN_CHARACTERS = 80
"""Length of a log line in the description of a replica's progress."""


@dataclass(frozen=True)
class ReplicaStatus(ReplicaChanged):
    """Status of a replica: its last change and its output since its last start.

    A replica makes progress when its training rows or its transferred bytes grow, and when it prints the progress of
    an epoch or a step. If it counts no rows, each of its log lines is progress, too.

    Attributes:
        since: Time since which it has been in this state.
        heard: Time of its last log line or sample; None without one.
        tail: Its last log lines.
        sampled: Time of its last sample; None without one.
        rows: Training rows in its last sample; None if it counts none.
        transferred_kib: KiB that it had transferred by its last sample; None if unknown.
        progressed: Time of its last progress; None without any.
        progress: Its last progress, such as "read row 12,000"; "" without any.
    """

    since: float = 0.0
    heard: float | None = None
    tail: tuple[str, ...] = ()
    sampled: float | None = None
    rows: int | None = None
    transferred_kib: int | None = None
    progressed: float | None = None
    progress: str = ""


def add_output(replica: ReplicaStatus, output: Sequence[LogLine | ReplicaSample]) -> ReplicaStatus:
    """Return the status of a replica after more of its output, which is not empty and in the order of time."""
    sampled, rows, transferred = replica.sampled, replica.rows, replica.transferred_kib
    progressed, last_progress = replica.progressed, replica.progress
    for fact in output:
        if isinstance(fact, LogLine):
            progress = _progress_of_line(fact.line, counts_rows=bool(rows))
        else:
            progress = _progress_of_sample(fact, rows, transferred)
            sampled, rows, transferred = fact.time, fact.rows, fact.transferred_kib
        if progress:
            progressed, last_progress = fact.time, progress
    lines = (fact.line for fact in output if isinstance(fact, LogLine))
    return replace(
        replica,
        heard=output[-1].time,
        tail=(*replica.tail, *lines)[-LAST_LINES:],
        sampled=sampled,
        rows=rows,
        transferred_kib=transferred,
        progressed=progressed,
        progress=last_progress,
    )


def shown_lines(replica: ReplicaStatus, *, frames: bool) -> list[str]:
    """Return the last lines of a replica for the cause of its failure, with or without the frames of tracebacks."""
    return lines_of_cause(replica.tail, _SHOWN_LINES, frames=frames)


def without_output(replica: ReplicaStatus) -> ReplicaStatus:
    """Return the status of a replica that starts anew. Its last lines are kept."""
    return replace(replica, heard=None, sampled=None, rows=None, transferred_kib=None, progressed=None, progress="")


def describe_activity(replica: ReplicaStatus, now: float) -> str:
    """Return what a running replica did last, such as "worker-0: read row 12,000 31 min ago, last output 4 s ago"."""
    if replica.heard is None:
        return f"{replica.replica}: no output since it started {_ago(replica.since, now)}"
    if replica.progressed is None:
        return f"{replica.replica}: no progress, last output {_ago(replica.heard, now)}"
    text = f"{replica.replica}: {replica.progress} {_ago(replica.progressed, now)}"
    return text if replica.progressed >= replica.heard else f"{text}, last output {_ago(replica.heard, now)}"


def _progress_of_line(line: str, *, counts_rows: bool) -> str:
    if progress := parse_progress(line):
        return f"ended {progress}"
    return "" if counts_rows else f'printed "{line.strip()[:_SHOWN_CHARACTERS]}"'


def _progress_of_sample(sample: ReplicaSample, rows: int | None, transferred: int | None) -> str:
    """Return the progress since the sample before, which had `rows` and `transferred`; "" if there is none."""
    # Totals that are smaller than before are those of ranks that were restarted within their replica.
    if sample.rows and sample.rows != rows:
        return f"read row {sample.rows:,}"
    if sample.transferred_kib and sample.transferred_kib != transferred:
        kib = sample.transferred_kib
        return "transferred " + (f"{kib / 1024:,.1f} MiB" if kib >= 1024 else f"{kib} KiB")
    return ""


def _ago(time: float, now: float) -> str:
    return f"{format_seconds(now - time)} ago"
