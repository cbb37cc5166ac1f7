"""Start the processes of tests with default signal handlers, and kill those of failed tests."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

_CHILDREN_BEFORE = pytest.StashKey[set[psutil.Process]]()


def restore_default_signals() -> None:
    """Let child processes react to SIGINT and SIGHUP even if pytest was started to ignore them.

    `nohup` ignores SIGHUP, and a non-interactive shell ignores SIGINT in its background jobs. Child processes inherit
    ignored signals, but not handlers. So an empty handler keeps pytest ignoring the signal, while its children react.
    """
    # A worker of pytest-xdist is itself such a child process, and ends with pytest in any case.
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN or (is_worker and number == signal.SIGHUP):
            signal.signal(number, lambda number, frame: None)


restore_default_signals()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Record the child processes that ran before a test if the test fails or times out."""
    before = children()
    try:
        yield
    except (pytest.skip.Exception, pytest.xfail.Exception):
        raise
    except BaseException:
        item.stash[_CHILDREN_BEFORE] = before
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Kill the processes of a failed test that its fixtures did not end. Earlier processes are not killed."""
    try:
        yield
    finally:
        if _CHILDREN_BEFORE in item.stash:
            kill_families(children() - item.stash[_CHILDREN_BEFORE])


def children() -> set[psutil.Process]:
    """Return the child processes of pytest. psutil compares processes by their IDs and start times."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        return set(psutil.Process().children())
    # psutil would read the records of all processes, which takes 3 ms for each of the tests.
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # It has ended, and another thread has its children.
            for number in (thread / "children").read_text().split():
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.add(psutil.Process(int(number)))
    return found


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs. A zombie has ended, but its parent did not wait for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_families(parents: Iterable[psutil.Process]) -> None:
    """Kill processes and all their descendants."""
    parents = list(parents)
    family = []
    for parent in parents:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += [*parent.children(recursive=True), parent]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(parents, timeout=60)


@contextmanager
def started(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program, and kill it with its descendants when the block exits. `with subprocess.Popen` would wait.

    Args:
        argv: The program and its arguments.
        options: Options of `subprocess.Popen`. The output is text.
    """
    process = subprocess.Popen(argv, text=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_families([psutil.Process(process.pid)])
        process.wait(60)
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            stream.close()
