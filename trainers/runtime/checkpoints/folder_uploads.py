"""Stores local folders in object storage while a program writes to them.

A folder is stored in two steps: a snapshot of it is taken on the local disk, and a thread uploads the snapshot. At most
one snapshot of a folder is uploaded and one waits. A newer one replaces the one that waits.
"""

import atexit
import os
import shutil
import threading
import time
from collections.abc import Callable, Set
from contextlib import suppress
from functools import partial
from pathlib import Path

from kfp_distributed.storage.errors import StorageError, StoreAway
from kfp_distributed.trainers.runtime.checkpoints.completeness import is_mapped, is_written
from kfp_distributed.trainers.runtime.checkpoints.gathered_metrics import write_gathered
from kfp_distributed.trainers.runtime.checkpoints.snapshots import (
    COPIED_BYTES,
    FolderState,
    RewrittenInPlace,
    Snapshot,
    Superseded,
    leave_out,
    read_state,
    take_snapshot,
)

LOOK_SECONDS = 2.0
"""Interval at which `poll_folders` looks at the folders. It sends a folder that has not changed for this time."""

RETRY_SECONDS = 10.0
"""Pause after which the thread sends a snapshot again to an object store that did not answer."""

_BUSY_LOOKS = 30
"""Number of consecutive looks at a changing folder, about a minute, after which the log names the folder."""

kept_folders: list["_Folder"] = []
"""The registered folders, in the order in which they are sent. `keep` adds to it."""


def keep(
    folder: Path,
    send: Callable[[Snapshot, Set[Path]], object],
    append_only: bool = False,
    is_complete: Callable[[Set[Path], Set[Path]], bool] | None = None,
) -> None:
    """Register a folder, which is sent each time it has changed. Its current content counts as sent.

    A folder of checkpoints is not sent while one that was registered before it, that of the metrics, cannot be sent.

    Args:
        folder: Local folder. Its snapshots are beside it, in the folder NAME-snapshots. Those of an earlier start are
            deleted, and all when the process ends.
        send: Sends a snapshot. Its second argument are the files of `folder` that are new or have changed since the
            last snapshot that was sent.
        append_only: Whether its files only grow, such as logs. They are sent at any time, even if they never stop
            changing, and without a snapshot. Default: false.
        is_complete: Returns whether a mark says that the files of the folder are complete. Its arguments are all files,
            and those that changed since the folder was sent. Given for a folder of checkpoints: it is never sent empty,
            and once the program has called `flush`, only what it has committed so. Default: none.
    """
    kept_folders.append(_Folder(folder, send, append_only, is_complete))


def delete_snapshots() -> None:
    """Delete all snapshots from the disk, because the process ends."""
    for folder in kept_folders:
        folder.delete_snapshots()


atexit.register(delete_snapshots)


