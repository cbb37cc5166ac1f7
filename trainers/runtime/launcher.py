"""Runs the command of an MPI launcher or worker, and ends it when the train step is lost.

`python -m kfp_distributed.trainers.runtime.launcher COMMAND` runs the launcher, with `--idle` a worker. Neither is a
rank itself.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from kfp_distributed.trainers.runtime.job_description import (
    JOB_VARIABLE,
    LOST_SECONDS_VARIABLE,
    REPLICA_VARIABLE,
    JobDescription,
)
from kfp_distributed.trainers.runtime.lifecycle.lost_step import end_when_lost, reading_seconds
from kfp_distributed.trainers.runtime.lifecycle.termination import Termination, grace_seconds


def main() -> int:
    """Run a command until it ends or the train step is lost.

    Returns:
        The exit code of the command, or 128 + the number of the signal that ended it. 0 if the step is lost, because
        an operator restarts a container that fails. 0 if an idle worker receives SIGTERM.
    """
    is_idle = sys.argv[1] == "--idle"
    # One stream for the container's log, because lines of two streams may be read in another order than written.
    child = subprocess.Popen(sys.argv[1 + is_idle :], stderr=subprocess.STDOUT)
    lost = threading.Event()

    def end() -> None:
        lost.set()
        if is_idle:
            # The launcher notices the lost step at another reading, and ends with 0. If it lost a worker before, it
            # would fail, and be started again.
            time.sleep(2 * reading_seconds(float(os.environ[LOST_SECONDS_VARIABLE])) + grace_seconds())
        child.terminate()
        time.sleep(grace_seconds())
        child.kill()

    def end_after_leader() -> None:
        job = JobDescription.from_json(Path(os.environ[JOB_VARIABLE]).read_text())
        Termination(job, os.environ.get(REPLICA_VARIABLE, socket.gethostname()), leads=False).await_leader()
        child.terminate()

    def on_signal(number: int, frame: object) -> None:
        threading.Thread(target=end_after_leader, daemon=True).start()

    # This is the first process of a container, so it receives the kubelet's SIGTERM.
    signal.signal(signal.SIGTERM, on_signal)
    end_when_lost(end, os.environ.get(LOST_SECONDS_VARIABLE))
    code = child.wait()
    if lost.is_set() or (is_idle and code == -signal.SIGTERM):
        return 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
