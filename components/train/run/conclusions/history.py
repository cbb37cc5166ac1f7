"""History of a job's replicas: the periods of their states, and samples of their resource usage. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from kfp_distributed.components.train.run.conclusions.failures import how_it_ended
from kfp_distributed.components.train.run.facts import ReplicaChanged, ReplicaSample, Span, moment

MAX_SPANS = 100
"""Number of spans that are kept for each replica, the newest."""

MAX_SAMPLES = 300
"""Number of samples that are kept for each replica."""

_ENDED = ("succeeded", "failed", "stopped")

Spans = Mapping[str, tuple[Span, ...]]


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
    # The clocks of the cluster may differ, and no state ends before it has begun.
    begin = max([moment(change), *(span.begin for span in history[-1:])])
    if history and history[-1].begin == begin and change.state not in _ENDED and history[-1].state not in _ENDED:
        # The state before lasted no time.
        reason = reason or history[-1].reason
        history = history[:-1]
    if history and history[-1].state == change.state and not is_restart:
        history = (*history[:-1], replace(history[-1], reason=reason or history[-1].reason))
    else:
        closed = (replace(history[-1], end=begin),) if history else ()
        history = (*history[:-1], *closed, Span(change.state, begin, None, reason))
    return {**spans, change.replica: history[-MAX_SPANS:]}


def add_sample(history: tuple[ReplicaSample, ...], sample: ReplicaSample) -> tuple[ReplicaSample, ...]:
    """Return the samples of a replica after one more.

    Of each interval the first sample is kept. The interval is the shortest of 1, 2, 4, ... seconds of which
    `MAX_SAMPLES` cover the time since the first sample of the replica.
    """
    begin = moment(history[0]) if history else moment(sample)
    interval = 1.0
    while moment(sample) - begin >= MAX_SAMPLES * interval:
        interval *= 2

    def number(sample: ReplicaSample) -> float:
        return (moment(sample) - begin) // interval

    if history and number(history[-1]) >= number(sample):
        return history
    if len(history) >= MAX_SAMPLES:
        history = tuple(next(group) for _, group in groupby(history, number))
    return (*history, sample)
