"""The step's side of the heartbeat: an object that the step rewrites while it follows a job.

The replicas' side is trainers/runtime/heartbeat.py.
"""

import threading
import time
from collections.abc import Callable

from kfp_distributed.components.train.log_format import log
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store

HEARTBEAT_SECONDS = 30.0
"""Longest interval of the heartbeat, and of the requests that keep the connection open that a cancel goes over."""


def heartbeat_interval(lost_timeout: float | None) -> float:
    """Seconds between two heartbeats, for a step that counts as lost after `lost_timeout` seconds (None: never)."""
    return HEARTBEAT_SECONDS if lost_timeout is None else min(HEARTBEAT_SECONDS, lost_timeout / 8)


class Heartbeat:
    """One object in the object store, whose content is the time in seconds since 1970."""

    def __init__(self, uri: str, say: Callable[[str], object]) -> None:
        """Writes nothing yet.

        Args:
            uri: The object.
            say: Takes a line for the log. Called from the thread that calls `beat`.
        """
        self._uri = uri
        self._say = say
        self._lock = threading.Lock()
        self._is_failing = self._is_removed = False
        # `beat` is repeated anyway.
        self._store = open_store(uri, retry_seconds=0)

    def begin(self) -> None:
        """Writes the first heartbeat.

        Raises:
            StorageError: The object store refuses it, or does not take it within a minute.
        """
        try:
            _write(open_store(self._uri))
        except StorageError:
            self._is_removed = True
            raise

    def beat(self) -> bool:
        """Writes the time of now; returns whether that worked. The first failure in a row is said."""
        with self._lock:
            if self._is_removed:
                return True
            try:
                _write(self._store)
            except StorageError as error:
                if not self._is_failing:
                    self._say(f"cannot write the heartbeat, and keeps trying: {error}")
                self._is_failing = True
                return False
            self._is_failing = False
            return True

    def remove(self) -> None:
        """Deletes the object, which is not written again."""
        with self._lock:
            if self._is_removed:
                return
            self._is_removed = True
            try:
                self._store.delete([""])
            except StorageError as error:
                log("WARNING", f"the heartbeat {self._uri} could not be deleted, delete it by hand: {error}")


def _write(store: Store) -> None:
    store.write("", str(int(time.time())).encode())
