"""Runs an iterator in a thread, one item ahead of its consumer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Generic, TypeVar

Item = TypeVar("Item")

CLOSE_SECONDS = 5.0
"""Seconds for which `Ahead.close` waits for its thread. A read in it may wait for an answer of the store for minutes.
The end of a replica, which has a grace period, must not wait for it: nothing uses the item any more."""


class Stopped(Exception):
    """The consumer has ended the iteration."""


class _End(Generic[Item]):
    """The end of an iterator, and the error that ended it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Ahead(Iterator[Item]):
    """The items of an iterator, which a thread runs up to the item after the one that the consumer has.

    Two items exist at a time: the iterator begins with the next but one when the consumer asks for the next one. An
    error of the iterator is raised in the consumer.

    Args:
        start: Returns the generator. It is called, runs and is closed in the thread.
        stop: Set when the iterator is closed. The generator should end then, with `Stopped` or otherwise.
    """

    def __init__(self, start: Callable[[], Generator[Item, None, None]], stop: threading.Event) -> None:
        self._items: queue.SimpleQueue[Item | _End[Item]] = queue.SimpleQueue()
        self._permits, self._start, self._stop = threading.Semaphore(1), start, stop
        self._is_closed = False
        # A daemon, so that a program that fails with an open iterator can end.
        self._thread = threading.Thread(target=self._run, name="row-stream", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with closing(self._start()) as source:
                while self._permits.acquire() and not self._stop.is_set():
                    try:
                        self._items.put(next(source))
                    except StopIteration:
                        break
        except BaseException as raised:  # noqa: BLE001  # It is raised in the consumer.
            error = raised
        self._items.put(_End(error))

    def __next__(self) -> Item:
        item = self._items.get()
        if not isinstance(item, _End):
            self._permits.release()
            return item
        self._items.put(_End(None))  # For another call.
        if item.error and not isinstance(item.error, Stopped):
            raise item.error
        raise StopIteration

    def end(self) -> None:
        """End the iteration, from any thread, without waiting: the consumer gets no item after the waiting ones."""
        self._stop.set()
        self._permits.release()

    def close(self) -> None:
        """End the iteration, and wait until the thread has ended, for at most `CLOSE_SECONDS`."""
        self.end()
        if not self._is_closed:  # `yield from` closes its iterator before the block around it does.
            self._is_closed = True
            self._thread.join(CLOSE_SECONDS)
