"""Warning events of a job and its pods. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.record_times import seconds_of

TRANSIENT_SECONDS = 30.0
"""Seconds after which a transient mount error is reported if the pod has not started."""

_TRANSIENT_MOUNT_ERROR = re.compile(
    r"failed to sync (configmap|secret) cache: timed out|(configmap|secret) \S+ not found$", re.IGNORECASE
)
"""Errors of a pod's first attempt to mount a volume. The node learns of a new ConfigMap shortly after the pod."""

_REDUNDANT_EVENTS = (
    "Failed",
    "BackOff",
    "FailedScheduling",
    "ErrImagePull",
    "ImagePullBackOff",
    "Error",
    "FailedToUpdateEndpoint",
    "BackoffLimitExceeded",
    "PodFailurePolicy",
)
"""Reasons of events that the state of a pod contains too, or that follow from its end or deletion."""

_FAILURE_POLICY = re.compile("DefaultFailurePolicy|FailurePolicy_.*|.*FailurePolicyAction|ReachedMaxRestarts")
"""Reasons of events of a JobSet that fails or restarts its Jobs after the failure of a pod."""

_CREATED_BEFORE = re.compile(r' pods "\S+" already exists$')
"""End of a message of an operator whose cache does not have a pod yet that it has created. It tries again."""


_RANDOM_SUFFIX = re.compile(r'(pods "\S+)-[a-z0-9]{5}"')
"""End of the name of a pod in a message of the controller of Jobs, which is another one with each attempt."""


class WarningEvent(NamedTuple):
    """A warning about a job or one of its pods.

    Attributes:
        name: Name of the object.
        uid: UID of the object; "" if unknown.
        text: Reason and message.
        is_transient: Whether it is a mount error that usually disappears with the next attempt.
        is_about_creation: Whether a pod could not be created.
        happened: Time of the event in seconds since 1970; None if unknown.
    """

    name: str
    uid: str
    text: str
    is_transient: bool
    is_about_creation: bool
    happened: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The same for warnings of which one is enough."""
        return (self.uid if self.is_transient else self.name, self.text)


def read_event(event: Mapping[str, Any], job_name: str, job_created: str) -> WarningEvent | None:
    """Return the warning in an event.

    Args:
        event: The event.
        job_name: Name of the job.
        job_created: Creation time of the job, as the API server writes it; "" if not known yet.

    Returns:
        The warning; None if the event is about another object or is redundant.
    """
    involved, reason = event["involvedObject"], event.get("reason") or "Warning"
    name = involved.get("name", "")
    is_ours = name == job_name or name.startswith(f"{job_name}-")
    is_old = str(event.get("metadata", {}).get("creationTimestamp") or job_created) < job_created
    if not is_ours or is_old or reason in _REDUNDANT_EVENTS or _FAILURE_POLICY.fullmatch(reason):
        return None
    text = f"{reason}: {(event.get('message') or '').strip()}"
    if involved.get("kind") == "Job":
        text = _RANDOM_SUFFIX.sub(r'\1"', text)
    if name == job_name and _CREATED_BEFORE.search(text):
        return None
    is_transient = reason == "FailedMount" and bool(_TRANSIENT_MOUNT_ERROR.search(text))
    # Events of the newer API have eventTime instead of lastTimestamp.
    happened = seconds_of(event.get("lastTimestamp") or event.get("eventTime"))
    is_about_creation = reason.startswith("FailedCreate")
    return WarningEvent(name, involved.get("uid", ""), text, is_transient, is_about_creation, happened)


@dataclass
class ReportedWarnings:
    """Warnings that were reported, so that each is reported once."""

    _keys: set[tuple[str, str]] = field(default_factory=set)
    _mount_errors: dict[str, tuple[float, WarningEvent]] = field(default_factory=dict)
    """Transient mount errors, and when they were read, by UID of the pod."""

    def add(self, warning: WarningEvent | None, now: float) -> WarningEvent | None:
        """Return a warning if it is to be reported at once. A mount error is reported later, if it lasts."""
        if warning is None or warning.key in self._keys:
            return None
        self._keys.add(warning.key)
        if warning.is_transient:
            self._mount_errors.setdefault(warning.uid, (now, warning))
            return None
        return warning

    def lasting(self, now: float) -> list[WarningEvent]:
        """Return the mount errors that are no longer transient, each once."""
        due = [uid for uid, (since, _) in self._mount_errors.items() if now - since > TRANSIENT_SECONDS]
        return [self._mount_errors.pop(uid)[1] for uid in due]

    def forget(self) -> None:
        """Report warnings anew that were reported before: the job has been restarted."""
        self._keys.clear()