class _Folder:
    """A registered folder. See `keep`.

    Attributes:
        name: Its name.
        has_checkpoints: Whether it is a folder of checkpoints.
        is_inherited: Whether this process is a fork of the one that has registered it.
        waiting: The snapshot that is to be uploaded next.
    """

    def __init__(
        self,
        folder: Path,
        send: Callable[[Snapshot, Set[Path]], object],
        append_only: bool,
        is_complete: Callable[[Set[Path], Set[Path]], bool] | None,
    ) -> None:
        self.name, self.has_checkpoints, self.is_inherited = folder.name, is_complete is not None, False
        self.waiting: Snapshot | None = None
        self._folder, self._send, self._append_only, self._is_complete = folder, send, append_only, is_complete
        self._seen = self._sent = self._captured = read_state(folder)
        self._committed: FolderState | None = None
        self._busy, self._uncommitted, self._since = 0, 0, time.monotonic()
        self._snapshots, self._number = folder.with_name(f"{folder.name}-snapshots"), 0
        self._uploading: Snapshot | None = None
        self._rewrites, self._process = False, os.getpid()
        self.delete_snapshots()

    def delete_snapshots(self) -> None:
        """Delete all snapshots from the disk. A fork of the process, such as a worker that loads rows, has none."""
        if os.getpid() == self._process:
            shutil.rmtree(self._snapshots, ignore_errors=True)

    def begin_in_fork(self) -> None:
        """Leave the snapshots to the process that has taken them, and take others in a folder of their own."""
        self.waiting = self._uploading = None
        self._captured, self.is_inherited = self._sent, True
        self._snapshots, self._process = self._snapshots / f"fork-{os.getpid()}", os.getpid()

    def poll(self, by_program: bool, waits: bool) -> None:
        """Take a snapshot of the folder if it has changed and is complete. See `flush` and `commit`.

        Args:
            by_program: See `flush`.
            waits: Whether the caller waits until the snapshot is uploaded.

        Raises:
            OSError: The snapshot cannot be taken.
        """
        state, before = read_state(self._folder), self._seen
        if state != before:
            self._seen, self._since = state, time.monotonic()
        if by_program:
            self._committed = state
        changed = self._changed(state)
        # A program that commits says itself when its checkpoint is complete.
        asks_for_marks = not by_program and self._is_complete and self._committed is None
        is_marked = bool(asks_for_marks and changed and self._is_complete(state.keys(), changed))  # type: ignore[misc]
        # Two looks may be close together: the last one is when the program ends.
        is_stable = state == before and time.monotonic() - self._since >= LOOK_SECONDS
        self._log_busy(not by_program and state != before and not is_marked)
        self._log_uncommitted(
            not by_program and self._committed is not None and state not in (self._committed, self._sent)
        )
        if state == self._captured or not (is_marked or self._may_send(state, by_program, is_stable, changed)):
            return
        is_guessed = bool(self._is_complete) and not by_program and not is_marked and state != self._committed
        self._take(state, is_guessed, is_still=waits and by_program)
        if waits and by_program and self._is_complete and self._uploading:
            self._uploading.is_superseded = True

    def _changed(self, state: FolderState) -> frozenset[Path]:
        return frozenset(file for file, _ in state.items() - self._sent.items())

    def _may_send(self, state: FolderState, by_program: bool, is_stable: bool, changed: frozenset[Path]) -> bool:
        if not self._is_complete:
            return by_program or is_stable or self._append_only
        if not state:  # The stored checkpoint is worth more than none.
            return False
        if self._committed is not None:
            return state == self._committed
        # A folder that only loses files may be about to lose all.
        return is_stable and bool(changed) and not is_written(self._folder)

    def _take(self, state: FolderState, guessed: bool, is_still: bool) -> None:
        """Let a snapshot wait for its upload.

        Args:
            state: State of the folder.
            guessed: See `Snapshot`.
            is_still: Whether the program changes nothing until the snapshot is uploaded, so that a copy has no use.
        """
        if self._append_only:
            self.waiting, self._captured = Snapshot(self._folder, state, guessed), state
            return
        for snapshot in (self.waiting, self._uploading):
            self._note_rewrite(snapshot)
        is_small = sum(size for _, size in state.values()) <= COPIED_BYTES
        links = not is_small and (is_still or not (self._rewrites or is_mapped(self._folder)))
        if not (links or is_small):  # The disk may have no space for another copy.
            self._replace_waiting(None, at_once=True)
        self._number += 1
        target = self._snapshots / str(self._number)
        self._replace_waiting(take_snapshot(self._folder, target, state, links, guessed, leave_out))
        self._captured = state

    def _replace_waiting(self, snapshot: Snapshot | None, at_once: bool = False) -> None:
        if self.waiting:
            self._delete(self.waiting, at_once)
            self._captured = self._sent
        self.waiting = snapshot

    def _delete(self, snapshot: Snapshot, at_once: bool = False) -> None:
        """Delete a snapshot, in another thread unless `at_once`: large files take the file system a while."""
        if self._append_only:
            return
        # Of another name, so that the folders with numbers are those that are or will be uploaded.
        deleted = snapshot.folder.with_name(f"deleted-{snapshot.folder.name}")
        with suppress(FileNotFoundError):
            snapshot.folder.rename(deleted)
        delete = partial(shutil.rmtree, deleted, ignore_errors=True)
        with suppress(RuntimeError):  # The interpreter shuts down, so no thread can be started.
            if not at_once:
                threading.Thread(target=delete, daemon=True).start()
                return
        delete()

    def _note_rewrite(self, snapshot: Snapshot | None) -> None:
        try:
            with suppress(FileNotFoundError):
                if snapshot:
                    snapshot.check()
        except RewrittenInPlace:
            if not self._rewrites:
                leave_out(
                    f"the program rewrites files in {self.name} in place while they are uploaded. From now on, they "
                    "are copied first, and the training waits for the copy. To avoid this, write a new file and "
                    "rename it, as with os.replace"
                )
            self._rewrites = True

    def drop(self) -> None:
        """Give up what is not stored: the current content counts as sent."""
        if self._uploading:
            self._uploading.is_superseded = True
        self._replace_waiting(None)
        self._seen = self._sent = self._captured = read_state(self._folder)

    def begin_upload(self) -> Snapshot | None:
        """Return the waiting snapshot, which is to be uploaded now; None if none waits."""
        self._uploading, self.waiting = self.waiting, None
        return self._uploading

    def upload(self, snapshot: Snapshot) -> None:
        """Upload a snapshot.

        Raises:
            StorageError, OSError: It cannot be uploaded.
        """
        snapshot.check()
        self._send(snapshot, self._changed(snapshot.state))

    def end_upload(self, is_sent: bool, keeps: bool) -> None:
        """Note the end of an upload.

        Args:
            is_sent: Whether the snapshot is stored.
            keeps: Whether to upload the snapshot again, unless a newer one waits.
        """
        snapshot, self._uploading = self._uploading, None
        if not snapshot:
            return
        if is_sent:
            self._sent = snapshot.state
        elif keeps and not self.waiting:
            self.waiting = snapshot
            return
        elif not self.waiting:
            self._note_rewrite(snapshot)
            self._captured = self._sent
        self._delete(snapshot)

    def _log_busy(self, is_busy: bool) -> None:
        self._busy = self._busy + 1 if is_busy and not self._append_only and self._committed is None else 0
        if self._busy == _BUSY_LOOKS:
            print(f"{self.name} is not stored: it changes at least every {LOOK_SECONDS:g} s", flush=True)

    def _log_uncommitted(self, is_uncommitted: bool) -> None:
        self._uncommitted = self._uncommitted + 1 if is_uncommitted and self._is_complete else 0
        if self._uncommitted == _BUSY_LOOKS:
            leave_out(
                f"{self.name} has changed, and is stored at the next call of flush() or record_epoch(), or when a "
                "Trainer with StoredMetrics has saved its next checkpoint"
            )


