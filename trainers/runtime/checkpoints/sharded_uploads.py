"""Uploads the part of a rank of each sharded checkpoint in the background, and completes the checkpoints in rank 0.

Each rank stores its files in the folder of the checkpoint, and a record with their sizes and SHA-256 last. Rank 0 waits
for the records of all ranks, and then writes the manifest. So a checkpoint is complete only if all ranks have stored
their part. No rank waits for another one while it trains.

A rank that cannot store its part says so: in its record, which rank 0 reads, and with the next save, where the ranks
exchange their failures (`take_failures`). All ranks give up the checkpoint then, and the next one is uploaded.
"""

import json
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from kfp_distributed.storage.errors import StorageError, StoreAway
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.checkpoints.folder_uploads import RETRY_SECONDS
from kfp_distributed.trainers.runtime.checkpoints.sharded_files import SavedRange, write_sums
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import (
    Sharding,
    checkpoint_numbers,
    publish_sharded,
)
from kfp_distributed.trainers.runtime.monitoring.sampling import count_bytes

_LOOK_SECONDS = 0.5
"""Interval at which rank 0 looks for the records of the other ranks."""

PEER_SECONDS = 60.0
"""Seconds without another record after which rank 0, whose program has ended, gives up a checkpoint."""

AWAY_SECONDS = 600.0
"""Seconds without an answer of the store after which a rank gives up a checkpoint. Until then it tries again."""

MISSING_SECONDS = 60.0
"""Seconds without another record after which the log of rank 0 names the ranks whose records are missing."""

_NAMED_RANKS = 10
"""Number of these ranks that the log names."""

_PENDING = 2
"""Number of checkpoints of which a rank has local files: the one that is uploaded, and one that waits."""


class _Dropped(Exception):
    """A newer checkpoint has replaced the one that is uploaded, in all ranks."""


class SavePlan(NamedTuple):
    """What rank 0 decides about a save, for all ranks alike.

    Attributes:
        name: Name of the checkpoint, such as "00000003".
        folder: Unique name of the folder with its files, so that the files of an interrupted save are never mixed in.
        dropped: Folder of a waiting checkpoint that this one replaces; "" for none.
        reason: Why nothing is saved; "" if it is.
    """

    name: str = ""
    folder: str = ""
    dropped: str = ""
    reason: str = ""


@dataclass
class ShardSave:
    """The part of this rank of a checkpoint.

    Attributes:
        name: Name of the checkpoint.
        sharding: What its manifest will record.
        rank: Number of this rank.
        files: Local folder with the files of this rank.
        ranges: Where each tensor is in them.
        record: Content of this rank's record, once its files are stored.
        is_recorded: Whether the record is stored.
        is_dropped: Whether a newer checkpoint has replaced this one, or a rank cannot store its part.
        answered: Time at which the store has last answered this rank, or at which the upload began, from
            `time.monotonic`; 0 while the checkpoint waits for its upload.
    """

    name: str
    sharding: Sharding
    rank: int
    files: Path
    ranges: Sequence[SavedRange]
    record: dict[str, Any] | None = None
    is_recorded: bool = False
    is_dropped: bool = False
    answered: float = 0.0

    @property
    def prefix(self) -> str:
        """Folder of the files in the store of the checkpoints."""
        return f"{self.name}/{self.sharding.folder}"

    def check(self) -> None:
        """Raise _Dropped if a newer checkpoint has replaced this one."""
        if self.is_dropped:
            raise _Dropped


