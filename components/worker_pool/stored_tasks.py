"""Tasks whose functions and results are objects in a store, so that a step that died goes on where it was.

The scratch is the store. It has an object for each function, which may be large and is sent to no task, and one for
each result, which a task writes when everything else is done. The key of a result is a hash of the function and the
item. A step that begins again with the same scratch finds the results of the complete tasks.
"""

import hashlib
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from typing import Any, Protocol

from kfp_distributed.components.worker_pool.piece_tasks import Item, Result
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store

_FUNCTIONS, _RESULTS = "functions/", "results/"

_PRINT_SECONDS = 60.0
"""Seconds between two lines about the progress."""


class TaskFuture(Protocol):
    """A task that was submitted."""

    def result(self) -> Any:  # noqa: ANN401
        """Wait for the task. Its error is raised as it is."""


class Submit(Protocol):
    """Starts a function of a module in another process."""

    def __call__(self, function: Callable[..., None], /, *arguments: str | bytes) -> TaskFuture:
        """Return the task, which waits for a process or runs."""
        ...


class Engine(Protocol):
    """Where tasks run.

    Attributes:
        scratch: Address of a folder or a prefix in an object store, which all processes can read and write.
    """

    @property
    def scratch(self) -> str:
        """Address of the scratches of all steps."""
        ...

    @property
    def has_other_machines(self) -> bool:
        """Whether tasks may run on machines that do not see the disk of this one."""
        ...

    def start(self, scratch: str) -> AbstractContextManager["StoredTasks"]:
        """Start the processes. They have ended when the context exits.

        Args:
            scratch: Address of the scratch of this step.
        """
        ...


class StoredTasks:
    """Runs tasks, see `RunTasks`.

    Args:
        scratch: Address of the scratch.
        submit: Starts a task.
        limit: Most tasks that wait or run at once.

    Attributes:
        store: The scratch.
        count: Number of the tasks.
        started: Number of those that were started, because the scratch did not have their results.
    """

    def __init__(self, scratch: str, submit: Submit, limit: int) -> None:
        self.scratch, self.store, self.count, self.started = scratch, open_store(scratch), 0, 0
        self._submit, self._limit, self._completed = submit, limit, 0
        self._abandoned: list[TaskFuture] = []
        self._known = {entry.key for prefix in (_FUNCTIONS, _RESULTS) for entry in self.store.list(prefix)}
        self._printed = time.monotonic()
        if found := sum(key.startswith(_RESULTS) for key in self._known):
            print(f"an earlier start has completed {found:,} tasks, which are not run again", flush=True)

    def run(self, task: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
        """Yield the result of each item in order. The first error in this order is raised.

        Args:
            task: A function of a module, or a `partial` of one.
            items: The items, which are drawn while tasks run.
        """
        function = pickle.dumps(task)
        name = hashlib.sha256(function).hexdigest()
        if _FUNCTIONS + name not in self._known:
            self.store.write(_FUNCTIONS + name, function)
            self._known.add(_FUNCTIONS + name)
        waiting: deque[tuple[str, TaskFuture | None]] = deque()
        try:
            for item in items:
                waiting.append(self._begun(name, pickle.dumps(item)))
                if len(waiting) >= self._limit:
                    yield self._result(*waiting.popleft())
            while waiting:
                yield self._result(*waiting.popleft())
        finally:
            self._abandoned += [future for _, future in waiting if future]

    def await_abandoned(self) -> None:
        """Wait for the tasks that go on although `run` has raised an error, and write to the scratch."""
        for future in self._abandoned:
            with suppress(Exception):
                future.result()
        self._abandoned.clear()

    def _begun(self, function: str, item: bytes) -> tuple[str, TaskFuture | None]:
        key = _RESULTS + hashlib.sha256(function.encode() + item).hexdigest()
        self.count += 1
        if key in self._known:
            return key, None
        self.started += 1
        return key, self._submit(run_stored_task, self.scratch, function, key, item)

    def _result(self, key: str, future: TaskFuture | None) -> Any:  # noqa: ANN401
        if future:
            future.result()
            self._known.add(key)
            self._completed += 1
        if time.monotonic() - self._printed >= _PRINT_SECONDS:
            self._printed = time.monotonic()
            print(f"completed {self._completed:,} tasks", flush=True)
        return pickle.loads(self.store.read(key))


def run_stored_task(scratch: str, function: str, key: str, item: bytes) -> None:
    """Run a task in any process, and store its result.

    Args:
        scratch: Address of the scratch.
        function: Hash of the function.
        key: Key of the result.
        item: The pickled item.
    """
    result = _function(scratch, function)(pickle.loads(item))
    stored(scratch).write(key, pickle.dumps(result))


@lru_cache(maxsize=8)
def stored(scratch: str) -> Store:
    """Return the store of an address. A process opens it once."""
    return open_store(scratch)


@lru_cache(maxsize=2)
def _function(scratch: str, name: str) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = pickle.loads(stored(scratch).read(_FUNCTIONS + name))
    return function
