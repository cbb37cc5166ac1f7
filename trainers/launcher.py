"""Ends a replica whose train step is lost: nobody would follow the job any more, nor delete it.

`python -m kfp_distributed.trainers.launcher COMMAND` does so to what is no rank itself: MPI's launcher and, with
`--idle`, its workers.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

LOST_SECONDS_VARIABLE = "KFP_DISTRIBUTED_LAUNCHER_LOST_SECONDS"
"""Environment variable with the longest time between two signs of life; without it nobody waits for any."""

CHILD_SECONDS = 25.0
"""How long a command may take to end: a kubelet kills all after 30 seconds."""

SIGN_OF_LIFE = Path("/kfp-distributed/launcher/alive")
"""A file of a mounted ConfigMap. The train step changes it, and the kubelet hands that on within 90 seconds."""


def end_when_lost(seconds: float, end: Callable[[], object], file: Path = SIGN_OF_LIFE) -> None:
    """Call `end` in a thread when `file` has not changed for so long."""

    def wait() -> None:
        # A replica that is started again does not wait as long: the file holds the time of the last sign of life. By
        # half at most, for the clock of the train step may be another one than ours.
        seen = file.read_bytes() if file.exists() else b""
        age = time.time() - int(seen) if seen.isdigit() and int(seen) else 0.0
        since = time.monotonic() - min(max(0.0, age), seconds / 2)
        while time.monotonic() - since < seconds:
            time.sleep(min(5.0, seconds / 10))
            now = file.read_bytes() if file.exists() else b""
            if now != seen:
                seen, since = now, time.monotonic()
        print(f"no sign of life of the train step for {seconds:g} s (launcher_lost_timeout)", flush=True)
        end()

    threading.Thread(target=wait, daemon=True).start()


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
    if os.environ.get(LOST_SECONDS_VARIABLE):
        end_when_lost(float(os.environ[LOST_SECONDS_VARIABLE]), end)
    code = child.wait()
    if lost.is_set() or (idle and code == -signal.SIGTERM):
        return 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
