"""Limits the time for which a server beside the object store may delay the end of the step."""

from collections.abc import Callable
from threading import Thread
from traceback import extract_tb

DELAY_SECONDS = 10.0
"""Longest time for which each registry may delay the end of the step."""


def run_bounded(action: Callable[[], str]) -> str:
    """Run an action that returns its error; return that error, or one that says that the time is over."""
    errors: list[str] = []

    def run() -> None:
        try:
            errors.append(action())
        except Exception as error:  # noqa: BLE001 - the version is exported, whatever the action does
            # Without the message, which may have a header with a password.
            place = extract_tb(error.__traceback__)[-1]
            errors.append(f"unexpected {type(error).__name__} in {place.name} ({place.filename}, line {place.lineno})")

    # In a thread: urllib3's timeouts do not limit the time of a name lookup or of an answer that comes byte by byte.
    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(DELAY_SECONDS)
    return errors[0] if errors else f"no answer within {DELAY_SECONDS:g} s"
