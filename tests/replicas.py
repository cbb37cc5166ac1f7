"""Kill replicas of local jobs, which are descendants of the test process."""

import signal

import psutil
from step_lines import brief

from kfp_distributed.components.train.run.log_entry import LogEntry


def kill_replica(name: str, variable: str = "KFP_DISTRIBUTED_REPLICA", number: int = signal.SIGKILL) -> None:
    """Kill all processes of a replica.

    Args:
        name: Name of the replica, or another value of `variable`.
        variable: The environment variable that identifies the processes.
        number: Number of the signal.
    """
    killed = 0
    for process in psutil.Process().children(recursive=True):
        try:
            if process.environ().get(variable) == name and "entry" in " ".join(process.cmdline()):
                process.send_signal(number)
                killed += 1
        except psutil.Error:
            continue
    assert killed, f"no process with {variable}={name} is running"


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
