"""Warnings about a job that makes no progress, and about replicas whose output stops. Nothing ends for them. Pure."""

import math
from dataclasses import dataclass

from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.run.conclusions.status import JobStatus, listed
from kfp_distributed.components.train.run.conclusions.time_budgets import (
    describe_running,
    is_launched,
    shortened,
    stalled_since,
)
from kfp_distributed.components.train.run.facts import JobEvent

STALL_SECONDS = 1800.0
"""Seconds without progress before a warning. Healthy trainings make none while a large model compiles or while
validation data is scored, which takes some 20 minutes."""

SILENT_SECONDS = 300.0
"""Seconds without output before a warning about a replica. A replica prints a sample every 10 s, so 30 are missing. A
call into C code that holds Python's lock rarely takes longer."""

CHECK_SECONDS = 10.0
"""Seconds between two checks, which look at all replicas. They are due at least once a second."""


@dataclass(frozen=True)
class Stalls:
    """What the log has been warned of.

    Attributes:
        checked: Time of the last check, in seconds since 1970.
        stalled: Whether the job makes no progress.
        silent: Names of the replicas whose output has stopped.
    """

    checked: float = -math.inf
    stalled: bool = False
    silent: frozenset[str] = frozenset()


def check_stalls(status: JobStatus, known: Stalls, now: float) -> tuple[Stalls, list[JobEvent]]:
    """Return what stalls now, and a warning for each stall that is not known.

    Args:
        status: Status of the job.
        known: Result of the previous check. A stall that is over is forgotten.
        now: The time, in seconds since 1970.
    """
    if now - known.checked < CHECK_SECONDS:
        return known, []
    since = stalled_since(status)
    stalls = Stalls(now, since is not None and now - since >= STALL_SECONDS, _silent(status, now))
    texts = []
    if more := stalls.silent - known.silent:
        # In the order of the replicas.
        names = [name for name in status.replicas if name in more]
        texts.append(
            f"no line and no sample for {format_seconds(SILENT_SECONDS)} from {listed(names)}: the process has ended "
            "or is stopped, code that holds Python's lock runs, or the log cannot be read"
        )
    if stalls.stalled and not known.stalled:
        texts.append(
            f"no progress for {format_seconds(STALL_SECONDS)}: {shortened(describe_running(status, now))}. "
            "Set progress_timeout to end such a training"
        )
    return stalls, [JobEvent(now, text, "WARNING") for text in texts]


def _silent(status: JobStatus, now: float) -> frozenset[str]:
    """Return the running replicas that have printed samples before, and nothing for `SILENT_SECONDS`."""
    begin = now - SILENT_SECONDS
    if is_launched(status) and any((replica.progressed or 0.0) > begin for replica in status.replicas.values()):
        # The ranks of these workers have ended, and another one saves the model.
        return frozenset()
    return frozenset(
        name
        for name, replica in status.replicas.items()
        if replica.state == "running" and replica.sampled is not None and (replica.heard or 0.0) <= begin
    )
