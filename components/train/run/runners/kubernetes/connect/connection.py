"""Keep a connection to the API server open, and detect that the API server refuses the step's requests."""

import time

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError


class JobConnection:
    """Connection that is kept open by reading the job at regular intervals.

    A step that is cancelled has time for one request over an open connection, but not for opening one.

    Attributes:
        refusal: Failure of the job, as a sentence, if the API server has refused the step's requests for too long;
            else "".
    """

    def __init__(self, api: ClusterApi, job_path: str, tolerance_seconds: float) -> None:
        """Create the object without sending a request.

        Args:
            api: The cluster.
            job_path: Path of the job.
            tolerance_seconds: Seconds during which the API server may refuse requests, for example because the token
                has expired.
        """
        self.refusal = ""
        self._api = api
        self._path = job_path
        self._tolerance = tolerance_seconds
        self._refused_since: float | None = None

    def probe(self) -> bool:
        """Read the job; return whether the API server responded, which it also does if the job does not exist."""
        try:
            self._api.call("GET", self._path, away_seconds=0, timeout_seconds=5)
        except ClusterError as error:
            if error.status in (401, 403):
                self._note_refusal(error, time.monotonic())
                return False
            self._refused_since = None
            # The job does not exist for a moment while it is recreated.
            return error.status == 404
        self._refused_since = None
        return True

    def _note_refusal(self, error: ClusterError, now: float) -> None:
        if self._refused_since is None:
            self._refused_since = now
        if now - self._refused_since > self._tolerance:
            self.refusal = f"The API server refuses this step: {error}."
