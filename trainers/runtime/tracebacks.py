"""Prints the error that ends a replica."""

import sys
import traceback
from types import TracebackType

_OWN_PACKAGE = "kfp_distributed.trainers.runtime"


def print_error(error: BaseException) -> None:
    """Print an error with its traceback, which begins with the program.

    The frames of this library that have called the program are the same in every training. A line has their number.
    An error that they raise themselves keeps them.

    Args:
        error: The error. Its traceback loses these frames.
    """
    left_out, chain = 0, [error]
    for one in chain:
        chain += [other for other in (one.__cause__, one.__context__) if other and other not in chain]
        one.__traceback__, count = _without_callers(one.__traceback__)
        left_out = max(left_out, count)
    if left_out:
        print(
            f"{left_out} frames of kfp_distributed before the program are left out of the traceback:", file=sys.stderr
        )
    traceback.print_exception(error)


def _without_callers(frames: TracebackType | None) -> tuple[TracebackType | None, int]:
    """Return a traceback without its first frames if they have called a program, and their number."""
    rest, count = frames, 0
    while rest and _calls(rest):
        rest, count = rest.tb_next, count + 1
    return (rest, count) if rest else (frames, 0)


def _calls(entry: TracebackType) -> bool:
    names = entry.tb_frame.f_globals
    # `python -m` calls the module by runpy.
    return names.get("__package__") == _OWN_PACKAGE or names.get("__name__") == "runpy"
