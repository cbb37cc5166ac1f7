"""The traceback of a replica begins with the program that the user has written."""

import subprocess
import sys

import pytest

from kfp_distributed.storage.uri import parse_uri
from kfp_distributed.trainers.runtime.lifecycle.fatal_errors import print_error

SOURCE = """
def fit(cause):
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise ValueError("bad shape") from (error if cause else None)
"""


def called_by_the_library(function, *arguments, caller="_run"):
    """Call a function from two frames of trainers.runtime."""
    names = {"__package__": "kfp_distributed.trainers.runtime", "function": function, "arguments": arguments}
    exec(f"def {caller}(): function(*arguments)\ndef main(): {caller}()", names)
    names["main"]()


@pytest.mark.parametrize("cause", [False, True])
def test_the_frames_that_call_the_program_are_left_out(capsys, cause):
    names = {"__name__": "fit"}
    exec(compile(SOURCE, "fit.py", "exec"), names)
    try:
        called_by_the_library(names["fit"], cause)
    except ValueError as error:
        error.__traceback__ = error.__traceback__.tb_next.tb_next  # Without those of the test.
        print_error(error)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "2 frames of kfp_distributed before the program are left out of the traceback:"
    assert [line for line in lines if line.startswith("  File")] == [
        *['  File "fit.py", line 4, in fit'] * cause,
        '  File "fit.py", line 6, in fit',
    ]
    assert lines[-1] == "ValueError: bad shape"


def test_an_error_before_or_after_the_program_keeps_its_frames(capsys):
    try:
        called_by_the_library(parse_uri, "gs://b", caller="_save")
    except ValueError as error:
        error.__traceback__ = error.__traceback__.tb_next.tb_next
        print_error(error)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    frames = [line.rpartition(" ")[2] for line in lines if line.startswith("  File")]
    assert frames[:3] == ["main", "_save", "parse_uri"]


PROGRAM = """
import sys
from kfp_distributed.trainers.runtime.lifecycle import ending

def main():
    raise ValueError("bad" + " shape")

if len(sys.argv) > 1:
    sys.excepthook = lambda kind, error, frames: print("shown by the program:", error)
ending.run_to_end(main)
"""


@pytest.mark.takes(2)
@pytest.mark.parametrize(
    ("words", "shown"), [((), "ValueError: bad shape"), (["own"], "shown by the program: bad shape")]
)
def test_the_error_that_ends_a_replica_is_printed_once(words, shown):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("bad shape") == 1
    assert (done.stdout + done.stderr).splitlines()[-1] == shown
