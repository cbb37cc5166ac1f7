"""Processes of tests: they start with default signal dispositions, and a failed test leaves none of them running."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

_CALL_BEGAN = pytest.StashKey[float]()


def restore_default_signals() -> None:
    """Lets programs that tests start react to SIGINT and SIGHUP where pytest itself was started to ignore them.

    `nohup` ignores SIGHUP, and a non-interactive shell ignores SIGINT in its background jobs. A child inherits an
    ignored signal. A handler is reset to the default in a child, so a handler that does nothing makes pytest go on
    ignoring the signal, while the children react to it.
    """
    # A worker of pytest-xdist is such a child, and ends with pytest anyway.
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN or (is_worker and number == signal.SIGHUP):
            signal.signal(number, lambda number, frame: None)


restore_default_signals()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Notes when a test began that fails, also by its timeout."""
    began = time.time()
    try:
        yield
    except BaseException:
        item.stash[_CALL_BEGAN] = began
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Kills what a failed test started and its fixtures did not end."""
    try:
        yield
    finally:
        if item.stash.get(_CALL_BEGAN, None):
            kill_children_since(item.stash[_CALL_BEGAN])


def kill_children_since(began: float) -> None:
    """Kills the child processes that started at a time or later, and all their descendants."""
    # Linux counts a process's start in hundredths of a second, from a boot time of whole seconds.
    kill_families([child for child in psutil.Process().children() if child.create_time() > began - 1])


def kill_families(children: list[psutil.Process]) -> None:
    """Kills child processes and all their descendants."""
    for process in [process for child in children for process in (*child.children(recursive=True), child)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(children, timeout=10)


@contextmanager
def started(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that is killed with its descendants when the block ends, where `with subprocess.Popen` would wait.

    Args:
        argv: The program and its arguments.
        options: Of `subprocess.Popen`; its output is text.
    """
    process = subprocess.Popen(argv, text=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_families([psutil.Process(process.pid)])
        process.wait(10)
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            stream.close()
