"""The line of the exception that ended a program, in the last lines of a replica."""

from functools import reduce

import pytest
from train.programs.jobs import make_job, workers

from kfp_distributed.components.train.run.conclusions.failures import exception_line
from kfp_distributed.components.train.run.conclusions.status import advance, begin, failure_cause
from kfp_distributed.components.train.run.facts import JobEnded, LogLine, ReplicaChanged

TRACEBACK = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    fit()")
CHAINED = (*TRACEBACK, "KeyError: 'x'", "", "The above exception was the direct cause of the following exception:", "")
ELASTIC = (
    *TRACEBACK,
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=====",
    "train.py FAILED",
)


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ((*TRACEBACK, "ValueError: bad shape"), "ValueError: bad shape"),
        ((*TRACEBACK, "ValueError: bad shape", "expected (3, 4)", "got (4, 3)"), "ValueError: bad shape"),
        # Only the end of the traceback is among the last lines.
        (("    fit()", "    ~~~^^", "keras.src.errors.Refused: no"), "keras.src.errors.Refused: no"),
        (("epoch 1", "urllib3.exceptions.MaxRetryError: away"), "urllib3.exceptions.MaxRetryError: away"),
        ((*TRACEBACK, "KeyboardInterrupt"), "KeyboardInterrupt"),
        ((*TRACEBACK, "MemoryError"), "MemoryError"),
        ((*CHAINED, *TRACEBACK, "RuntimeError: no row"), "RuntimeError: no row"),
        (tuple(f"[rank1]: {line}" for line in (*TRACEBACK, "ValueError: bad shape")), "ValueError: bad shape"),
        (tuple(f"[1,0]<stderr>:{line}" for line in (*TRACEBACK, "ValueError: bad shape")), "ValueError: bad shape"),
        ((*TRACEBACK, "ValueError: bad shape", *ELASTIC), "ValueError: bad shape"),
        (ELASTIC, ""),
        ((*TRACEBACK, "ValueError: " + 2000 * "x"), "ValueError: " + 988 * "x" + "..."),
        (
            (
                "  + Exception Group Traceback (most recent call last):",
                '  |   File "train.py", line 3, in <module>',
                "  |     fit()",
                "  | ExceptionGroup: three parts failed (2 sub-exceptions)",
                "  +-+---------------- 1 ----------------",
                "    | ValueError: a",
                "    +---------------- 2 ----------------",
                "    | KeyError: 'x'",
                "    +------------------------------------",
            ),
            "ExceptionGroup: three parts failed (2 sub-exceptions)",
        ),
        (("Epoch 1", "loss: 0.3", "  indented", "done"), ""),
        (("2026-01-01 E tensorflow/core: InternalError: no", "an Error: no"), ""),
        ((), ""),
    ],
)
def test_exception_line(lines, line):
    assert exception_line(lines) == line


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        ({"exit_code": 1}, "worker-0 failed with exit code 1, 7 s after the start of the job: ValueError: bad shape."),
        # It was handled, because a signal ended the program.
        (
            {"signal": 9},
            "worker-0 failed with signal 9 (SIGKILL), often a lack of memory, 7 s after the start of the job.",
        ),
        (
            {"exit_code": 137},
            "worker-0 failed with exit code 137 (SIGKILL), often a lack of memory, 7 s after the start of the job.",
        ),
    ],
)
def test_the_last_sentence_of_a_failed_job_has_the_exception(end, sentence):
    lines = [LogLine(6, "worker-0", line) for line in (*TRACEBACK, "ValueError: bad shape.")]
    facts = [*lines, ReplicaChanged(7, "worker-0", "failed", **end), JobEnded(8, False, "It is so.")]
    status = reduce(advance, facts, begin(make_job((), workers(2)), 0))
    assert failure_cause(status).splitlines()[-1] == f"{sentence} It is so."
