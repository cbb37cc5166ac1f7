"""Show the progress of a training as annotations of its job: facts ─► patches of the job's own object. Thin edge."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from threading import Lock

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.components.train.describe.manifests.job_objects import JobObjects
from kfp_distributed.components.train.run.deadline import call_within
from kfp_distributed.components.train.run.facts import Fact, JobEnded, Log, LogLine, ReplicaChanged, Tick
from kfp_distributed.components.train.run.shown_progress.progress_annotations import (
    ALL_ANNOTATIONS,
    progress_annotations,
)
from kfp_distributed.components.train.run.shown_progress.training_progress import TrainingProgress
from kfp_distributed.trainers.runtime.monitoring.samples import split_sample

PATCH_SECONDS = 10.0
"""Minimum seconds between two patches."""

_TIMEOUT_SECONDS = 5.0
"""Timeout of a patch, and the time by which the last patch may delay the end of the step."""


class ProgressPatches:
    """Annotations of one job. A patch that fails is logged once, and never fails the training.

    The thread that yields the facts calls `observe` and `finish`. Another one calls `patch`, so that a slow API server
    delays no fact.
    """

    def __init__(self, api: ClusterApi, objects: JobObjects, log: Log) -> None:
        """Create the object without sending a request.

        Args:
            api: The cluster.
            objects: Objects of the job.
            log: Receives the warning that a patch has failed.
        """
        self._api, self._objects, self._log = api, objects, log
        self._progress = TrainingProgress()
        self._annotations: Mapping[str, str] = {}
        self._lock = Lock()
        self._patched: tuple[str, Mapping[str, str]] = ("", {})
        self._is_warned = False

    def observe(self, facts: Iterator[Fact]) -> Iterator[Fact]:
        """Yield all facts, and keep the annotations that follow from them."""
        has_changed, ended = False, None
        for fact in facts:
            if isinstance(fact, LogLine):
                # There may be millions of lines, and only those of epochs and steps count.
                if "epoch " in fact.line or "step " in fact.line:
                    self._progress.add_fact(replace(fact, line=split_sample(fact.line)[0]))
                    has_changed = True
            elif isinstance(fact, ReplicaChanged | JobEnded):
                self._progress.add_fact(fact)
                has_changed, ended = True, fact if isinstance(fact, JobEnded) else None
            if has_changed and isinstance(fact, Tick | JobEnded):
                self._annotations = progress_annotations(self._progress, self._objects.job.topology.leader, ended)
                has_changed = False
            yield fact

    def patch(self, uid: str) -> bool:
        """Write the annotations to the job if they have changed.

        Args:
            uid: UID of the job. Another job of the same name is not changed. If it is "", nothing is written.

        Returns:
            True, as after a failure the next regular call is soon enough.
        """
        with self._lock:
            annotations = self._annotations
            if uid and annotations and self._patched != (uid, annotations):
                try:
                    self._send(uid, annotations)
                    self._patched = uid, annotations
                except Exception as error:  # noqa: BLE001 - what only shows the training must not fail it
                    self._warn(error)
        return True

    def finish(self, uid: str) -> None:
        """Write the final annotations of a job that is kept. It takes 5 seconds at most."""
        call_within(_TIMEOUT_SECONDS, lambda: self.patch(uid))

    def _send(self, uid: str, annotations: Mapping[str, str]) -> None:
        # The value null removes an annotation.
        metadata = {"uid": uid, "annotations": {name: annotations.get(name) for name in ALL_ANNOTATIONS}}
        self._api.call(
            "PATCH",
            self._objects.path,
            {"metadata": metadata},
            away_seconds=0,
            timeout_seconds=_TIMEOUT_SECONDS,
            apart=True,
        )

    def _warn(self, error: Exception) -> None:
        if self._is_warned or (isinstance(error, ClusterError) and _is_of_another_job(error)):
            return
        self._is_warned = True
        text = f"cannot write the progress to the annotations of {self._objects.title}, retrying: {error}"
        self._log("WARNING", text)


def _is_of_another_job(error: ClusterError) -> bool:
    """Return whether the job is gone, or another one has its name. No request can change the UID of an object."""
    return error.status in (404, 409) or (error.status == 422 and "metadata.uid" in str(error))
