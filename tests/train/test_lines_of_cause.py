"""The last lines of a replica in the cause of its failure, with and without the frames of tracebacks."""

from functools import reduce

import pytest
from step_lines import brief_lines
from train.programs.jobs import make_job, workers

from kfp_distributed.components.train.run.conclusions.status import advance, begin, failure_cause
from kfp_distributed.components.train.run.facts import JobEnded, LogLine, ReplicaChanged

CHAINED = "During handling of the above exception, another exception"
FIRST = "Traceback (most recent call last):"
FRAMES = [
    '  File "program.py", line 3, in <module>',
    "    fit()",
    "    ~~~^^",
    "  [Previous line repeated 2 more times]",
]
GROUP = ["  | " + frame for frame in FRAMES]
SIZES = [f"\tsize mismatch {number}" for number in range(24)]
SETTINGS = ["{", *(f"  a: {number}" for number in range(40)), "}"]
USER_CODE = ["ValueError: in user code:", "", '    File "program.py", line 9, in step  *', "        fit()"]
POSITION = ['  File "program.py", line 1', "    a b", "SyntaxError: invalid syntax"]


def fail(printed):
    """The status of a job whose worker-1 has printed lines and failed."""
    lines = [LogLine(2, "worker-1", text) for text in printed]
    facts = [*lines, ReplicaChanged(3, "worker-1", "failed", exit_code=1), JobEnded(4, False, "It is so.")]
    return reduce(advance, facts, begin(make_job((), workers(2)), 0))


def cause_of(status, **options):
    """The last lines in the cause of a failure, and its sentence."""
    *lines, sentence = brief_lines(failure_cause(status, **options))
    return [text.removeprefix("[worker-1] ") for text in lines], sentence


@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "[rank0]:[rank0]: ", "[1,0]<stderr>:"])
@pytest.mark.parametrize(
    ("last", "shown", "count"),
    [
        (["no exception"], ["no exception"], 20),
        (SETTINGS, SETTINGS, 20),
        ([FIRST, *FRAMES * 9, "KeyError: 1"], [FIRST, "KeyError: 1"], 20),
        # Only the end of the traceback is among the last lines.
        (FRAMES * 50, [], 0),
        ([*FRAMES * 49, "KeyError: 1"], ["KeyError: 1"], 4),
        ([FIRST, *FRAMES, "RuntimeError: Errors:", *SIZES], [FIRST, "RuntimeError: Errors:", *SIZES], 26),
        (
            [FIRST, *FRAMES, "KeyError: 1", "", f"{CHAINED} occurred:", "", FIRST, *FRAMES, "E: x", *SIZES],
            [FIRST, "KeyError: 1", "", f"{CHAINED} occurred:", "", FIRST, "E: x", *SIZES],
            31,
        ),
        ([FIRST, *FRAMES, "KeyError: 1", *SETTINGS[:20]], [FIRST, "KeyError: 1", *SETTINGS[:20]], 20),
        (["  + Exception Group", *GROUP, "  | Many: x"], ["  + Exception Group", "  | Many: x"], 20),
        ([FIRST, *FRAMES, *USER_CODE], [FIRST, *USER_CODE], 20),
        ([FIRST, *FRAMES, *POSITION], [FIRST, *POSITION], 20),
    ],
)
def test_the_last_lines_do_not_begin_within_an_exception(last, shown, count, prefix):
    before = [str(number) for number in range(60)]
    printed = [*before, *(f"{prefix}{text}" for text in last)]
    status = fail(printed)
    lines, _ = cause_of(status, frames=False)
    assert lines == ([*before, *(f"{prefix}{text}" for text in shown)][-count:] if count else [])
    # With frames, they are all that was printed since the same line.
    with_frames, _ = cause_of(status)
    assert with_frames == printed[-len(with_frames) :]
    frames = {f"{prefix}{frame}" for frame in (*FRAMES, *GROUP)}
    if lines and set(lines).isdisjoint(frames):
        assert [text for text in with_frames if text not in frames] == lines
        traceback = printed[printed.index(lines[0]) :]
        assert frames.intersection(with_frames) == frames.intersection(traceback)


def test_of_a_long_text_of_an_exception_the_beginning_is_shown():
    status = fail([FIRST, *FRAMES, "RuntimeError: Errors in loading:", *(f"\tsize {number}" for number in range(100))])
    shown = ["RuntimeError: Errors in loading:", *(f"\tsize {number}" for number in range(37)), "…"]
    lines, sentence = cause_of(status, frames=False)
    assert lines == [FIRST, *shown]
    assert cause_of(status) == ([FIRST, *FRAMES, *shown], sentence)
    assert sentence.endswith("after the start of the job: RuntimeError: Errors in loading. It is so.")


@pytest.mark.parametrize("name", ["ValueError: the last", "the.Last"])
@pytest.mark.parametrize("texts", [(0, 0), (17, 0), (18, 0), (35, 0), (0, 30), (3, 36), (35, 36), (0, 50), (60, 60)])
def test_of_a_chain_the_exception_that_ended_the_program_is_shown(texts, name):
    earlier, last = ([f"\t{text} {number}" for number in range(size)] for text, size in zip("ab", texts, strict=True))
    joint = [f"{CHAINED} occurred:", "", FIRST, *FRAMES, name]
    status = fail([FIRST, *FRAMES, "KeyError: 1", *earlier, "", *joint, *last])
    lines, sentence = cause_of(status, frames=False)
    number = lines.index(name)
    assert lines[number - 1] == FIRST
    assert lines[number + 1 :] == (last if len(last) < 39 else [*last[:37], "…"])
    if len(last) < 36:
        assert lines[number - 3] == joint[0]
        room = 34 - len(last)
        is_cut = len(earlier) >= room
        shown = [*earlier[: room - 1], "…"] if is_cut else [*earlier, ""]
        assert lines[: number - 3] == [FIRST, "KeyError: 1", *shown]
    assert len(lines) <= 40
    assert f": {name}. It is so." in sentence
    with_frames, _ = cause_of(status)
    assert [text for text in with_frames if text not in FRAMES] == lines
    number = with_frames.index(name)
    assert with_frames[number - len(FRAMES) : number] == FRAMES
