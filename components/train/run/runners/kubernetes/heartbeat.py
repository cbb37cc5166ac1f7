"""Heartbeat of the step: an object in the object store that the step rewrites while it follows a job.

Replicas read it in trainers/runtime/lifecycle/lost_step.py.
"""

import threading
import time
from collections.abc import Callable

from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store

HEARTBEAT_SECONDS = 30.0
"""Maximum seconds between two heartbeats, and between two requests that keep the connection open."""


def heartbeat_interval(lost_timeout: float | None) -> float:
    """Return the seconds between two heartbeats.

    Args:
        lost_timeout: Seconds without a heartbeat after which the step counts as lost; None for never.
    """
    return HEARTBEAT_SECONDS if lost_timeout is None else min(HEARTBEAT_SECONDS, lost_timeout / 8)


class Heartbeat:
    """Object in the object store whose content is the current time, in seconds since 1970."""

    def __init__(self, uri: str, warn: Callable[[str], object], log: Log) -> None:
        """Create the heartbeat without writing it.

        Args:
            uri: URI of the object.
            warn: Receives a message for the log, in the thread that calls `beat`.
            log: Receives a line of the step's log, in the thread that calls `remove`.
        """
        self._uri = uri
        self._warn, self._log = warn, log
        self._lock = threading.Lock()
        self._is_failing = self._is_removed = False
        # No retries, because `beat` is called again soon.
        self._store = open_store(uri, retry_seconds=0)

    def begin(self) -> None:
        """Write the first heartbeat.

        Raises:
            StorageError: The object store refuses it, or does not respond within a minute.
        """
        try:
            _write(open_store(self._uri))
        except StorageError:
            self._is_removed = True
            raise

    def beat(self) -> bool:
        """Write the current time; return whether that succeeded. The first failure in a row is logged."""
        with self._lock:
            if self._is_removed:
                return True
            try:
                _write(self._store)
            except StorageError as error:
                if not self._is_failing:
                    self._warn(f"cannot write the heartbeat, retrying: {error}")
                self._is_failing = True
                return False
            self._is_failing = False
            return True

    def remove(self) -> None:
        """Delete the object. Later calls of `beat` do not write it again."""
        with self._lock:
            if self._is_removed:
                return
            self._is_removed = True
            try:
                self._store.delete([""])
            except StorageError as error:
                self._log("WARNING", f"cannot delete the heartbeat {self._uri}: {error}; delete it manually")


def _write(store: Store) -> None:
    store.write("", str(int(time.time())).encode())
