"""Start child processes that end with this process, even if it is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from kfp_distributed.processes import guard

# Each child registers itself: it writes its process ID to the guard's pipe, which is its standard input, before it
# executes the program. If the guard has ended, the write fails and the child exits. So a child is never unguarded. This
# works in any thread (PR_SET_PDEATHSIG is sent when the starting thread ends) and on any Unix.
_REGISTER = 'echo $$ >&0 && exec "$@" </dev/null'


class ProcessGroup:
    """A context manager for child processes that end with this process.

    When the context exits, also by an exception or Ctrl-C, all children and their descendants are stopped and reaped.
    If this process ends without leaving the context, even by SIGKILL, a guard process kills them.

    Each child runs in its own session, so Ctrl-C in the terminal reaches only this process. Descendants are found by
    their session or their chain of parents. Only a process that has left both (a daemon) is not found.

    All methods are thread-safe.
    """

    def __init__(self, grace_seconds: float = 5, folder: str | Path = "") -> None:
        """Create a group. No process is started.

        Args:
            grace_seconds: Seconds between SIGTERM and SIGKILL when children are stopped. Default: 5.
            folder: Folder that the guard deletes if this process ends without leaving the context. Default: "", none.
        """
        self._grace_seconds = grace_seconds
        self._folder = folder
        self._children: dict[str, tuple[subprocess.Popen[bytes], str]] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ProcessGroup:
        """Start the guard."""
        # The guard has its own session, so Ctrl-C does not reach it. It shares no output with this process, so readers
        # of that output see its end.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *_absolute(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        """Stop all children, then the guard. If the stop was interrupted, the guard kills the remaining children."""
        try:
            self.stop()
        finally:
            if self._guard:
                self._guard.communicate(b"end\n")

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdout: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a child process.

        Args:
            name: Name of the child, for `stop`. A name can be reused after its child has ended. Descendants of the
                previous child are killed first.
            argv: The program and its arguments. The program is searched in the PATH of `env`.
            env: The complete environment of the child. Default: that of this process.
            cwd: Working directory. Default: that of this process.
            stdout: Target of the standard output and the standard error: a file, subprocess.PIPE, or None for the
                output of this process.

        Returns:
            The running child. Its standard input is empty.

        Raises:
            FileNotFoundError: The program or the working directory does not exist.
            ValueError: A child with this name is running.
            RuntimeError: The context has not been entered, or the guard has ended.
        """
        if not self._guard or self._guard.poll() is not None:
            raise RuntimeError(
                f"cannot start {name}: call start() inside `with ProcessGroup()`, and keep its guard process running"
            )
        environment = dict(os.environ if env is None else env)
        path = str(Path(cwd or ".", argv[0]).absolute()) if os.sep in argv[0] else argv[0]
        program = shutil.which(path, path=environment.get("PATH"))
        if not program:
            raise FileNotFoundError(f"cannot start {name}: program {argv[0]!r} not found, install it or correct PATH")
        if name in self._children and self._children[name][0].poll() is None:
            raise ValueError(
                f"cannot start {name}: process {self._children[name][0].pid} with this name is running, stop it first"
            )
        self.stop([name], 0)
        child = subprocess.Popen(
            ["/bin/sh", "-c", _REGISTER, "sh", program, *argv[1:]],
            env=environment,
            cwd=cwd,
            stdin=self._guard.stdin,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._children[name] = child, guard.start_time(child.pid)
        return child

    def stop(self, names: Iterable[str] | None = None, grace_seconds: float | None = None) -> None:
        """Stop children and all their descendants, and reap them. Repeated calls have no effect.

        Args:
            names: Names of the children. Default: all. Unknown names are ignored.
            grace_seconds: Seconds between SIGTERM and SIGKILL. Default: those of the group.
        """
        grace_seconds = self._grace_seconds if grace_seconds is None else grace_seconds
        children = dict(self._children)
        chosen = {name: children[name] for name in (children if names is None else names) if name in children}
        if not chosen:
            return
        known = guard.end_families(
            {child.pid: start for child, start in chosen.values()}, signal.SIGTERM, grace_seconds
        )
        guard.end_families(known, signal.SIGKILL, 10)
        for name, (child, _) in chosen.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1)
            self._children.pop(name, None)


def _absolute(folder: str | Path) -> list[str]:
    return [str(Path(folder).absolute())] if folder else []
