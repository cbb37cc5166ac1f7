"""Counts of restarts and preemptions, and their limits."""

import pytest

from kfp_distributed.components.train.describe.distributions import parse_distribution
from kfp_distributed.components.train.run.conclusions.restarts import Restarts, answer_time
from kfp_distributed.components.train.run.facts import LogLine

NAMES = ("worker-0", "worker-1")


def restarts(**keys):
    return Restarts(parse_distribution(keys))


def test_restarts_count_from_0_after_a_newer_checkpoint():
    counts, permitted = restarts(restart_limit=2), []
    for checkpoint in ("00000001", "00000001", "00000001", "00000002", "00000002", "", "00000002"):
        counts = counts.after_failure(checkpoint)
        permitted.append((counts.next_restart(["worker-1"]), counts.can_restart(["worker-1"])))
        counts = counts.after_restart(["worker-1"])
    assert permitted == [
        ("restart 1 of 2", True),
        ("restart 2 of 2", True),
        ("restart 3 of 2", False),
        ("restart 1 of 2", True),
        ("restart 2 of 2", True),
        # A store that does not answer changes nothing.
        ("restart 3 of 2", False),
        ("restart 4 of 2", False),
    ]


def test_restarts_are_counted_for_each_replica():
    counts = restarts(restart_limit=1).after_restart(["worker-1"])
    assert [counts.can_restart([name]) for name in NAMES] == [True, False]
    assert not counts.can_restart(NAMES)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, [("preemption 1", True), ("preemption 1", True), ("preemption 2", True)]),
        ("unlimited", [("preemption 1", True), ("preemption 1", True), ("preemption 2", True)]),
        (1, [("preemption 1 of 1", True), ("preemption 1 of 1", True), ("preemption 2 of 1", False)]),
        (0, [("preemption 1 of 0", False), ("preemption 1 of 0", False), ("preemption 2 of 0", False)]),
    ],
)
def test_preemptions_within_a_minute_are_one(limit, expected):
    counts, judged = restarts(restart_limit=0, preemption_limit=limit), []
    for time in (1000, 1059, 1070):
        counts = counts.after_preemption(time, begun=0)
        judged.append((counts.last_preemption, counts.can_be_preempted))
    assert judged == expected


def test_a_replica_that_started_anew_and_is_preempted_again_within_a_minute_counts_twice():
    counts, numbers = restarts(), []
    # The second one is another replica of the first node, the last one another replica of the second node.
    for time, begun in ((1000, 0), (1001, 0), (1030, 1010), (1031, 1011)):
        counts = counts.after_preemption(time, begun)
        numbers.append(counts.last_preemption)
    assert numbers == ["preemption 1", "preemption 1", "preemption 2", "preemption 2"]


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ("10%|## sample memory=5MiB store=0s", 1000),
        ("sample store=90s", 910),
        ("sample memory=5MiB", None),
        ("the store=0s", None),
        ("sample memory=5MiB store=0s of all", None),
    ],
)
def test_a_sample_says_when_the_object_store_has_answered(line, time):
    assert answer_time(LogLine(1010.0, "worker-0", line, happened=1000.0)) == time
