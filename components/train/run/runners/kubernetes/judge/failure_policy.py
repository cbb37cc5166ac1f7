"""Judge the failures of a job's replicas: for which limit each counts, and whether that limit is reached.

A preemption or an outage of the object store is no failure of the program, nor are the failures of other replicas that
follow from it. Reads and writes nothing.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.conclusions.failures import (
    FOR_GOOD,
    RECENT_SECONDS,
    SAME_MOMENT_SECONDS,
    Cause,
    own_cause,
    root_failure,
)
from kfp_distributed.components.train.run.conclusions.restarts import Restarts, answer_time, outage_restart
from kfp_distributed.components.train.run.facts import JobEvent, LogLine, ReplicaChanged, clock, moment
from kfp_distributed.trainers.runtime.job_description import STORE_AWAY

_KILLED = 137
"""Exit code of a process that was killed. No replica ends with it because it has lost another one."""


_ATTEMPTS_SECONDS = 540.0, 60.0
"""Period before the end of a replica with STORE_UNREACHED, in seconds from its end. In all of it the replica has asked
the object store for an answer, also if the clocks of two nodes differ by less than a minute. The replica tries for ten
minutes."""

_ANSWERS_SECONDS = 30.0
"""Seconds between two answers of the object store that are kept."""

_ANSWERS = 240
"""Number of answers that are kept, the newest: those of two hours."""


class _Disruption(NamedTuple):
    """A preemption of a pod, or its end in an outage of the object store.

    Failures of other replicas may follow from it.

    Attributes:
        replica: Replica of the pod.
        cause: Which of both it is.
        since: Time when it was first reported. A preemption usually is before the pod receives SIGTERM; a kubelet
            reports it later. An outage is reported by the end of the replica.
        until: Time when the pod had ended; None before.
    """

    replica: str
    cause: Cause
    since: float
    until: float | None = None


class _Failure(NamedTuple):
    """A failure, and when that start of the replica began."""

    fact: ReplicaChanged
    begun: float


@dataclass
class FailurePolicy:
    """Keeps the failures of a job, and judges them.

    Attributes:
        job: The job.
        checkpoint: Name of the newest complete checkpoint. The caller sets it before it reports news of a failure.
        restarts: Restarts and preemptions that count for the limits.
        launcher_restarts: Whether the cluster restarts all replicas after any failure of an MPI launcher. Otherwise its
            operator decides.
        all_stop_since: Time of the first failure after which the cluster stops all replicas and may start them again;
            None if there was none. Their grace period may be long, and until it is over no failure is forgotten.
    """

    job: TrainingJob
    checkpoint: str = ""
    launcher_restarts: bool = False
    all_stop_since: float | None = None
    restarts: Restarts = field(init=False)
    _failures: dict[str, _Failure] = field(default_factory=dict)
    _disruptions: dict[str, _Disruption] = field(default_factory=dict)
    """Preemptions by UID of the pod, and the last outage of each replica by its name."""
    _restart_counts_for: Cause = "program"
    _answers: deque[float] = field(default_factory=lambda: deque(maxlen=_ANSWERS))
    """Times of answers of the object store, as samples of any replicas report them."""

    def __post_init__(self) -> None:
        self.restarts = Restarts(self.job.specification)

    def see_pod(self, replica: str, uid: str, preempted: bool) -> None:
        """Note whether the cluster is going to end a pod, or has ended it."""
        if preempted:
            self._disruptions.setdefault(uid, _Disruption(replica, "preemption", clock()))
        else:
            self._disruptions.pop(uid, None)

    def see_line(self, line: LogLine) -> None:
        """Note a line of a replica. It may be a sample that says that the object store has answered."""
        if (time := answer_time(line)) is None:
            return
        self.restarts = self.restarts.after_answer()
        if not self._answers or time - self._answers[-1] >= _ANSWERS_SECONDS:
            self._answers.append(time)

    def add(self, failure: ReplicaChanged, begun: float) -> str:
        """Count a failure.

        Args:
            failure: The failure.
            begun: Time when this start of the replica began.

        Returns:
            Why the job ends, if a limit is reached; else "".
        """
        self._failures[failure.replica] = _Failure(failure, begun)
        if failure.exit_code == STORE_AWAY:
            self.restarts = self.restarts.after_answer()
        if self._own_cause(failure) == "outage":
            self._disruptions[failure.replica] = _Disruption(failure.replica, "outage", failure.time, failure.time)
        if failure.replica in self.job.topology.spared:
            return ""
        cause = self.cause(failure)
        if cause == "preemption":
            self._count_preemption(failure, failure.time)
            return "" if self.restarts.can_be_preempted else self.restarts.preemption_limit_reached
        if cause == "outage":
            return ""
        if not self._is_retried(failure):
            is_mpi = self.job.topology.distribution_type == "MPI"
            if is_mpi and failure.replica != self.job.topology.leader:
                return FOR_GOOD  # The operator of MPIJob v2beta1 lets the kubelet restart such a worker for ever.
            # The operator decides. That of an MPIJob restarts a launcher whatever its exit code is.
            if not (is_mpi and self.job.specification.restart_limit):
                return ""
        self.restarts = self.restarts.after_failure(self.checkpoint)
        return "" if self.restarts.can_restart([failure.replica]) else self.restarts.restart_limit_reached

    def recent(self, but: str = "") -> list[ReplicaChanged]:
        """Return the recent failures of replicas that the job needs, without those of one replica."""
        since, ignored = self._now - RECENT_SECONDS, {*self.job.topology.spared, but}
        failures = (failure.fact for failure in self._failures.values())
        return [failure for failure in failures if failure.time >= since and failure.replica not in ignored]

    @property
    def _now(self) -> float:
        """Time at which failures are judged: now, or when the cluster began to stop all replicas."""
        return clock() if self.all_stop_since is None else self.all_stop_since

    def cause(self, failure: ReplicaChanged) -> Cause:
        """Return the cause of a failure, or of the disruption of another replica from which it follows."""
        behind = self._disruption_behind(failure)
        return behind.cause if behind else self._own_cause(failure)

    def _own_cause(self, failure: ReplicaChanged) -> Cause:
        begin, end = (moment(failure) - seconds for seconds in _ATTEMPTS_SECONDS)
        # If the store has answered other replicas in this period, it is not away.
        answers_others = any(begin <= time <= end for time in self._answers)
        return own_cause(failure, self.restarts.store_has_answered and not answers_others)

    def _count_preemption(self, failure: ReplicaChanged, time: float) -> None:
        # A failure that follows from the preemption of another replica is part of that one, whenever it began.
        begun = self._begun(failure) if failure.preempted else 0.0
        self.restarts = self.restarts.after_preemption(time, begun)

    def _begun(self, failure: ReplicaChanged) -> float:
        """Return when the start of the replica began that ended with a failure; if unknown, the time of the failure."""
        kept = self._failures.get(failure.replica)
        return kept.begun if kept and kept.fact == failure else failure.time

    def _disruption_behind(self, failure: ReplicaChanged) -> _Disruption | None:
        """Return the disruption of another replica from which a failure follows; None for a disruption of its own.

        The replica must have run when the other one was disrupted. With exit codes of a replica that has lost another
        one it may have failed first, because a kubelet reports a preemption when the pod has ended.
        """
        if self._own_cause(failure) != "program":
            return None
        begun = self._begun(failure)
        may_be_first = (failure.exit_code or 0) >= 128 and failure.exit_code != _KILLED
        tolerance = RECENT_SECONDS if may_be_first else SAME_MOMENT_SECONDS
        for disruption in self._disruptions.values():
            end = clock() if disruption.until is None else disruption.until
            is_near = disruption.since - tolerance <= failure.time <= end + RECENT_SECONDS
            if disruption.replica != failure.replica and begun <= end and is_near:
                return disruption
        return None

    def replica_restarts(self, replica: str, preempted: bool, failed: bool) -> Iterator[JobEvent]:
        """Count the restart of a replica by its operator, and announce it after a disruption, which does not count.

        Args:
            replica: Name of the replica.
            preempted: Whether its previous pod was preempted.
            failed: Whether its last failure ended the previous pod.
        """
        self.pod_ended(replica)
        failure = self._failures[replica].fact if failed else None
        if preempted:
            yield JobEvent(clock(), f"{self.restarts.last_preemption}: {replica}", "WARNING")
        elif failure and self._own_cause(failure) == "outage":
            yield JobEvent(clock(), outage_restart(replica, replica), "WARNING")
        elif failure is None or self.cause(failure) == "program":
            self.restarts = self.restarts.after_restart([replica])

    def replica_starts(self, replica: str) -> None:
        """Note that a replica starts in a new pod, and that the cluster has not stopped all replicas after its failure.

        A queue may have suspended the job instead: its pods may be reported as deleted before it is.
        """
        if replica in self._failures and replica not in self.job.topology.restart_alone:
            self.all_stop_since = None

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
        cause = self.cause(root)
        if cause == "preemption":
            return self.restarts.can_be_preempted
        return cause == "outage" or (self._is_retried(root) and self.has_restart_left)

    def _is_retried(self, failure: ReplicaChanged) -> bool:
        """Return whether a failure of the program is no permanent one."""
        is_leader_of_mpi = self.job.topology.distribution_type == "MPI" and failure.replica == self.job.topology.leader
        return is_retryable(failure.exit_code) or (self.launcher_restarts and is_leader_of_mpi)

    @property
    def is_permanent(self) -> bool:
        """Whether the first of the recent failures is permanent."""
        recent = self.recent()
        root = root_failure(recent) if recent else None
        return root is not None and self.cause(root) == "program" and not self._is_retried(root)

    def end_of_restarts(self, *, by_jobset: bool) -> str:
        """Return why the job ends although the cluster has just restarted all replicas; "" if the limits permit that.

        The failure may not have been seen, if the API server did not answer.

        Args:
            by_jobset: Whether JobSet has restarted them. Otherwise somebody has deleted the JobSet.
        """
        recent = self.recent()
        if not recent:
            self.restarts = self.restarts.after_failure(self.checkpoint)
            if by_jobset and not self.job.specification.restart_limit:
                return ""  # JobSet restarts nothing else than preemptions and outages.
        if recent and self.cause(root_failure(recent)) != "program":
            return ""
        return "" if self.has_restart_left else self.restarts.restart_limit_reached

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
        self._restart_counts_for = self.cause(root) if root else "program"
        if root is None and not self.job.specification.restart_limit:
            self._restart_counts_for = "outage"
            text = "a preemption or an outage of the object store, which was not observed"
            return JobEvent(clock(), f"restart: the whole job ({text})", "WARNING")
        if root is None or self._restart_counts_for == "program":
            cause = f"{root.replica} failed" if root else other_cause
            return JobEvent(clock(), f"{self.restarts.next_restart(self._needed)}: the whole job ({cause})", "WARNING")
        disrupted = (self._disruption_behind(root) or root).replica
        if self._restart_counts_for == "outage":
            return JobEvent(clock(), outage_restart("the whole job", disrupted), "WARNING")
        self._count_preemption(root, self._now)
        text = f"{self.restarts.last_preemption}: the whole job ({disrupted} was preempted)"
        return JobEvent(clock(), text, "WARNING")

    def restart(self) -> None:
        """Count the restart of the whole job, which was announced, and forget its failures."""
        if self._restart_counts_for == "program":
            self.restarts = self.restarts.after_restart(replica.name for replica in self.job.topology.replicas)
        self._failures, self._disruptions, self._restart_counts_for = {}, {}, "program"
        self.all_stop_since = None

    @property
    def _needed(self) -> list[str]:
        topology = self.job.topology
        return [replica.name for replica in topology.replicas if replica.name not in topology.spared]

    def end_reason(self, failure: ReplicaChanged) -> str:
        """Return why a job ends with a failure after which it is not restarted, as a sentence."""
        if self.cause(failure) == "preemption":
            return self.restarts.preemption_limit_reached
        return self.restarts.restart_limit_reached if self._is_retried(failure) else FOR_GOOD


def is_retryable(exit_code: int | None) -> bool:
    """Return whether a replica is restarted after this exit code. A deleted pod has none."""
    return exit_code is None or exit_code >= 128