class _Uploads:
    """Uploads the waiting snapshots of all folders, in the thread that calls it or in a thread of its own."""

    def __init__(self) -> None:
        self._state = threading.Lock()
        """Held while snapshots are taken or exchanged, never during a request."""
        self._sending = threading.Lock()
        """Held during an upload."""
        self._begun, self._answered = 0, True
        """Number of uploads that have begun, and the result of the last one that has ended."""
        self._has_work = threading.Event()
        self._thread: threading.Thread | None = None
        self._logged: dict[_Folder, str] = {}

    def capture(self, by_program: bool, waits: bool, only_metrics: bool = False) -> int:
        """Take snapshots of the folders that are to be sent; return the number of uploads that have begun before."""
        with self._state:
            has_metrics = (by_program or waits) and write_gathered()
            has_failed = False
            for folder in kept_folders:
                if (folder.has_checkpoints and (has_failed or only_metrics)) or (folder.is_inherited and only_metrics):
                    continue
                try:
                    # Metrics that have just been written are complete, also those of a program that has failed.
                    folder.poll(by_program or (has_metrics and not folder.has_checkpoints), waits)
                except OSError as error:
                    self._log(folder, error)
                    has_failed = True
            return self._begun

    def drop(self) -> None:
        with self._state:
            for folder in kept_folders:
                folder.drop()

    def send(self, begun: int = -1) -> bool:
        """Upload what waits, in this thread. Return whether the object store has answered all requests.

        Args:
            begun: Result of `capture`. If another thread has begun the upload of these snapshots, its result is
                returned. Default: upload in any case.
        """
        with self._sending:
            with self._state:
                if 0 <= begun < self._begun:
                    return self._answered
                self._begun += 1
                snapshots = [(folder, folder.begin_upload()) for folder in kept_folders]
            errors: list[Exception] = []
            for folder, snapshot in snapshots:
                is_blocked = folder.has_checkpoints and bool(errors)
                error = self._upload(folder, snapshot) if snapshot and not is_blocked else None
                with self._state:
                    folder.end_upload(not (is_blocked or error), not isinstance(error, RewrittenInPlace | Superseded))
                errors += [error] if error else []
            self._answered = not any(isinstance(error, StoreAway) for error in errors)
            return self._answered

    def _upload(self, folder: _Folder, snapshot: Snapshot) -> Exception | None:
        try:
            folder.upload(snapshot)
            self._logged.pop(folder, None)
        except Exception as error:  # noqa: BLE001 - it must not end the thread, nor lose the snapshot
            if not isinstance(error, Superseded):
                self._log(folder, error)
            return error
        return None

    def _log(self, folder: _Folder, error: Exception) -> None:
        """Log an error, once if it is the same again and again for a folder."""
        text = str(error) if isinstance(error, StorageError | OSError) else repr(error)
        if text != self._logged.get(folder):
            print(f"not stored: {text}", flush=True)
        self._logged[folder] = text

    def send_in_background(self) -> None:
        """Let the thread upload what waits, or is to be sent again, if there is something."""
        if all(folder.waiting is None for folder in kept_folders):
            return
        if not self._thread or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
            self._thread.start()
        self._has_work.set()

    def _work(self) -> None:
        while True:
            self._has_work.wait()
            self._has_work.clear()
            while not self.send():
                self._has_work.wait(RETRY_SECONDS)
                self._has_work.clear()


