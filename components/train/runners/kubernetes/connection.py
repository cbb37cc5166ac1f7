"""The connection to the API server that a cancel needs, and how long a server that refuses the step is tolerated."""

import time

from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi
from kfp_distributed.components.train.runners.protocol import ClusterError


class Connection:
    """Reads the job from time to time.

    That keeps a connection open: a step that is cancelled has time for one request, and none to connect.

    Attributes:
        refusal: Why the job has to end, as a sentence: the API server has refused the step for too long. "" if not.
    """

    def __init__(self, api: ClusterApi, job_path: str, tolerance_seconds: float) -> None:
        """Sends nothing yet.

        Args:
            api: The cluster.
            job_path: Path of the job.
            tolerance_seconds: For how long the API server may refuse the step. An expired token stays expired.
        """
        self.refusal = ""
        self._api = api
        self._path = job_path
        self._tolerance = tolerance_seconds
        self._refused_since: float | None = None

    def probe(self) -> bool:
        """Reads the job once; returns whether the API server answered. The answer may be that there is no such job."""
        try:
            self._api.call("GET", self._path, away_seconds=0, timeout_seconds=5)
        except ClusterError as error:
            if error.status in (401, 403):
                self._note_refusal(error, time.monotonic())
                return False
            self._refused_since = None
            # A failed job is deleted and created again at the moment.
            return error.status == 404
        self._refused_since = None
        return True

    def _note_refusal(self, error: ClusterError, now: float) -> None:
        if self._refused_since is None:
            self._refused_since = now
        if now - self._refused_since > self._tolerance:
            self.refusal = f"The API server refuses this step: {error}."
