"""How long the step waits for the last lines of an ended job."""

import pytest

from kfp_distributed.components.train.run.runners.kubernetes.logs.last_lines import LastLines

ENDED = 100.0
READ = {"unread": [], "leader_is_over": True, "no_news": True, "given_up": False}


@pytest.mark.parametrize(
    ("seconds", "case", "are_read"),
    [
        (0, {}, True),
        (0, {"no_news": False}, False),
        # News arrive without end from a replica that prints forever.
        (60, {"no_news": False}, False),
        (61, {"no_news": False}, True),
        # More lines of the leader or of an ended container may arrive.
        (5, {"leader_is_over": False}, False),
        (6, {"leader_is_over": False}, True),
        (5, {"unread": [False]}, False),
        (6, {"unread": [True]}, True),
    ],
)
def test_the_wait_lasts_as_long_as_lines_may_arrive(seconds, case, are_read):
    assert LastLines().are_read(ENDED + seconds, ENDED, **{**READ, **case}) == are_read


def test_a_log_that_is_read_to_its_end_extends_the_wait_for_others():
    last_lines = LastLines()
    results = [
        last_lines.are_read(ENDED + 4 * number, ENDED, **{**READ, "unread": [False] * unread})
        for number, unread in enumerate((4, 3, 2, 2))
    ]
    assert results == [False, False, False, False]
    assert last_lines.are_read(ENDED + 17, ENDED, **{**READ, "unread": [False] * 2})


@pytest.mark.parametrize(("failing", "are_read"), [([False], False), ([True, False], False), ([True], True)])
def test_the_wait_for_an_unreadable_log_is_limited_while_other_replicas_print(failing, are_read):
    last_lines = LastLines()
    for second in range(20):
        last_lines.line_arrived(ENDED + second)
        result = last_lines.are_read(ENDED + second, ENDED, **{**READ, "unread": failing})
    assert result == are_read


def test_the_wait_for_a_silent_log_is_limited():
    last_lines = LastLines()
    last_lines.line_arrived(ENDED + 3)
    waits = [last_lines.are_read(ENDED + second, ENDED, **{**READ, "unread": [False]}) for second in (7, 8, 9)]
    assert waits == [False, False, True]


def test_the_wait_is_limited_if_the_step_gave_up_a_job_that_still_prints():
    last_lines = LastLines()
    results = []
    for second in range(12):
        last_lines.line_arrived(ENDED + second)
        case = {"unread": [False], "given_up": True}
        results.append(last_lines.are_read(ENDED + second, ENDED, **{**READ, **case}))
    assert results == [False] * 11 + [True]
