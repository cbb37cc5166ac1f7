"""How the same function is run for each piece, or for each file, in this process or elsewhere (pure).

Whoever merges the results does so in the order of the items, so that they are equal to the last bit wherever and
whenever the tasks ran.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class RunTasks(Protocol):
    """Runs a function for each item, and yields the results in the order of the items.

    Function, items and results can be pickled. The function depends on its item alone, and on files that no other task
    writes. The items may be drawn one after the other while tasks run.
    """

    def __call__(self, task: Callable[[Item], Result], items: Iterable[Item], /) -> Iterable[Result]:
        """Return the results, which may be a generator."""
        ...


def run_here(task: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
    """Run the function for each item in this process, one after the other, when its result is asked for."""
    return map(task, items)


def run_in_groups(
    run: RunTasks, task: Callable[[Item], Result], items: Iterable[Item], size: int, /
) -> Iterable[Result]:
    """Return the result of each item in order, where one task works on several items that follow each other.

    Args:
        run: Runs the tasks.
        task: The function.
        items: The items.
        size: Number of items of a task. 1 runs the function itself.
    """
    if size == 1:
        return run(task, items)
    return chain.from_iterable(run(partial(_run_each, task), groups_of(items, size)))


def groups_of(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of up to `size` items that follow each other."""
    remaining = iter(items)
    while group := [*islice(remaining, size)]:
        yield group


def _run_each(task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [task(item) for item in items]
