"""Calls with a timeout, which must not delay the end of a failed step."""

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def call_within(seconds: float, function: Callable[[], Result]) -> Result | None:
    """Call a function in a thread and wait for its result.

    Args:
        seconds: Timeout. A call that takes longer continues until it or the process ends.
        function: The function, which must not raise.

    Returns:
        The result of the function, or None after the timeout.
    """
    results: list[Result] = []
    thread = Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None
