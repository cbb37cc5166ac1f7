"""Processes of tests: they start with default signal dispositions, and a failed test leaves none of them running."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

_CHILDREN_BEFORE = pytest.StashKey[set[psutil.Process]]()


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
    """Notes which child processes there were before a test that fails, also by its timeout."""
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
    """Kills what a failed test started and its fixtures did not end, and nothing that was there before the test."""
    try:
        yield
    finally:
        if _CHILDREN_BEFORE in item.stash:
            kill_families(children() - item.stash[_CHILDREN_BEFORE])


def children() -> set[psutil.Process]:
    """The child processes of pytest. psutil compares processes by their ids and their start times."""
    return set(psutil.Process().children())


def kill_families(parents: Iterable[psutil.Process]) -> None:
    """Kills processes and all their descendants."""
    parents = list(parents)
    family = []
    for parent in parents:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += [*parent.children(recursive=True), parent]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(parents, timeout=10)


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
