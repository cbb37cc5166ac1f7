from itertools import pairwise

import pytest

from kfp_distributed.components.train.run.conclusions.history import MAX_SAMPLES, MAX_SPANS, add_change, add_sample
from kfp_distributed.components.train.run.facts import ReplicaChanged, ReplicaSample, Span


def test_a_change_ends_the_span_before():
    spans = {"worker-0": (Span("waiting", 1),), "worker-1": (Span("waiting", 1),)}
    changes = [
        ReplicaChanged(2, "worker-0", "waiting", reason="no node has 8 CPUs"),
        ReplicaChanged(3, "worker-0", "waiting"),
        ReplicaChanged(4, "worker-0", "running"),
        ReplicaChanged(9, "worker-0", "failed", exit_code=1, reason="OOMKilled"),
    ]
    for change in changes:
        spans = add_change(spans, change)
    assert spans == {
        "worker-0": (
            Span("waiting", 1, 4, "no node has 8 CPUs"),
            Span("running", 4, 9),
            Span("failed", 9, None, "exit code 1, OOMKilled"),
        ),
        "worker-1": (Span("waiting", 1),),
    }


@pytest.mark.parametrize(("reason", "shown"), [("", "restart 2"), ("evicted", "evicted")])
def test_a_restart_begins_a_span_even_in_the_same_state(reason, shown):
    change = ReplicaChanged(5, "worker-0", "running", restart=2, reason=reason)
    assert add_change({"worker-0": (Span("running", 1),)}, change, is_restart=True) == {
        "worker-0": (Span("running", 1, 5), Span("running", 5, None, shown))
    }


def test_the_newest_spans_are_kept():
    spans = {}
    for time in range(MAX_SPANS + 7):
        spans = add_change(spans, ReplicaChanged(time, "worker-0", "running", restart=time), is_restart=True)
    assert [span.begin for span in spans["worker-0"]] == [*range(7, MAX_SPANS + 7)]


@pytest.mark.parametrize("interval", [0.2, 1.0, 10.0])
def test_samples_are_thinned_evenly(interval):
    samples = ()
    for index in range(10 * MAX_SAMPLES):
        samples = add_sample(samples, ReplicaSample(index * interval, "worker-0", memory_mib=index))
    times = [sample.time for sample in samples]
    assert MAX_SAMPLES / 2 <= len(times) <= MAX_SAMPLES
    gaps = [later - earlier for earlier, later in pairwise([*times, 10 * MAX_SAMPLES * interval])]
    assert (times[0], max(gaps) <= 3 * sum(gaps) / len(gaps)) == (0, True)
