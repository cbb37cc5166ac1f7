"""Ends a replica when the heartbeat of its train step stops.

The heartbeat is an object that the step rewrites while it follows the job, and that each replica reads. Without the
step, nothing would follow or delete the job. While the object store does not answer, the state of the step is unknown,
so that time does not count.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE, JobDescription

_LONGEST_POLL = 15.0
"""Longest interval of readings in seconds: half of the step's longest interval, so that one reading may fail."""

_POLLS = 10
"""Lowest number of readings within launcher_lost_timeout."""


class Silence(NamedTuple):
    """How long the heartbeat has not changed.

    Attributes:
        heartbeat: Value of the last reading: b"" if there was no object, None before the first answer.
        seconds: Seconds for which the object store has answered with this value.
        answered: Whether the last request was answered.
    """

    heartbeat: bytes | None = None
    seconds: float = 0.0
    answered: bool = False


def after_reading(silence: Silence, heartbeat: bytes | None, interval: float, now: float, limit: float) -> Silence:
    """Return the silence after one more reading.

    Time counts only between two readings that were both answered. The first reading counts the age of the heartbeat,
    so that a restarted replica does not start from 0. It counts half of the limit at most, because the clock of the
    step may differ.

    Args:
        silence: Silence before the reading.
        heartbeat: Value of the reading: b"" if there is no object, None if the store did not answer.
        interval: Seconds since the previous reading.
        now: Seconds since 1970.
        limit: launcher_lost_timeout in seconds.
    """
    if heartbeat is None:
        return silence._replace(answered=False)
    if silence.heartbeat is None:
        age = now - int(heartbeat) if heartbeat.isdigit() else 0.0
        return Silence(heartbeat, min(max(0.0, age), limit / 2), True)
    if heartbeat != silence.heartbeat:
        return Silence(heartbeat, 0.0, True)
    return Silence(heartbeat, silence.seconds + (interval if silence.answered else 0.0), True)


def reading_seconds(limit: float) -> float:
    """Return the seconds between two readings of the heartbeat.

    Args:
        limit: launcher_lost_timeout in seconds.
    """
    return min(_LONGEST_POLL, limit / _POLLS)


def end_when_lost(end: Callable[[], object], lost_seconds: str | None) -> None:
    """Call `end` in a thread when the heartbeat has not changed for launcher_lost_timeout.

    Args:
        end: Ends the process.
        lost_seconds: Value of LOST_SECONDS_VARIABLE; None or "" to do nothing.
    """
    if limit := float(lost_seconds or 0):
        uri = JobDescription.from_json(Path(os.environ[JOB_VARIABLE]).read_text()).heartbeat_uri
        threading.Thread(target=watch_heartbeat, args=(uri, limit, end), daemon=True).start()


def watch_heartbeat(uri: str, limit: float, end: Callable[[], object]) -> None:
    """Read the heartbeat until the step is lost, then call `end`.

    Args:
        uri: URI of the heartbeat.
        limit: launcher_lost_timeout in seconds.
        end: Ends the replica.
    """
    interval = reading_seconds(limit)
    silence, has_complained = Silence(), False
    store: Store | None = None
    while True:
        heartbeat: bytes | None = None
        try:
            # Opened once, because a program may change the environment variables with the credentials.
            store = store or open_store(uri, retry_seconds=0)
            heartbeat = _read(store)
        except Exception as error:  # noqa: BLE001 - without this thread, the replica would never end
            if not has_complained:
                text = f"{type(error).__name__}: {error}"
                print(f"cannot read the heartbeat of the train step, retrying: {text}", flush=True)
                has_complained = True
        silence = after_reading(silence, heartbeat, interval, time.time(), limit)
        if silence.seconds >= limit:
            break
        time.sleep(interval)
    print(f"no heartbeat of the train step for {limit:g} s (launcher_lost_timeout)", flush=True)
    end()


def _read(store: Store) -> bytes:
    """Return the heartbeat, or b"" if there is none."""
    try:
        return store.read("")
    except KeyNotFound:
        return b""
