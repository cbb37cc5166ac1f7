"""Writes the metrics that this process gathers in memory to their files."""

import atexit
import os
from collections.abc import Callable
from functools import cache
from multiprocessing.util import Finalize

writers: list[Callable[[], bool]] = []
"""The functions of `add_writer`."""

printed: set[str] = set()
"""The errors that the log has."""


def add_writer(write: Callable[[], bool]) -> None:
    """Register a function that writes what it has gathered for a file of metrics, and returns whether there was any."""
    writers.append(write)
    _write_at_exit(os.getpid())


@cache
def _write_at_exit(process: int) -> None:
    # Of a command, whose folders another process stores. Exit functions that are registered later run earlier, so those
    # of other libraries, which may not return, come after it.
    atexit.register(write_gathered)
    # A process of multiprocessing runs its own exit functions alone.
    Finalize(None, write_gathered, exitpriority=0)


def write_gathered() -> bool:
    """Write all gathered metrics to their files; return whether there were any.

    A writer that fails costs neither the metrics of the others nor a checkpoint. The log has its error once.
    """
    has_written = False
    for write in tuple(writers):
        try:
            has_written |= write()
        except Exception as error:  # noqa: BLE001 - a checkpoint is worth more than the last metrics
            text = f"metrics not written: {error if isinstance(error, OSError) else repr(error)}"
            if text not in printed:
                printed.add(text)
                print(text, flush=True)
    return has_written


# A fork that trains goes on from the steps in the file.
os.register_at_fork(before=write_gathered)
