"""Replicas of this test's own jobs, which run as processes below it."""

import psutil


def kill_replica(name: str) -> None:
    """Kills all processes of a replica at once."""
    for process in psutil.Process().children(recursive=True):
        try:
            if process.environ().get("KFP_DISTRIBUTED_REPLICA") == name and "entry" in " ".join(process.cmdline()):
                process.kill()
        except psutil.Error:
            continue


class KillOnce:
    """Shows what a job prints, and kills a replica when a line comes."""

    def __init__(self, name: str, line: str) -> None:
        self._name, self._line = name, line
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        if self._name and self._line in line:
            kill_replica(self._name)
            self._name = ""
