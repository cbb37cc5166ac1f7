"""What SIGTERM, by which KFP cancels a step, Ctrl-C and a terminal that closes do to a block of code.

For the main thread, which gets them.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def ended_by_signals(clean_up: Callable[[], object]) -> Iterator[None]:
    """Cleans up whichever way the block ends, also by these signals, none of which interrupts the cleaning.

    SIGHUP is ignored where it was before, as `nohup` has it.
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
    """Lets these signals take effect only when the block has ended."""
    came: list[int] = []
    before = [signal.signal(number, lambda number, frame: came.append(number)) for number in _NUMBERS]
    try:
        yield
    finally:
        for each, handler in zip(_NUMBERS, before, strict=True):
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)
