"""The log of a `train` step: facts of a job -> entries."""

import os
import time
from collections.abc import Callable

from kfp_distributed.components.train.run.conclusions.status import describe
from kfp_distributed.components.train.run.facts import (
    Fact,
    JobEnded,
    JobEvent,
    Level,
    LogLine,
    ReplicaChanged,
    ReplicaSample,
    moment,
)
from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry
from kfp_distributed.trainers.runtime.monitoring.samples import Sample, format_sample

SHOW_SAMPLES_VARIABLE = "KFP_DISTRIBUTED_SHOW_SAMPLES"
"""Environment variable: if set, the log of the step has the samples of the replicas. `local_run` displays them."""


class StepLog:
    """Shows and keeps the entries of a step's log. Threads may use it at the same time if both functions allow it."""

    def __init__(
        self, show: Callable[[LogEntry], object], keep: Callable[[LogEntry], object] = lambda entry: None
    ) -> None:
        """Create a log without entries.

        Args:
            show: Receives each entry, such as `print_entry`, except for TensorFlow's remarks at each start.
            keep: Receives all entries. Default: does nothing.
        """
        self._show, self._keep = show, keep

    def __call__(self, fact: Fact) -> None:
        """Add the entry of a fact, if it has one."""
        if entry := log_entry(fact):
            self._add(entry, is_shown=not (isinstance(fact, LogLine) and fact.is_remark))

    def log(self, level: Level, message: str) -> None:
        """Add a line of the step itself."""
        self._add(LogEntry(time.time(), level, JOB, message), is_shown=True)

    def _add(self, entry: LogEntry, is_shown: bool) -> None:
        if is_shown:
            self._show(entry)
        self._keep(entry)


def log_entry(fact: Fact) -> LogEntry | None:
    """Return the entry of the step's log for a fact about the job, or None if the fact is not logged."""
    if isinstance(fact, LogLine):
        return LogEntry(moment(fact), "INFO", fact.replica, fact.line)
    if isinstance(fact, ReplicaSample):
        if not os.environ.get(SHOW_SAMPLES_VARIABLE):
            return None
        sample = Sample(**{name: getattr(fact, name) for name in Sample._fields})
        return LogEntry(moment(fact), "INFO", fact.replica, format_sample(sample))
    message = describe(fact)
    return LogEntry(moment(fact), _level(fact), JOB, message) if message else None


def _level(fact: Fact) -> Level:
    if isinstance(fact, JobEvent):
        return fact.level
    if isinstance(fact, JobEnded):
        return "INFO" if fact.succeeded else "ERROR"
    if isinstance(fact, ReplicaChanged):
        if fact.state == "failed":
            return "WARNING" if fact.preempted else "ERROR"
        # A replica that waits and says why: no node has room, an image cannot be pulled.
        if fact.state in ("waiting", "pulling") and fact.reason:
            return "WARNING"
    return "INFO"
