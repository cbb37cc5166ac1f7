"""Replicas of this test's own jobs, which run as processes below it."""

import psutil
from step_lines import brief

from kfp_distributed.components.train.log_format import LogEntry


def kill_replica(name: str, variable: str = "KFP_DISTRIBUTED_REPLICA") -> None:
    """Kills all processes of a replica at once, or those of another name in another variable of the environment."""
    killed = 0
    for process in psutil.Process().children(recursive=True):
        try:
            if process.environ().get(variable) == name and "entry" in " ".join(process.cmdline()):
                process.kill()
                killed += 1
        except psutil.Error:
            continue
    assert killed, f"{variable}={name} does not run"


class KillOnce:
    """Shows what a job prints, and kills a replica when a line comes."""

    def __init__(self, name: str, line: str) -> None:
        self._name, self._line = name, line
        self.lines: list[str] = []

    def __call__(self, entry: LogEntry) -> None:
        line = brief(entry)
        self.lines.append(line)
        if self._name and self._line in line:
            kill_replica(self._name)
            self._name = ""
