"""Tells the leader of a job that a replica must end soon, so that it saves a checkpoint in time.

A replica that receives SIGTERM, because its node is drained or its pod is preempted, leaves a notice in the object
store. The leader looks for notices while it trains. It saves a checkpoint and ends, and all replicas restart from it.
A replica keeps running after SIGTERM until the leader has ended, because the leader needs it to finish its step. It
waits at most for its grace period, and not at all if the leader does not look for notices.
"""

import os
import threading
import time
from contextlib import suppress
from itertools import count

from kfp_distributed.storage.errors import KeyNotFound, StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.job_description import GRACE_VARIABLE, PREEMPTED, JobDescription

_MARGIN_SECONDS = 5.0
"""Seconds before the end of the grace period at which a replica ends, to store what it has."""

LOOK_SECONDS = 3.0
"""Interval at which the leader looks for notices, a tenth of the default grace period."""

_FOLDER = "notices/"
_LEADER = f"{_FOLDER}leader"
"""Object that exists from the leader's first look for notices until the leader ends. It is rewritten with another
content at each look."""


class EndedEarly(SystemExit):
    """The program has saved a checkpoint and ends, because a replica must end soon."""

    def __init__(self) -> None:
        super().__init__(PREEMPTED)


def grace_seconds() -> float:
    """Return the seconds that a replica has from SIGTERM until it should have ended by itself: at least half of all."""
    seconds = float(os.environ.get(GRACE_VARIABLE) or 30)
    return max(seconds - _MARGIN_SECONDS, seconds / 2)


_current: list["Termination"] = []
"""That of this process, once it is known what the replica does."""


def begin(job: JobDescription, replica: str, leads: bool, is_needed: bool = True) -> "Termination":
    """Create the state of this process, which `is_ending` reads. See `Termination`."""
    _current.append(Termination(job, replica, leads, is_needed))
    return _current[-1]


def is_ending() -> bool:
    """Return whether the program should save a checkpoint and return now, because a replica must end soon.

    It is true in the replica that saves the model, when that one or another one has received SIGTERM: its node is
    drained, its pod is preempted, or the job is deleted. There are `termination_grace_seconds` until it is killed, so
    ask after each step. When the program returns after that, all replicas are restarted. It does not matter what it
    has written to model_dir. In other replicas it is always false: they end with the job.

    The first call lets the job's other replicas wait, when they receive SIGTERM, until the program has returned.
    """
    return any(state.is_ending() for state in _current)


def end_with_leader() -> None:
    """Note that this replica ends because the leader does, so that it is restarted like the leader."""
    for state in _current:
        state.was_told = True


def seconds_left() -> float:
    """Return the rest of the grace period in seconds; 0 if it is over, or if no replica must end."""
    return max(0.0, *(state.seconds_left() for state in _current), 0.0)


def await_leader() -> None:
    """Return when this process can end after its SIGTERM. See `Termination`."""
    for state in _current:
        state.await_leader()


class Termination:
    """What this replica knows about the end of the job's replicas.

    Attributes:
        was_told: Whether `is_ending` has returned true.
    """

    def __init__(self, job: JobDescription, replica: str, leads: bool, is_needed: bool = True) -> None:
        """Create the state without sending a request.

        Args:
            job: The job.
            replica: Name of this replica.
            leads: Whether this replica saves the checkpoints.
            is_needed: Whether the job cannot continue without this replica. Otherwise it leaves no notice, but still
                waits for the leader, which may be ending, too. Default: true.
        """
        self.was_told = False
        self._job, self._replica, self._leads, self._is_needed = job, replica, leads, is_needed
        self._is_ending, self._has_left = threading.Event(), threading.Event()
        self._looking: threading.Thread | None = None
        self._since = 0.0

    def is_ending(self) -> bool:
        """Return whether the leader should save a checkpoint and end now. False in other replicas.

        From the first call on, the leader looks for notices of other replicas.
        """
        if not self._leads:
            return False
        if not self._looking:
            self._looking = threading.Thread(target=self._look, name="notices", daemon=True)
            self._looking.start()
        self.was_told = self.was_told or self._is_ending.is_set()
        return self.was_told

    def seconds_left(self) -> float:
        """Return the rest of the grace period, which begins when this process learns that a replica must end."""
        return self._since + grace_seconds() - time.monotonic()

    def _note_end(self) -> None:
        if not self._is_ending.is_set():
            self._since = time.monotonic()
            self._is_ending.set()

    def await_leader(self) -> None:
        """Return when this replica can end after its SIGTERM: the leader has ended, or the time is over.

        The leader itself ends in another thread, so for it this returns only when the time is over.
        """
        until = time.monotonic() + grace_seconds()
        self._note_end()
        if self._leads:
            if self._looking:
                time.sleep(grace_seconds())
            return
        store, look = self._store(), b""
        while time.monotonic() < until:  # Silence does not end the wait: the leader's requests may be slow or fail.
            try:
                if (newer := store.read(_LEADER)) != look:
                    look = newer
                    if self._is_needed:  # Again each time: a leader that has started again has deleted the notice.
                        store.write(_FOLDER + self._replica, b"")
            except KeyNotFound:  # No leader looks, or it has ended.
                return
            except StorageError:  # It may answer the next request.
                pass
            time.sleep(1)

    def leave(self) -> None:
        """Tell the other replicas that the leader has ended."""
        self._has_left.set()
        if self._looking:
            self._looking.join(LOOK_SECONDS)  # Otherwise it could write the object again.
            with suppress(StorageError):
                self._store().delete([_LEADER])

    def _store(self) -> Store:
        return open_store(self._job.metrics_uri, retry_seconds=0)

    def _look(self) -> None:
        store, is_cleared = self._store(), False
        for number in count():
            with suppress(StorageError):
                if not is_cleared:  # The notices are those of an earlier start.
                    store.delete([entry.key for entry in store.list(_FOLDER) if entry.key != _LEADER])
                    is_cleared = True
                store.write(_LEADER, f"{os.getpid()} {number}".encode())
                if notices := [entry.key for entry in store.list(_FOLDER) if entry.key != _LEADER]:
                    names = ", ".join(key.removeprefix(_FOLDER) for key in notices)
                    if not self._is_ending.is_set():
                        print(f"{names} must end soon: this replica saves a checkpoint and ends", flush=True)
                    self._note_end()
            if self._has_left.wait(LOOK_SECONDS):
                return
