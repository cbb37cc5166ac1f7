"""What SIGTERM, by which KFP cancels a step, and Ctrl-C do to a block of code. For the main thread, which gets them."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_signals(clean_up: Callable[[], object]) -> Iterator[None]:
    """Cleans up whichever way the block ends: SIGTERM ends it as Ctrl-C does, and neither interrupts the cleaning."""

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, end)
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
    """Lets SIGTERM and Ctrl-C take effect only when the block has ended."""
    came: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda number, frame: came.append(number)) for number in numbers]
    try:
        yield
    finally:
        for each, handler in zip(numbers, before, strict=True):
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)
