"""History of a job's replicas: the periods of their states, and samples of their resource usage. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import median

from kfp_distributed.components.train.failures import how_it_ended
from kfp_distributed.components.train.job import ReplicaChanged, ReplicaSample, Span

MAX_SPANS = 100
"""Number of spans that are kept for each replica, the newest."""

MAX_SAMPLES = 300
"""Number of samples that are kept for each replica."""

Spans = Mapping[str, tuple[Span, ...]]
Samples = Mapping[str, tuple[ReplicaSample, ...]]


def add_change(spans: Spans, change: ReplicaChanged, *, is_restart: bool = False) -> Spans:
    """Return the spans of all replicas after a replica changed its state.

    Args:
        spans: Spans by replica.
        change: The change. If it repeats the state, it can only give the span a reason.
        is_restart: Whether the replica was restarted.
    """
    reason = how_it_ended(change) if change.state == "failed" else change.reason
    if is_restart and not reason:
        reason = f"restart {change.restart}"
    history = spans.get(change.replica, ())
    if history and history[-1].state == change.state and not is_restart:
        history = (*history[:-1], replace(history[-1], reason=reason or history[-1].reason))
    else:
        closed = (replace(history[-1], end=change.time),) if history else ()
        history = (*history[:-1], *closed, Span(change.state, change.time, None, reason))
    return {**spans, change.replica: history[-MAX_SPANS:]}


def add_sample(samples: Samples, sample: ReplicaSample) -> Samples:
    """Return the samples of all replicas after one more.

    When a replica has `MAX_SAMPLES`, every second one is dropped. From then on samples are kept at twice the interval.
    """
    history = samples.get(sample.replica, ())
    if len(history) > 1:
        interval = median(later.time - earlier.time for earlier, later in pairwise(history))
        if sample.time - history[-1].time < 0.75 * interval:
            return samples
    if len(history) >= MAX_SAMPLES:
        history = history[::2]
    return {**samples, sample.replica: (*history, sample)}