class ShardUploads:
    """Uploads the waiting checkpoints of this rank in a thread, the oldest first.

    Rank 0 keeps a checkpoint until its manifest is written, the other ranks until their record is. So a checkpoint that
    waits in another rank waits in rank 0, too, which therefore decides what is replaced.
    """

    def __init__(
        self, store: Store, away_seconds: float = AWAY_SECONDS, missing_seconds: float = MISSING_SECONDS
    ) -> None:
        """Create it without a thread.

        Args:
            store: Store of the checkpoints.
            away_seconds: See `AWAY_SECONDS`, which is the default.
            missing_seconds: See `MISSING_SECONDS`, which is the default.
        """
        self._store, self._away_seconds, self._missing_seconds = store, away_seconds, missing_seconds
        self._changed = threading.Condition()
        """Held while the attributes below are read or changed, never during a request."""
        self._pending: list[ShardSave] = []
        self._failures: dict[str, str] = {}
        self._progress, self._logged = time.monotonic(), ""
        self._thread: threading.Thread | None = None
        self.has_saved = False

    def replaceable(self) -> str:
        """Return the folder of the checkpoint that the next one replaces; "" for none. Called in rank 0.

        The oldest is never replaced. Otherwise a store that is slower than the training would get none.
        """
        with self._changed:
            return self._pending[-1].sharding.folder if len(self._pending) >= _PENDING else ""

    def drop(self, folder: str) -> None:
        """Give up a checkpoint and delete its local files, unless this rank has stored its part already."""
        with self._changed:
            dropped = [save for save in self._pending if save.sharding.folder == folder]
        for save in dropped:  # Before `finish` returns, after which the process may end.
            save.is_dropped = True
            checkpoint_numbers.unfinished.discard(save.name)
            shutil.rmtree(save.files, ignore_errors=True)
        with self._changed:
            self._pending = [save for save in self._pending if save.sharding.folder != folder]
            self._changed.notify_all()

    def take_failures(self) -> dict[str, str]:
        """Return why this rank cannot store checkpoints, by their folders. Each failure is returned once.

        It is the thread of the training that judges an upload without an answer, as the other one may hang in it.
        """
        with self._changed:
            first = self._pending[0] if self._pending else None
            if first and 0 < first.answered < time.monotonic() - self._away_seconds:
                cause = self._logged.removeprefix("not stored: ")
                text = f"the object store has not answered for {self._away_seconds:g} s"
                self._failures[first.sharding.folder] = f"{text}: {cause}" if cause else text
            failures, self._failures = self._failures, {}
            return failures

    def fail(self, failures: Sequence[Mapping[str, str]]) -> None:
        """Give up the checkpoints of which a rank cannot store its part. Called in all ranks.

        Args:
            failures: Result of `take_failures` of each rank.
        """
        for rank, causes in enumerate(failures):
            for folder, cause in causes.items():
                with self._changed:
                    failed = [save for save in self._pending if save.sharding.folder == folder and save.rank == 0]
                for save in failed:
                    self._log_failure(save, rank, cause)
                self.drop(folder)

    def add(self, save: ShardSave) -> None:
        """Upload a checkpoint in the background."""
        with self._changed:
            self._pending.append(save)
            self._progress, self.has_saved = time.monotonic(), True
            if not self._thread or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="sharded uploads", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self, seconds: float) -> bool:
        """Wait until all checkpoints are stored. Return whether they are.

        Args:
            seconds: Seconds without progress after which this returns.
        """
        with self._changed:
            while self._pending:
                # A rank that has ended stores nothing any more.
                limit = min(seconds, PEER_SECONDS) if self._pending[0].is_recorded else seconds
                if (left := self._progress + limit - time.monotonic()) <= 0:
                    return False
                self._changed.wait(min(left, 1))
            return True

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._pending:
                    self._changed.wait()
                save = self._pending[0]
                save.answered = save.answered or time.monotonic()
            if self._has_ended(save):
                self.drop(save.sharding.folder)
                continue
            with self._changed:
                self._changed.wait(RETRY_SECONDS)

    def _has_ended(self, save: ShardSave) -> bool:
        """Upload a checkpoint. Return whether nothing remains to be done, and False if it is to be tried again."""
        try:
            self._upload(save)
            if save.rank == 0:
                self._complete(save)
            self._logged = ""
        except _Dropped:
            pass
        except StoreAway as error:  # It may answer later.
            self._log(f"not stored: {error}")
            return save.is_dropped
        except Exception as error:  # noqa: BLE001 - it must not end the thread
            self._note_failure(save, error)
        return True

    def _note_failure(self, save: ShardSave, error: Exception) -> str:
        """Log that this rank cannot store its part, keep the cause for `take_failures`, and return it."""
        cause = str(error) if isinstance(error, StorageError | OSError) else repr(error)
        if not save.is_dropped:
            with self._changed:
                self._failures[save.sharding.folder] = cause
            self._log_failure(save, save.rank, cause)
        return cause

    def _log_failure(self, save: ShardSave, rank: int, cause: str) -> None:
        self._log(f"not stored: checkpoint {save.name}, because rank {rank} failed: {cause}")

    def _log(self, text: str) -> None:
        if text != self._logged:
            print(text, flush=True)
        self._logged = text

    def _upload(self, save: ShardSave) -> None:
        """Store the files of this rank, and then their record."""
        if save.record is None:
            try:
                save.record = {"files": [asdict(file) for file in self._upload_files(save)]}
            except (_Dropped, StoreAway):
                raise
            except Exception as error:  # noqa: BLE001 - rank 0 need not wait for this rank
                save.check()
                save.record = {"error": self._note_failure(save, error)}
        if not save.is_recorded:
            save.check()
            self._store.write(_record_key(save, save.rank), json.dumps(save.record).encode())
            save.is_recorded, save.answered = True, time.monotonic()

    def _upload_files(self, save: ShardSave) -> list[FileEntry]:
        def on_bytes(count: int) -> None:
            save.check()
            count_bytes(count)
            self._progress = save.answered = time.monotonic()

        write_sums(save.files, save.ranges, lambda: on_bytes(0))
        entries = []
        for file in sorted(save.files.iterdir()):
            path = f"{save.sharding.folder}/{file.name}"
            entries.append(replace(self._store.upload(file, f"{save.name}/{path}", on_bytes), path=path))
        return entries

    def _complete(self, save: ShardSave) -> None:
        """Wait for the records of all ranks, and write the manifest."""
        self._await_records(save)
        files: list[FileEntry] = []
        for rank in range(save.sharding.ranks):
            record = json.loads(self._store.read(_record_key(save, rank)))
            if "error" in record:
                self._log_failure(save, rank, record["error"])
                return
            files += [FileEntry(**file) for file in record["files"]]
        save.check()
        publish_sharded(self._store, save.name, sorted(files, key=lambda file: file.path), save.sharding)
        size = sum(file.size for file in files)
        print(
            f"checkpoint {save.name} of step {save.sharding.step} is stored: {size:,} bytes of "
            f"{save.sharding.ranks} ranks",
            flush=True,
        )

    def _await_records(self, save: ShardSave) -> None:
        ranks = {_record_key(save, rank): rank for rank in range(save.sharding.ranks)}
        missing, since, is_logged = len(ranks) + 1, 0.0, False
        while left := ranks.keys() - {f"{save.prefix}/{name}" for name in self._store.children(save.prefix)}:
            save.check()
            save.answered = time.monotonic()
            if len(left) < missing:
                missing, is_logged = len(left), False
                self._progress = since = time.monotonic()
            elif not is_logged and time.monotonic() - since >= self._missing_seconds:
                is_logged = True
                print(
                    f"checkpoint {save.name} of step {save.sharding.step} is not complete: it waits for "
                    f"{_names(sorted(ranks[key] for key in left))}, whose log has the reason",
                    flush=True,
                )
            time.sleep(_LOOK_SECONDS)


def _names(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks[:_NAMED_RANKS])) + (" and others" if len(ranks) > _NAMED_RANKS else "")
    return f"rank {text}" if len(ranks) == 1 else f"{len(ranks)} ranks ({text})"


def _record_key(save: ShardSave, rank: int) -> str:
    return f"{save.prefix}/rank-{rank}.json"


current: list[ShardUploads] = []
"""That of this process, if the program saves sharded checkpoints."""


def finish(seconds: float) -> None:
    """Wait until the sharded checkpoints of this process are stored, at most `seconds` without progress."""
    for uploads in current:
        if not uploads.finish(seconds):
            print("not stored: the last sharded checkpoint, because not all ranks have stored their part", flush=True)


def has_saved() -> bool:
    """Return whether this process has saved its part of a sharded checkpoint since it started."""
    return any(uploads.has_saved for uploads in current)