_uploads = _Uploads()


def _begin_in_fork() -> None:
    # The threads that may hold the locks, and may be changing the folders, are those of the parent.
    _uploads.__init__()  # type: ignore[misc]
    for folder in kept_folders:
        folder.begin_in_fork()


os.register_at_fork(after_in_child=_begin_in_fork)


def commit() -> None:
    """Let the current checkpoint and metrics be stored in object storage in the background.

    This returns once there is a snapshot of them on the local disk, whether or not the object store answers. If they
    cannot be stored, the log has the reason, and they are sent again, unless there is a newer snapshot by then.
    """
    _uploads.capture(by_program=True, waits=False)
    _uploads.send_in_background()


def commit_metrics() -> None:
    """Let the current metrics be stored in the background, and not the checkpoint, which may be incomplete.

    In a fork, they are written for its parent, which stores them: of two uploads at a time, the older one may end last.
    """
    _uploads.capture(by_program=True, waits=False, only_metrics=True)
    _uploads.send_in_background()


def flush(by_program: bool = True) -> bool:
    """Store the current checkpoint and metrics, see `kfp_distributed.trainers.sync.flush`.

    Args:
        by_program: Whether the program has called this function itself. If not, a checkpoint may be incomplete, so it
            is sent if the program has committed it before, if a mark says that it is complete, or if it has not changed
            for `LOOK_SECONDS` and is not being written. Default: true.
    """
    return _uploads.send(_uploads.capture(by_program, waits=True))


def drop() -> None:
    """Store nothing of what is there, because from now on another process stores its results in the same place."""
    _uploads.drop()


def poll_folders() -> None:
    """Look periodically, in a thread beside a program that does not call `flush`, for what is to be stored."""
    while True:
        time.sleep(LOOK_SECONDS)
        try:
            _uploads.capture(by_program=False, waits=False)
            _uploads.send_in_background()
        except Exception as error:  # noqa: BLE001 - without this thread, no checkpoint would be stored any more
            print(f"not stored: {error!r}", flush=True)
