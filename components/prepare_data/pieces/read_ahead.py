"""Reads the next items of an iterator in a thread, while the current one is worked on."""

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def read_ahead(items: Iterator[_Item], count: int = 1) -> Generator[_Item, None, None]:
    """Yield the items of an iterator, which runs in a thread of its own.

    The thread ends before this generator does, also if it is closed early. Errors of the iterator are raised here.

    Args:
        items: The iterator.
        count: Number of items that wait, at most. Default: 1.
    """
    done, waiting, is_closed = object(), queue.Queue[object](count), threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for item in items:
                waiting.put(item)
                if is_closed.is_set():
                    return
        except BaseException as error:  # noqa: BLE001  (raised by the generator)
            errors.append(error)
        finally:
            if isinstance(items, Generator):
                items.close()
            waiting.put(done)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not done:
            yield item  # type: ignore[misc]
        if errors:
            raise errors[0]
    finally:
        is_closed.set()
        while thread.is_alive():  # It may wait for a place for its item.
            while not waiting.empty():
                waiting.get_nowait()
            thread.join(0.01)
