"""Judge the failures of a job's replicas: which is a preemption or follows from one, and whether a limit is reached.

Reads and writes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kfp_distributed.components.train.failures import FOR_GOOD, RECENT_SECONDS, SAME_MOMENT_SECONDS, root_failure
from kfp_distributed.components.train.job import JobEvent, ReplicaChanged, TrainingJob, clock
from kfp_distributed.components.train.restarts import Restarts

_KILLED = 137
"""Exit code of a process that was killed. No replica ends with it because it has lost another one."""


class _Disruption(NamedTuple):
    """A preemption of a pod.

    Attributes:
        replica: Replica of the pod.
        since: Time when it was first reported, usually before the pod receives SIGTERM. A kubelet reports it later.
        until: Time when the pod had ended; None before.
    """

    replica: str
    since: float
    until: float | None = None


class _Failure(NamedTuple):
    """A failure, and when that start of the replica began."""

    fact: ReplicaChanged
    begun: float


@dataclass
class Judge:
    """Keeps the failures of a job, and judges them.

    Attributes:
        job: The job.
        checkpoint: Name of the newest complete checkpoint. The caller sets it before it reports news of a failure.
        restarts: Restarts and preemptions that count for the limits.
    """

    job: TrainingJob
    checkpoint: str = ""
    restarts: Restarts = field(init=False)
    _failures: dict[str, _Failure] = field(default_factory=dict)
    _disruptions: dict[str, _Disruption] = field(default_factory=dict)
    """Preemptions by UID of the pod."""
    _restart_is_preemption: bool = False

    def __post_init__(self) -> None:
        self.restarts = Restarts(self.job.specification)

    def see_pod(self, replica: str, uid: str, preempted: bool) -> None:
        """Note whether the cluster is going to end a pod, or has ended it."""
        if preempted:
            self._disruptions.setdefault(uid, _Disruption(replica, clock()))
        else:
            self._disruptions.pop(uid, None)

    def add(self, failure: ReplicaChanged, begun: float) -> str:
        """Count a failure.

        Args:
            failure: The failure.
            begun: Time when this start of the replica began.

        Returns:
            Why the job ends, if a limit is reached; else "".
        """
        self._failures[failure.replica] = _Failure(failure, begun)
        if failure.replica in self.job.topology.spared:
            return ""
        if self.is_preemption(failure):
            self.restarts = self.restarts.after_preemption(failure.time)
            return "" if self.restarts.can_be_preempted else self.restarts.preemption_limit_reached
        if not is_retryable(failure.exit_code):
            return ""
        self.restarts = self.restarts.after_failure(self.checkpoint)
        return "" if self.restarts.can_restart([failure.replica]) else self.restarts.restart_limit_reached

    def recent(self, but: str = "") -> list[ReplicaChanged]:
        """Return the recent failures of replicas that the job needs, without those of one replica."""
        since, ignored = clock() - RECENT_SECONDS, {*self.job.topology.spared, but}
        failures = (failure.fact for failure in self._failures.values())
        return [failure for failure in failures if failure.time >= since and failure.replica not in ignored]

    def is_preemption(self, failure: ReplicaChanged) -> bool:
        """Return whether a failure is a preemption, or follows from the preemption of another replica."""
        return failure.preempted or self._preemption_behind(failure) is not None

    def _preemption_behind(self, failure: ReplicaChanged) -> _Disruption | None:
        """Return the preemption from which a failure follows.

        The replica must have run when the other one was preempted. With exit codes of a replica that has lost another
        one it may have failed first, because a kubelet reports a preemption when the pod has ended.
        """
        kept = self._failures.get(failure.replica)
        begun = kept.begun if kept and kept.fact == failure else failure.time
        may_be_first = (failure.exit_code or 0) >= 128 and failure.exit_code != _KILLED
        tolerance = RECENT_SECONDS if may_be_first else SAME_MOMENT_SECONDS
        for disruption in self._disruptions.values():
            end = clock() if disruption.until is None else disruption.until
            is_near = disruption.since - tolerance <= failure.time <= end + RECENT_SECONDS
            if disruption.replica != failure.replica and begun <= end and is_near:
                return disruption
        return None

    def replica_restarts(self, replica: str, preempted: bool, failed: bool) -> Iterator[JobEvent]:
        """Count the restart of a replica by its operator, and announce it if it is one after a preemption.

        Args:
            replica: Name of the replica.
            preempted: Whether its previous pod was preempted.
            failed: Whether its last failure ended the previous pod.
        """
        self.pod_ended(replica)
        if preempted:
            yield JobEvent(clock(), f"{self.restarts.last_preemption}: {replica}", "WARNING")
        elif not (failed and self.is_preemption(self._failures[replica].fact)):
            self.restarts = self.restarts.after_restart([replica])

    def pod_ended(self, replica: str) -> None:
        """Note that the pod of a replica has ended, however it did. Its preemption, if there was one, is over."""
        for uid, disruption in self._disruptions.items():
            if disruption.replica == replica and disruption.until is None:
                self._disruptions[uid] = disruption._replace(until=clock())

    @property
    def can_restart(self) -> bool:
        """Whether the limits permit a restart of the whole job after its recent failures."""
        recent = self.recent()
        if not recent:
            return False
        root = root_failure(recent)
        if self.is_preemption(root):
            return self.restarts.can_be_preempted
        return is_retryable(root.exit_code) and self.has_restart_left

    @property
    def has_restart_left(self) -> bool:
        """Whether restart_limit permits a restart of the whole job. Restarts of spared workers do not count."""
        return self.restarts.can_restart(self._needed)

    def restart_event(self, other_cause: str) -> JobEvent:
        """Return the event that announces the restart of the whole job.

        Args:
            other_cause: Cause if no replica has failed.
        """
        recent = self.recent()
        root = root_failure(recent) if recent else None
        self._restart_is_preemption = bool(root and self.is_preemption(root))
        if root and self._restart_is_preemption:
            self.restarts = self.restarts.after_preemption(clock())
            behind = None if root.preempted else self._preemption_behind(root)
            text = f"{self.restarts.last_preemption}: the whole job ({(behind or root).replica} was preempted)"
        else:
            cause = f"{root.replica} failed" if root else other_cause
            text = f"{self.restarts.next_restart(self._needed)}: the whole job ({cause})"
        return JobEvent(clock(), text, "WARNING")

    def restart(self) -> None:
        """Count the restart of the whole job, which was announced, and forget its failures."""
        if not self._restart_is_preemption:
            self.restarts = self.restarts.after_restart(replica.name for replica in self.job.topology.replicas)
        self._failures, self._disruptions, self._restart_is_preemption = {}, {}, False

    @property
    def _needed(self) -> list[str]:
        topology = self.job.topology
        return [replica.name for replica in topology.replicas if replica.name not in topology.spared]

    def end_reason(self, failure: ReplicaChanged) -> str:
        """Return why a job ends with a failure after which it is not restarted, as a sentence."""
        if self.is_preemption(failure):
            return self.restarts.preemption_limit_reached
        return self.restarts.restart_limit_reached if is_retryable(failure.exit_code) else FOR_GOOD


def is_retryable(exit_code: int | None) -> bool:
    """Return whether a replica is restarted after this exit code. A deleted pod has none."""
    return exit_code is None or exit_code >= 128
