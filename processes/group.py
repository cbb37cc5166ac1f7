"""Start child processes, and stop them whichever way we end."""

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

# A child registers itself: its standard input is the guard's pipe, and it becomes the program only after it has written
# its id there. If the guard is gone that write fails, and the child ends. So no moment is unguarded, in any thread
# (PR_SET_PDEATHSIG fires when the starting thread ends), and on any Unix.
_REGISTER = 'echo $$ >&0 && exec "$@" </dev/null'


class ProcessGroup:
    """A context in which child processes are started that cannot outlive us.

    When the context ends, by an exception or Ctrl-C too, all children and their descendants are stopped and collected.
    When our process ends without leaving the context, even by SIGKILL, a guard process kills them. Each child leads
    a session of its own, so the terminal's Ctrl-C reaches us alone and we decide about them. A descendant is found by
    its session or its line of parents; only one that has left both (a daemon) escapes.

    All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._children: dict[str, tuple[subprocess.Popen[bytes], str]] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ProcessGroup:
        """Start the guard."""
        # In a session of its own and with nothing of ours open: neither Ctrl-C nor a reader of our output notices it.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        """Stop all children, then the guard, which kills what is left where the stopping was interrupted."""
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
        """Start a child.

        Args:
            name: What `stop` calls it. A name can be used again once its child has ended; what that one left running
                is killed first.
            argv: The program and its arguments. The program is looked up in the PATH of `env`.
            env: The child's whole environment; ours by default.
            cwd: Its working directory; ours by default.
            stdout: Where its output and errors go: a file, subprocess.PIPE, or None for our own output.

        Returns:
            The running child. Its standard input is empty.

        Raises:
            FileNotFoundError: There is no such program or folder.
            ValueError: A child of that name is running.
            RuntimeError: The context is not entered, or the guard is gone.
        """
        if not self._guard or self._guard.poll() is not None:
            raise RuntimeError(f"cannot start {name}: only inside `with ProcessGroup()`, while its guard process runs")
        environment = dict(os.environ if env is None else env)
        path = str(Path(cwd or ".", argv[0]).absolute()) if os.sep in argv[0] else argv[0]
        program = shutil.which(path, path=environment.get("PATH"))
        if not program:
            raise FileNotFoundError(f"cannot start {name}: there is no program {argv[0]!r}")
        if name in self._children and self._children[name][0].poll() is None:
            raise ValueError(f"cannot start {name}: process {self._children[name][0].pid} of that name is running")
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

    def stop(self, names: Iterable[str] | None = None, grace_seconds: float = 5) -> None:
        """Stop children with all their descendants, and collect them. Calling it again does nothing.

        Args:
            names: Which ones; all by default. Names that were never started are passed over.
            grace_seconds: The time between SIGTERM and SIGKILL.
        """
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
