"""A Dask cluster of processes of this machine that the step did not start."""

import json
import sys
import time
from pathlib import Path

from forked_replicas import forked


def start_cluster(processes, folder, environment=None):
    """Start a scheduler and two workers, which see no change of this process; return the address."""
    folder.mkdir()
    file = folder / "scheduler.json"
    options = ["--no-dashboard", "--host", "127.0.0.1"]
    command = forked(sys.executable, "-m", "distributed.cli.dask_scheduler", *options, "--port", "0")
    processes.start("scheduler", [*command, "--scheduler-file", file], env=environment)
    worker = forked(sys.executable, "-m", "distributed.cli.dask_worker", *options, "--nthreads", "1", "--no-nanny")
    for number in range(2):
        arguments = ["--scheduler-file", file, "--local-directory", folder]
        processes.start(f"{number}", [*worker, *arguments], env=environment)
    return written_address(file)


def written_address(file: Path) -> str:
    """Address in a scheduler's file, once the scheduler, which writes in place, has written all of it."""
    while True:
        try:
            return json.loads(file.read_text())["address"]
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.05)
