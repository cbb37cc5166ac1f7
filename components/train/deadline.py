"""Calls that must not delay the end of a failed step for long."""

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def call_within(seconds: float, function: Callable[[], Result]) -> Result | None:
    """Calls a function in a thread and waits for it.

    Args:
        seconds: How long to wait. A call that takes longer goes on, and ends with the process at the latest.
        function: The call. It must not raise.

    Returns:
        Its result; None where it takes too long.
    """
    results: list[Result] = []
    thread = Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None
