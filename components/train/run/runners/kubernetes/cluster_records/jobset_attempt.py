"""Attempts of a TrainJob: JobSet starts all replicas again after a failure, and the labels of the pods tell. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_JOBSET = "jobset.sigs.k8s.io/jobset-uid"
_NUMBER = "jobset.sigs.k8s.io/restart-attempt"


class Attempt(NamedTuple):
    """One start of all replicas.

    Attributes:
        jobset: UID of the JobSet. Kubeflow Trainer creates another one if somebody deletes the first.
        number: Number of earlier attempts of this JobSet.
    """

    jobset: str
    number: int


def attempt_of(pod: Mapping[str, Any]) -> Attempt | None:
    """Return the attempt that a pod belongs to; None if JobSet has not made it."""
    labels = pod["metadata"].get("labels", {})
    return Attempt(labels[_JOBSET], int(labels.get(_NUMBER, 0))) if _JOBSET in labels else None


@dataclass
class Attempts:
    """Attempts of one TrainJob. A pod of an earlier one may be reported for the first time when the next has begun.

    Attributes:
        current: Attempt that is followed; None for jobs of other kinds, or if no pod of it was seen yet.
    """

    current: Attempt | None = None
    _earlier: set[str] = field(default_factory=set)
    """UIDs of the JobSets of earlier attempts."""

    def begin(self, attempt: Attempt | None) -> None:
        """Follow an attempt. Its JobSet may be that of earlier ones."""
        self.current = attempt
        if attempt:
            self._earlier.discard(attempt.jobset)

    def finish(self) -> None:
        """Follow no attempt until the next one begins. Its JobSet is another one, unless `begin` says otherwise."""
        if self.current:
            self._earlier.add(self.current.jobset)
        self.current = None

    def is_over(self, attempt: Attempt | None) -> bool:
        """Return whether an attempt ended before the one that is followed began."""
        if attempt is None:
            return self.current is not None
        current = self.current or attempt
        return attempt.jobset in self._earlier or (attempt.jobset == current.jobset and attempt < current)
