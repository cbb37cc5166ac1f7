"""Writes the metrics that this process gathers in memory to their files."""

import atexit
from collections.abc import Callable

writers: list[Callable[[], bool]] = []
"""The functions of `add_writer`."""

printed: set[str] = set()
"""The errors that the log has."""


def add_writer(write: Callable[[], bool]) -> None:
    """Register a function that writes what it has gathered for a file of metrics, and returns whether there was any."""
    writers.append(write)
    # Of a command, whose folders another process stores. Exit functions that are registered later run earlier, so those
    # of other libraries, which may not return, come after it.
    atexit.register(write_gathered)


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
