"""Decides whether a program failed because of the checkpoint that it had restored, so that the next start gets another.

It is not if a checkpoint was stored since, or is to be stored. The process that stores the checkpoints knows this of
itself. The others compare what the object store has with what it had when they started. Nor is it if the program failed
in a part that does not read the checkpoint.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads, sharded_uploads
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import list_checkpoints, reject_checkpoint
from kfp_distributed.trainers.runtime.job_description import STORE_SECONDS, TRAINING_METRICS
from kfp_distributed.trainers.runtime.outputs.results import SYNC_RETRY_SECONDS


class _Progress(NamedTuple):
    """What the object store shows of the progress of the training: the leader's metrics, and begun checkpoints."""

    metrics: bytes
    folders: frozenset[str]


_is_unread = False


@contextmanager
def without_checkpoint() -> Iterator[None]:
    """Mark a part of a program that does not read the checkpoint: if it fails, the checkpoint is not rejected."""
    global _is_unread
    _is_unread = True
    yield
    _is_unread = False  # An error that leaves the block leaves it True.


class RestoredCheckpoint:
    """The checkpoint that this process has restored."""

    def __init__(self, checkpoints: Store, metrics: Store, name: str, stores: bool) -> None:
        """Note the progress of the training so far. Call it before the program starts.

        Args:
            checkpoints: Store of the checkpoints.
            metrics: Store of the metrics.
            name: Name of the checkpoint; "" for none.
            stores: Whether this process stores checkpoints.
        """
        self._checkpoints, self._metrics, self._name = checkpoints, metrics, name
        self._begin = self._progress() if name and not stores else None

    def reject(self) -> bool:
        """Record that the program failed right after it had restored the checkpoint, if there is one before it.

        "Right after" means that no checkpoint has been stored or committed since. A failure in `without_checkpoint`
        says nothing about the checkpoint.

        Returns:
            Whether the next start gets another checkpoint.
        """
        if not self._name or _is_unread or self._has_advanced():
            return False
        following = reject_checkpoint(self._checkpoints, self._name)
        if following:
            print(
                f"the program failed after it had restored checkpoint {self._name} and before it stored another one; "
                f"the next start gets checkpoint {following}",
                flush=True,
            )
        return bool(following)

    def _has_advanced(self) -> bool:
        """Return whether a checkpoint was committed since the start, as far as `reject_checkpoint` cannot see it."""
        until = time.monotonic() + STORE_SECONDS
        # A checkpoint that is not stored yet, or is being uploaded, proves that the restored one was good.
        while not folder_uploads.flush(by_program=False):
            if time.monotonic() > until:
                break
            time.sleep(SYNC_RETRY_SECONDS)
        if sharded_uploads.has_saved():
            return True
        if self._begin is None:
            return False
        # The leader stores the metrics of an epoch before its checkpoint.
        now = self._progress()
        return now.metrics != self._begin.metrics or bool(now.folders - self._begin.folders)

    def _progress(self) -> _Progress:
        metrics = self._metrics.read(TRAINING_METRICS) if self._metrics.exists(TRAINING_METRICS) else b""
        with suppress(ValueError, TypeError):  # Metrics of steps are stored at any time.
            metrics = json.dumps({**json.loads(metrics), "steps": None}).encode()
        return _Progress(metrics, frozenset(list_checkpoints(self._checkpoints).folders))
