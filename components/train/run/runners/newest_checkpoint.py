"""Read the name of the newest checkpoint of a job."""

import time
from contextlib import suppress

from kfp_distributed.components.train.run.deadline import call_within
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import complete_checkpoints

VALID_SECONDS = 2.0
"""Seconds for which a name is used again. A failure and those that follow from it need one request."""

_RETRY_SECONDS = 2.0
"""Seconds for which a request is retried. The facts of the job wait meanwhile."""

_TIMEOUT_SECONDS = 5.0
"""Timeout of a request in seconds."""

_PAUSE_SECONDS = 60.0
"""Seconds without a request after a store did not answer, so that many failures do not delay the step often."""


class NewestCheckpoint:
    """Reads the name of the newest complete checkpoint of a job, and keeps it for a moment."""

    def __init__(self, uri: str) -> None:
        """Create a reader without sending a request.

        Args:
            uri: URI of the job's checkpoints; "" if it has none.
        """
        self._uri = uri
        self._name = ""
        self._valid_until = 0.0

    def read(self) -> str:
        """Return the name, such as "00000003"; "" if there is none. If the store is away, return the last known one."""
        if self._uri and time.monotonic() > self._valid_until:
            name = call_within(_TIMEOUT_SECONDS, self._request)
            self._valid_until = time.monotonic() + (_PAUSE_SECONDS if name is None else VALID_SECONDS)
            self._name = self._name if name is None else name
        return self._name

    def _request(self) -> str | None:
        # ValueError: the environment has no credentials, as on the machine of somebody who only watches the job.
        with suppress(StorageError, ValueError, OSError):
            return next(iter(complete_checkpoints(open_store(self._uri, retry_seconds=_RETRY_SECONDS))), "")
        return None
