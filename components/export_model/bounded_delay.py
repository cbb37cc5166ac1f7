"""Limits the time for which a server beside the object store may delay the end of the step."""

from collections.abc import Callable
from threading import Thread

DELAY_SECONDS = 10.0
"""Longest time for which each registry may delay the end of the step."""


def run_bounded(action: Callable[[], str]) -> str:
    """Run an action that returns its error; return that error, or one that says that the time is over."""
    errors: list[str] = []
    # In a thread: urllib3's timeouts do not limit the time of a name lookup or of an answer that comes byte by byte.
    thread = Thread(target=lambda: errors.append(action()), daemon=True)
    thread.start()
    thread.join(DELAY_SECONDS)
    return errors[0] if errors else f"no answer within {DELAY_SECONDS:g} s"
