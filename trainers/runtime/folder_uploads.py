"""Stores local folders in object storage while a program writes to them, and records the metrics of epochs."""

import stat
import threading
import time
from collections.abc import Callable, Set
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kfp_distributed.storage.errors import StorageError, StoreAway
from kfp_distributed.trainers.runtime.completeness import is_written

_State = dict[Path, tuple[int, int]]
"""Time of the last change in nanoseconds and size in bytes of each file."""

LOOK_SECONDS = 2.0
"""Interval at which `flush_at_rest` looks at the folders. It sends a folder that has not changed for this time."""

_BUSY_LOOKS = 30
"""Number of consecutive looks at a changing folder, about a minute, after which the log names the folder."""

kept_folders: list["_Folder"] = []
"""The registered folders, in the order in which `flush` sends them. `keep` adds to it."""

_lock = threading.Lock()


class Snapshot(NamedTuple):
    """A state of a folder to send.

    Attributes:
        changed: The files that are new or changed since the last snapshot that was sent.
        check: Raises OSError if the folder has changed since, so that it is sent again.
        in_use: Whether the program may write to the folder during the upload.
        guessed: Whether only the rest of the folder says that its files are complete.
    """

    changed: frozenset[Path]
    check: Callable[[], None]
    in_use: bool
    guessed: bool


def keep(
    folder: Path,
    send: Callable[[Snapshot], object],
    grows: bool = False,
    is_complete: Callable[[Set[Path], Set[Path]], bool] | None = None,
) -> None:
    """Register a folder, which `flush` sends each time it has changed. Its current content counts as sent.

    Args:
        folder: Local folder.
        send: Sends the folder.
        grows: Whether its files only grow, such as logs. They are sent at any time, even if they never stop changing.
            Default: false.
        is_complete: Returns whether a mark says that the files of the folder are complete. Its arguments are all files,
            and those that changed since the folder was sent. Given for a folder of checkpoints: it is never sent empty,
            and once the program has called `flush`, only what it has committed so. Default: none.
    """
    kept_folders.append(_Folder(folder, send, grows, is_complete))


class _Folder:
    """A registered folder. See `keep`."""

    def __init__(
        self,
        folder: Path,
        send: Callable[[Snapshot], object],
        grows: bool,
        is_complete: Callable[[Set[Path], Set[Path]], bool] | None,
    ) -> None:
        self._folder, self._send, self._grows, self._is_complete = folder, send, grows, is_complete
        self._seen = self._sent = _state(folder)
        self._committed: _State | None = None
        self._busy, self._uncommitted, self._since = 0, 0, time.monotonic()

    def look(self, at_rest: bool) -> None:
        """Send the folder if it has changed and is complete. See `flush`."""
        state, before = _state(self._folder), self._seen
        if state != before:
            self._seen, self._since = state, time.monotonic()
        if not at_rest:
            self._committed = state
        changed = frozenset(file for file, _ in state.items() - self._sent.items())
        # A program that commits says itself when its checkpoint is complete.
        asks_for_marks = at_rest and self._is_complete and self._committed is None
        is_marked = bool(asks_for_marks and changed and self._is_complete(state.keys(), changed))  # type: ignore[misc]
        # Two looks may be close together: the last one is when the program ends.
        is_stable = state == before and time.monotonic() - self._since >= LOOK_SECONDS
        self._log_busy(at_rest and state != before and not is_marked)
        self._log_uncommitted(at_rest and self._committed is not None and state not in (self._committed, self._sent))
        if state == self._sent or not (is_marked or self._may_send(state, at_rest, is_stable, changed)):
            return

        def check() -> None:
            if _state(self._folder) != state:
                raise OSError(f"{self._folder.name} changed during the upload")

        is_guessed = bool(self._is_complete) and at_rest and not is_marked and state != self._committed
        self._send(Snapshot(changed, check, at_rest, is_guessed))
        self._sent = state

    def _may_send(self, state: _State, at_rest: bool, is_stable: bool, changed: frozenset[Path]) -> bool:
        if not self._is_complete:
            return not at_rest or is_stable or self._grows
        if not state:  # The stored checkpoint is worth more than none.
            return False
        if self._committed is not None:
            return state == self._committed
        # A folder that only loses files may be about to lose all.
        return is_stable and bool(changed) and not is_written(self._folder)

    def _log_busy(self, is_busy: bool) -> None:
        self._busy = self._busy + 1 if is_busy and not self._grows and self._committed is None else 0
        if self._busy == _BUSY_LOOKS:
            print(f"{self._folder.name} is not stored: it changes at least every {LOOK_SECONDS:g} s", flush=True)

    def _log_uncommitted(self, is_uncommitted: bool) -> None:
        self._uncommitted = self._uncommitted + 1 if is_uncommitted and self._is_complete else 0
        if self._uncommitted == _BUSY_LOOKS:
            leave_out(f"{self._folder.name} has changed, and is stored at the next call of flush() or record_epoch()")


def flush(at_rest: bool = False) -> bool:
    """Store the current checkpoint and metrics in object storage, and return when they are there.

    If they cannot be stored, the log has the reason, and the next call tries again.

    Args:
        at_rest: Whether the program has not called this function itself. A checkpoint may be incomplete then, so it is
            sent if the program has committed it before, if a mark says that it is complete, or if it
            has not changed for `LOOK_SECONDS` and is not being written. Default: false.

    Returns:
        Whether the object store has answered all requests. A refusal and a full disk do not pass by themselves, so
        they are not worth waiting for.
    """
    answered = True
    with _lock:
        for folder in kept_folders:
            try:
                folder.look(at_rest)
            except (StorageError, OSError) as error:
                answered = answered and not isinstance(error, StoreAway)
                print(f"not stored: {error}", flush=True)
    return answered


@cache
def leave_out(reason: str) -> None:
    """Log once that a file is not stored in object storage. The other files are stored, and the training continues.

    Args:
        reason: The file, and why it is not stored.
    """
    print(f"not stored: {reason}", flush=True)


def flush_at_rest() -> None:
    """Flush periodically in a thread beside a program that does not call `flush`."""
    while True:
        time.sleep(LOOK_SECONDS)
        try:
            flush(at_rest=True)
        except Exception as error:  # noqa: BLE001 - without this thread, no checkpoint would be stored any more
            print(f"not stored: {error!r}", flush=True)


def _state(folder: Path) -> _State:
    # Includes links, FIFOs and other special files, so that `leave_out` can name them.
    state = {}
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # Deleted since rglob().
            status = file.lstat()
            if not stat.S_ISDIR(status.st_mode):
                state[file] = status.st_mtime_ns, status.st_size
    return state
