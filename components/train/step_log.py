"""Facts of a job -> entries of the log of its `train` step."""

import os
from collections.abc import Iterator
from dataclasses import replace

from kfp_distributed.components.train.job import (
    Fact,
    JobEnded,
    JobEvent,
    LogLine,
    ReplicaChanged,
    ReplicaSample,
    moment,
)
from kfp_distributed.components.train.log_format import JOB, Level, LogEntry
from kfp_distributed.components.train.status import describe
from kfp_distributed.trainers.runtime.samples import Sample, format_sample, split_sample

SHOW_SAMPLES_VARIABLE = "KFP_DISTRIBUTED_SHOW_SAMPLES"
"""Environment variable: if set, the log of the step has the samples of the replicas. `local_run` displays them."""


def split_samples(fact: Fact) -> Iterator[Fact]:
    """Yield a fact, or the sample that a log line has and the rest of the line, if there is any."""
    if not isinstance(fact, LogLine):
        yield fact
        return
    text, sample = split_sample(fact.line)
    if sample is None:
        yield fact
        return
    if text:
        yield replace(fact, line=text)
    yield ReplicaSample(fact.time, fact.replica, *sample, happened=fact.happened)


def log_entry(fact: Fact) -> LogEntry | None:
    """Return the entry of the step's log for a fact about the job, or None if the fact is not logged."""
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
