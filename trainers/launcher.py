"""Ends a replica whose train step is lost: nobody would follow the job any more, nor delete it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

LOST_SECONDS_VARIABLE = "KFP_DISTRIBUTED_LAUNCHER_LOST_SECONDS"
"""Environment variable with the longest time between two signs of life; without it nobody waits for any."""

SIGN_OF_LIFE = Path("/kfp-distributed/launcher/alive")
"""A file of a mounted ConfigMap. The train step changes it, and the kubelet hands that on within 90 seconds."""


def end_when_lost(seconds: float, end: Callable[[], object], file: Path = SIGN_OF_LIFE) -> None:
    """Call `end` in a thread when `file` has not changed for so long."""

    def wait() -> None:
        # A replica that is started again does not wait anew: the file holds the time of the last sign of life.
        seen = file.read_bytes() if file.exists() else b""
        age = time.time() - int(seen) if seen.isdigit() and int(seen) else 0.0
        since = time.monotonic() - max(0.0, age)
        while time.monotonic() - since < seconds:
            time.sleep(min(5.0, seconds / 10))
            now = file.read_bytes() if file.exists() else b""
            if now != seen:
                seen, since = now, time.monotonic()
        print(f"no sign of life of the train step for {seconds:g} s (launcher_lost_timeout)", flush=True)
        end()

    threading.Thread(target=wait, daemon=True).start()
