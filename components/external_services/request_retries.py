"""Repeats requests to the servers of sources after errors that may pass."""

import time
from collections.abc import Callable
from typing import TypeVar

RETRY_SECONDS = 60.0
"""Approximate time, in seconds, for which a request is repeated after a transient error. Retries of a driver come
first."""

TRANSIENT_STATUS = (429, 500, 502, 503, 504)
"""HTTP statuses of a server that cannot serve now."""

_T = TypeVar("_T")


class TransientError(OSError):
    """An error that may pass.

    Args:
        text: The error.
        is_answer: Whether the server has sent it.
    """

    def __init__(self, text: str, *, is_answer: bool) -> None:
        super().__init__(text)
        self.is_answer = is_answer


class Retries:
    """Repeats the requests to one server.

    Attributes:
        has_answered: Whether the server has answered. Before, an error of the connection is reported at once, because
            the address may be wrong.
    """

    def __init__(self) -> None:
        self.has_answered = False

    def run(self, request: Callable[[], _T]) -> _T:
        """Return the result of a request, which is repeated for about a minute after a TransientError."""
        deadline, pause = time.monotonic() + RETRY_SECONDS, 0.5
        while True:
            try:
                result = request()
            except TransientError as error:
                self.has_answered = self.has_answered or error.is_answer
                if not self.has_answered or time.monotonic() + pause > deadline:
                    raise
                print(f"the server of the source is not available ({error}); next attempt in {pause:.1f} s", flush=True)
                time.sleep(pause)
                pause = min(2 * pause, 8)
            else:
                self.has_answered = True
                return result
