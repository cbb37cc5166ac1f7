"""Kill replicas of local jobs, which are descendants of the test process."""

import contextlib
import signal
import time
from collections.abc import Iterable

import psutil
from step_lines import brief

from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE


def kill_replica(name: str, variable: str = "KFP_DISTRIBUTED_REPLICA", number: int = signal.SIGKILL) -> None:
    """Send a signal to all processes of a replica. If it kills them, they have ended afterwards.

    Args:
        name: Name of the replica, or another value of `variable`.
        variable: The environment variable that identifies the processes.
        number: Number of the signal.
    """
    signalled = []
    for process in _processes_of_replica(name, variable):
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
            signalled.append(process)
    assert signalled, f"no process with {variable}={name} is running"
    if number == signal.SIGKILL:
        wait_for_end(signalled)


def _processes_of_replica(name: str, variable: str) -> list[psutil.Process]:
    """Return the processes of a replica that this process has started, and the ranks that torchrun has started.

    If torchrun is a fork, its ranks are not descendants of this process, but they have the same job, which no other
    test has. They train on until the server learns of torchrun's end, if they are not killed as it is.
    """
    own = {process.pid for process in psutil.Process().children(recursive=True)}
    found, jobs = [], set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if environment.get(variable) == name and "entry" in " ".join(process.cmdline()):
                found.append((process, environment.get(JOB_VARIABLE)))
                jobs |= {found[-1][1]} if process.pid in own else set()
    return [process for process, job in found if process.pid in own or (job and job in jobs)]


def wait_for_end(processes: Iterable[psutil.Process], seconds: float = 60) -> None:
    """Wait until processes have ended, without taking their exit codes from their parents.

    A fork has stopped when its client has ended. See tests/forked_replicas.
    """
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline, f"{process} has not ended"
                time.sleep(0.005)


class KillOnce:
    """A callback that records the lines of a job, and kills a replica at a given line."""

    def __init__(self, name: str, line: str) -> None:
        self._name, self._line = name, line
        self.lines: list[str] = []

    def __call__(self, entry: LogEntry) -> None:
        line = brief(entry)
        self.lines.append(line)
        if self._name and self._line in line:
            kill_replica(self._name)
            self._name = ""
