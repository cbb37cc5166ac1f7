"""Attempts of a TrainJob: JobSet starts all replicas again after a failure, and the labels of the pods tell. Pure."""

from collections.abc import Mapping
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
