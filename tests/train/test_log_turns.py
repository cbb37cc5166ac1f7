"""Which log is read next over a limited number of connections."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.components.train.run.runners.kubernetes.logs.log_turns import FIRST_SECONDS, LogTurns, Turn

pytestmark = pytest.mark.takes(4)


def schedule(connections, *logs, leader=None):
    turns = LogTurns(connections)
    for log in logs:
        turns.add(log, 0.0, first=log == leader)
    return turns


def follow(log, has_ended=False):
    return Turn(log, follow=True, has_ended=has_ended)


def read(log, has_ended=False):
    return Turn(log, follow=False, has_ended=has_ended)


def take_all(turns, now):
    return list(iter(lambda: turns.take(now), None))


def test_each_log_is_followed_while_there_are_enough_connections():
    turns = schedule(2, "a", "b")
    assert take_all(turns, 0.0) == [follow("a"), follow("b")]
    turns.put_back("a", 1.0, delay=0.5, news=True)
    assert (turns.take(1.4), turns.seconds_until_due(1.4)) == (None, 1.5 - 1.4)
    assert take_all(turns, 1.5) == [follow("a")]


def test_more_logs_share_the_connections():
    turns = schedule(2, "a", "b", "c")
    assert (take_all(turns, 0.0), turns.seconds_until_due(0.0)) == ([read("a"), read("b")], None)
    turns.put_back("a", 0.1, news=True)
    assert take_all(turns, 0.1) == [read("c")]
    turns.put_back("b", 0.2)
    turns.put_back("c", 0.2, news=True)
    # Without news the next read is later.
    assert take_all(turns, 1.15) == [read("a")]
    assert take_all(turns, 1.25) == [read("c")]
    turns.remove("c")
    assert take_all(turns, 2.3) == [follow("b")]


def test_a_log_with_more_lines_is_read_again_after_those_that_are_due():
    turns = schedule(1, "a", "b")
    assert take_all(turns, 0.0) == [read("a")]
    turns.put_back("a", 5.0, news=True, more=True)
    assert take_all(turns, 5.0) == [read("b")]
    turns.put_back("b", 5.0)
    assert take_all(turns, 5.0) == [read("a")]


def test_a_container_that_ended_is_due_at_once():
    turns = schedule(2, "a", "b", "c")
    take_all(turns, 0.0)
    turns.put_back("a", 0.1)
    turns.end("a", 0.2, first=False)
    turns.end("b", 0.2, first=False)
    turns.end("unknown", 0.2, first=False)
    assert turns.ended == ["a", "b"]
    assert take_all(turns, 0.3) == [read("c")]
    # It ended while it was read, so another read is needed, without a delay.
    turns.put_back("b", 0.4, delay=0.5)
    assert take_all(turns, 0.4) == [read("a", True)]
    turns.remove("a")
    assert take_all(turns, 0.4) == [follow("b", True)]
    turns.put_back("b", 0.5, delay=0.5)
    assert turns.seconds_until_due(0.5) == 0.5


def test_a_turn_that_has_not_begun_is_renewed():
    turns = schedule(1, "a")
    turn = turns.take(0.0)
    turns.end("a", 0.1, first=False)
    assert turns.renew(turn) == follow("a", True)
    turns.put_back("a", 0.25, delay=0.5)
    assert turns.seconds_until_due(0.25) == 0.5


def test_the_last_lines_of_the_leader_and_of_a_failed_replica_are_read_before_those_of_a_thousand_others():
    logs = range(1000)
    turns = schedule(4, *logs, leader=700)
    first = take_all(turns, 0.0)
    for log in logs:
        turns.end(log, 1.0, first=log == 800)
    for turn in first:
        turns.put_back(turn.log, 2.0)
    assert take_all(turns, 2.0) == [read(700, True), read(800, True), read(4, True), read(5, True)]


def test_the_log_of_the_leader_is_read_each_second():
    turns = schedule(4, *range(1000), leader=0)
    take_all(turns, 0.0)
    for log in (0, 1, 2):
        turns.put_back(log, 1.0, news=log != 2)
    while other := turns.take(1.0):
        turns.put_back(other.log, 1.0, delay=1000.0)
    now, reads = 1.0, []
    while len(reads) < 3:
        now += turns.seconds_until_due(now)
        reads.append((turns.take(now).log, now))
    # 100 reads per second, or half as many of logs without news.
    assert reads == [(0, 2.0), (1, 11.0), (2, 21.0)]


def test_logs_that_cannot_be_read_occupy_a_quarter_of_the_connections():
    turns = schedule(8, *range(20))
    for turn in take_all(turns, 0.0):
        turns.put_back(turn.log, 1.0, delay=0.5, failing=True)
    assert take_all(turns, 1.0) == [read(log) for log in range(8, 16)]
    for log in range(8, 16):
        turns.put_back(log, 30.0)
    assert take_all(turns, 30.0) == [read(log) for log in (16, 17, 18, 19, 0, 1)]
    assert turns.seconds_until_due(30.0) == 2.0
    turns.put_back(0, 30.5)
    assert take_all(turns, 30.5) == [read(2)]


@given(
    st.integers(2, 12),
    st.integers(1, 4),
    st.lists(
        st.tuples(st.sampled_from(["news", "silent", "more", "failing", "end"]), st.floats(0, 5), st.integers(0, 11)),
        min_size=300,
        max_size=300,
    ),
)
def test_no_log_starves(logs, connections, steps):
    """A log that can be read and is due waits for a limited number of reads of each other one, whatever they return."""
    turns, now, due, waits, taken = schedule(connections, *range(logs), leader=1), 0.0, 0.0, 0, []
    for outcome, seconds, index in steps:
        while turn := turns.take(now):
            waits = 0 if turn.log == 0 else waits
            taken.append(turn.log)
        is_due = 0 not in taken and due <= now
        assert taken or not is_due, "a connection is free"
        if is_due:
            waits += 1
            assert waits <= 6 * logs
        now += seconds
        if outcome == "end":
            turns.end(1 + index % (logs - 1), now, first=True)
        elif taken:
            log = taken.pop(index % len(taken))
            failing = outcome == "failing" and log != 0
            turns.put_back(log, now, delay=0.5 * failing, news=True, more=outcome == "more", failing=failing)
            if log == 0:
                due = now + (FIRST_SECONDS if turns.is_shared and outcome != "more" else 0.0)
        waits = 0 if 0 in taken else waits
