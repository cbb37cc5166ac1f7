"""Handles SIGTERM, by which KFP cancels a step, and SIGINT and SIGHUP, which a terminal sends.

Use these contexts in the main thread, because only it may handle signals.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def ended_by_signals(clean_up: Callable[[], object]) -> Iterator[None]:
    """Clean up when the block ends, also by one of these signals. No signal interrupts the cleanup.

    SIGHUP stays ignored if it was ignored before, as under `nohup`.

    Args:
        clean_up: The cleanup.

    Raises:
        SystemExit: SIGTERM or SIGHUP came. The exit code is 128 + the number of the signal.
    """

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in _NUMBERS}
    signal.signal(signal.SIGTERM, end)
    if before[signal.SIGHUP] != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, end)
    try:
        yield
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        try:
            clean_up()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Defer these signals until the block exits."""
    received: list[int] = []
    before = [signal.signal(number, lambda number, frame: received.append(number)) for number in _NUMBERS]
    try:
        yield
    finally:
        for handled, handler in zip(_NUMBERS, before, strict=True):
            signal.signal(handled, handler)
        for number in received:
            signal.raise_signal(number)
