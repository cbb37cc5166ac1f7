"""Runs requests side by side, and starts no more of them once one has failed."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar, cast

PARALLEL_TRANSFERS = 8
"""Concurrent transfers of large files. More were not faster against one server. Each needs memory for one part."""

PARALLEL_REQUESTS = 64
"""Concurrent uploads of small files and copies inside a server. They mostly wait for the server."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def run_in_parallel(
    function: Callable[[_Item], _Result], items: Iterable[_Item], threads: int = PARALLEL_TRANSFERS
) -> list[_Result]:
    """Call a function with each item in threads, and return the results in the order of the items.

    No call begins after an error or a signal, and the calls that have begun end first. Of several errors, that of the
    first item is raised.

    Args:
        function: Function to call.
        items: Its arguments.
        threads: Number of calls at the same time. Default: 8.
    """
    is_over = Event()

    def run(item: _Item) -> _Result | None:
        if is_over.is_set():
            return None  # Nobody gets it: an error is raised.
        try:
            return function(item)
        except BaseException:
            is_over.set()
            raise

    with ThreadPoolExecutor(threads) as pool:
        try:
            futures = [pool.submit(run, item) for item in items]
            return [cast(_Result, future.result()) for future in futures]
        finally:
            is_over.set()
