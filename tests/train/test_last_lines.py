"""How long the last lines of an ended job are waited for: cases of what is still to come."""

import pytest

from kfp_distributed.components.train.runners.kubernetes.last_lines import LastLines

ENDED = 100.0
READ = {"unread": [], "leader_is_over": True, "no_news": True, "given_up": False}


@pytest.mark.parametrize(
    ("seconds", "case", "are_read"),
    [
        (0, {}, True),
        (0, {"no_news": False}, False),
        # News that keep coming, of a replica that prints for ever.
        (60, {"no_news": False}, False),
        (61, {"no_news": False}, True),
        # The leader, or an ended container, may have lines to come.
        (5, {"leader_is_over": False}, False),
        (6, {"leader_is_over": False}, True),
        (5, {"unread": [False]}, False),
        (6, {"unread": [True]}, True),
    ],
)
def test_an_ended_job_is_waited_for_as_long_as_lines_may_come(seconds, case, are_read):
    assert LastLines().are_read(ENDED + seconds, ENDED, **{**READ, **case}) == are_read


@pytest.mark.parametrize(("failing", "are_read"), [([False], False), ([True, False], False), ([True], True)])
def test_a_log_that_cannot_be_read_is_waited_for_only_for_seconds_while_others_print(failing, are_read):
    last_lines = LastLines()
    for second in range(20):
        last_lines.line_arrived(ENDED + second)
        result = last_lines.are_read(ENDED + second, ENDED, **{**READ, "unread": failing})
    assert result == are_read


def test_a_readable_log_that_stays_silent_is_not_waited_for():
    last_lines = LastLines()
    last_lines.line_arrived(ENDED + 3)
    waits = [last_lines.are_read(ENDED + second, ENDED, **{**READ, "unread": [False]}) for second in (7, 8, 9)]
    assert waits == [False, False, True]


def test_replicas_that_go_on_printing_in_a_job_that_is_given_up_are_not_waited_for():
    last_lines = LastLines()
    results = []
    for second in range(12):
        last_lines.line_arrived(ENDED + second)
        case = {"unread": [False], "given_up": True}
        results.append(last_lines.are_read(ENDED + second, ENDED, **{**READ, **case}))
    assert results == [False] * 11 + [True]
