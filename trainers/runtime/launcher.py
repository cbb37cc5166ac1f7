"""Runs a command that is no rank itself, and ends it when the train step is lost.

`python -m kfp_distributed.trainers.runtime.launcher COMMAND` runs MPI's launcher and, with `--idle`, its workers.
"""

import signal
import subprocess
import sys
import threading
import time

from kfp_distributed.trainers.runtime.heartbeat import end_when_lost

CHILD_SECONDS = 25.0
"""How long a command may take to end: a kubelet kills all after 30 seconds."""


def main() -> int:
    """Run a command until it ends, or the train step is lost: that is no failure, after which it would start again.

    Returns:
        The command's exit code, 128 and more for a signal. 0 where the step is lost, and where what idles gets SIGTERM.
    """
    idle = sys.argv[1] == "--idle"
    child, lost = subprocess.Popen(sys.argv[1 + idle :]), threading.Event()

    def end() -> None:
        lost.set()
        child.terminate()
        time.sleep(CHILD_SECONDS)
        child.kill()

    # As the first process of a container, this one gets the kubelet's SIGTERM.
    signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    end_when_lost(end)
    code = child.wait()
    if lost.is_set() or (idle and code == -signal.SIGTERM):
        return 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
