"""Track the state of a job and its replicas from Kubernetes objects, and yield facts. Reads and writes nothing."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.describe.manifests.train_job import TRAIN_JOB
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.conclusions.failures import FOR_GOOD
from kfp_distributed.components.train.run.facts import Fact, JobEvent, ReplicaChanged, clock
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.jobset_attempt import Attempts, attempt_of
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import (
    INSTALLATION_FAILED,
    PodState,
    deletion_time,
    failed_sidecars,
    failure_sentence,
    is_suspended,
    job_end,
    job_end_time,
    owners_of,
    pod_state,
    preemption_of,
    replica_of,
    restarts_in_place,
)
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.record_times import happened_before
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.warning_events import (
    ReportedWarnings,
    read_event,
)
from kfp_distributed.components.train.run.runners.kubernetes.judge import deletions
from kfp_distributed.components.train.run.runners.kubernetes.judge.failure_policy import FailurePolicy
from kfp_distributed.components.train.run.runners.kubernetes.judge.replica_record import (
    ENDED,
    NOT_STARTED,
    UNKNOWN,
    Deletion,
    Record,
    failed_by_sidecar,
)

_OPERATOR_SECONDS = 10.0
"""Seconds to wait for an operator to report status before warning that none is running."""

_DELETION_SECONDS = 3.0
"""Seconds before a deleted pod counts as failed. When a job ends its operator deletes pods, and the deletion of a pod
may be reported before the end of the job."""


@dataclass
class JobTracker:
    """Tracks one job.

    Attributes:
        job: The job.
        kind: Kind of the job, such as "TFJob".
        uid: UID of the job's object. News of an earlier object of the same name, which may arrive late, are ignored.
        created: Creation time of the object, as the API server writes it; "" if not known yet.
        end: Whether the job succeeded, and why it failed; None if it has not ended.
        ended_by_itself: Whether the job ended according to its object, or would have ended without sidecars. False if
            it was deleted, or if a limit was reached.
        policy: Judges failures and preemptions.
        is_held: Whether the job ended, but sidecars keep its object from ending.
        end_time: Time at which the job ended according to its object; None if unknown.
    """

    job: TrainingJob
    kind: str
    uid: str = ""
    created: str = ""
    end: tuple[bool, str] | None = None
    ended_by_itself: bool = False
    is_held: bool = False
    end_time: datetime | None = None
    policy: FailurePolicy = field(init=False)
    _is_train_job: bool = field(init=False)
    _limit_reached: bool = False
    _without_status_since: float | None = None
    _suspended: bool = False
    _attempts: Attempts = field(default_factory=Attempts)
    _early_pods: dict[str, Object] = field(default_factory=dict)
    """Pods that were reported before the admission of their job by its queue."""
    _records: dict[str, Record] = field(default_factory=dict)
    _retired: set[str] = field(default_factory=set)
    """UIDs of pods that have a successor, or whose job was recreated. Late news of them are ignored."""
    _reported: set[tuple[object, ...]] = field(default_factory=set)
    _warnings: ReportedWarnings = field(default_factory=ReportedWarnings)

    def __post_init__(self) -> None:
        self._is_train_job = self.kind == TRAIN_JOB.kind
        self.policy = FailurePolicy(self.job, launcher_restarts=self._is_train_job)
        self._records = {replica.name: Record() for replica in self.job.topology.replicas}

    @property
    def leader_is_over(self) -> bool:
        """Whether the leader has ended."""
        return self._leader_state in ENDED

    @property
    def _leader_state(self) -> str:
        return self._records[self.job.topology.leader].state.state

    @property
    def can_restart(self) -> bool:
        """Whether the whole job is to be restarted: it failed, but for a preemption or a retryable failure.

        An operator fails a job if a pod is deleted, for example by draining its node, and if a peer of a killed replica
        exits with a smaller exit code. It does not restart a replica whose pod is held by a sidecar. It also fails a
        job in which a sidecar has failed the pod of a replica that succeeded. A limit may be reached by the peers of a
        replica whose preemption is reported afterwards.
        """
        if not (self.ended_by_itself or self._limit_reached) or self.end is None or self.end[0]:
            return False
        if self.policy.recent():
            return self.policy.can_restart
        return bool(failed_by_sidecar(self._records)) and self.policy.has_restart_left

    def restart_event(self) -> JobEvent:
        """Return the event that announces the restart. Call it when `can_restart` becomes true: failures expire."""
        return self.policy.restart_event(f"a sidecar of {failed_by_sidecar(self._records)} failed")

    def restart(self) -> Iterator[Fact]:
        """Reset the state after the job was deleted and before it is recreated, or after JobSet restarted it."""
        self.end, self.ended_by_itself, self.is_held, self.end_time = None, False, False, None
        self._limit_reached, self._reported = False, set()
        self._attempts.finish()
        self._warnings.forget()
        self.policy.restart()
        self._retire_pods()
        for name, record in list(self._records.items()):
            yield from self._change(name, Record(created=record.created, restart=record.restart + 1))

    def _retire_pods(self) -> None:
        self._retired |= {record.uid for record in self._records.values() if record.uid}

    def is_ours(self, pod: Object) -> bool:
        """Return whether a pod belongs to this job, not to an earlier one of its name. True for added workers, too."""
        owners = owners_of(pod, self.kind)
        return not self.uid or not owners or self.uid in owners

    def update_job(self, job: Object | None, deleted: bool = False) -> Iterator[Fact]:
        """Handle a change of the job's object; None if it does not exist."""
        if self.end or (job and self.uid and job["metadata"]["uid"] != self.uid):
            return
        if job is None or deleted:
            self.end = (False, f"The {self.kind} was deleted before it ended.")
            return
        self.created = str(job["metadata"].get("creationTimestamp", ""))
        if end := job_end(job):
            self.end = (end[0], "" if end[0] else failure_sentence(self.kind, end[1]))
            self.ended_by_itself, self.end_time = True, job_end_time(job)
            for name in self._records:
                yield from self._resolve_deletion(name)
        if job.get("status"):
            self._without_status_since = None
        elif self._without_status_since is None:
            self._without_status_since = clock()
        yield from self._set_suspended(is_suspended(job))

    def _set_suspended(self, suspended: bool) -> Iterator[Fact]:
        """Handle the admission of the job, or its revocation. A suspended job loses its pods, which is no failure."""
        if suspended == self._suspended or self.end:
            return
        self._suspended = suspended
        self._retire_pods()
        state = PodState("queued", None, "not admitted by the queue") if suspended else PodState("waiting")
        for name, record in list(self._records.items()):
            reset = Record(created=record.created, state=state, restart=record.restart)
            yield from self._change(name, reset)
        pods, self._early_pods = self._early_pods, {}
        for pod in pods.values():
            yield from self.update_pod(pod)

    def advance_time(self, now: float) -> Iterator[Fact]:
        """Report what has not happened in time."""
        if self._without_status_since is not None and now - self._without_status_since > _OPERATOR_SECONDS:
            self._without_status_since = None
            state = PodState("waiting", None, f"no operator has set a status of the {self.kind}")
            for name, record in list(self._records.items()):
                if not record.state.reason:  # An event of the operator may have given a better reason.
                    yield from self._change(name, record._replace(state=state))
        for name, record in list(self._records.items()):
            if record.pending_end and now - record.pending_end[0] > _DELETION_SECONDS:
                yield from self._resolve_deletion(name)
        for warning in self._warnings.lasting(now):
            for name, record in list(self._records.items()):
                if record.uid == warning.uid and record.state.state in NOT_STARTED:
                    yield JobEvent(clock(), f"{warning.name}: {warning.text}", "WARNING")
                    yield from self._change(name, record._replace(state=record.state._replace(reason=warning.text)))

    def add_event(self, event: Object) -> Iterator[Fact]:
        """Report a warning event once, if it is about the job or its pods."""
        warning = self._warnings.add(read_event(event, self.job.name, self.created), now := clock())
        if warning is None:
            return
        happened = happened_before(warning.happened, now)
        yield JobEvent(now, f"{warning.name}: {warning.text}", "WARNING", happened)
        if warning.is_about_creation:
            for replica, record in list(self._records.items()):
                if not record.uid:
                    yield from self._change(replica, record._replace(state=PodState("waiting", None, warning.text)))

    def update_pods(self, pods: Sequence[Object]) -> Iterator[Fact]:
        """Handle a list of all current pods of the job."""
        uids = {pod["metadata"]["uid"] for pod in pods}
        self._early_pods = {name: pod for name, pod in self._early_pods.items() if pod["metadata"]["uid"] in uids}
        for name, record in list(self._records.items()):
            if record.uid and record.uid not in uids:
                # The time of the deletion is unknown. If the job has ended, it counts as cleanup.
                deletion = record.deletion or Deletion(None, self.ended_by_itself or None)
                yield from self._defer_end(name, record._replace(deletion=deletion))
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
            yield from self.update_pod(pod)

    def update_pod(self, pod: Object, deleted: bool = False) -> Iterator[Fact]:
        """Handle a change or the deletion of a pod."""
        name, metadata = replica_of(pod), pod["metadata"]
        record, container_restarts = self._records.get(name), restarts_in_place(pod)
        is_late = metadata["uid"] in self._retired or (record and metadata["creationTimestamp"] < record.created)
        if record is None or is_late or not self.is_ours(pod) or not (yield from self._see_attempt(pod)):
            return
        record = self._records[name]
        is_deleted = deleted or "deletionTimestamp" in metadata
        if self._suspended:
            self._early_pods.pop(name, None)
            if not is_deleted:
                self._early_pods[name] = pod
            return
        # The kubelet may count a restart that never happened in a pod that it evicts.
        has_failed = pod.get("status", {}).get("phase") == "Failed"
        is_restart = container_restarts != record.container_restarts and not has_failed
        if metadata["uid"] != record.uid or is_restart:
            yield from self._resolve_deletion(name)
            if self.end and not self.ended_by_itself and self._records[name].state.state == "failed":
                return  # The job has reached its restart limit. The operator has restarted the replica nevertheless.
            record = yield from self._next_start(name, pod)
        elif record.state.state in ENDED:
            return
        yield from self._report_sidecars(name, pod)
        state = pod_state(pod)
        record = record._replace(node=pod.get("spec", {}).get("nodeName", ""), preemption=preemption_of(pod))
        self.policy.see_pod(name, record.uid, bool(record.preemption))
        if is_deleted:
            deletion = Deletion(deletion_time(pod), self._is_after_failure(name))
            record = record._replace(deletion=record.deletion or deletion)
            self._end_before_the_others(record)
            # A worker that is being deleted may exit with 0. Only for the leader this means success.
            ends_by_deletion = state.exit_code == 0 and name != self.job.topology.leader
            if deleted or state.state == "failed" or ends_by_deletion:
                yield from self._defer_end(name, record, state)
                return
        if state.state == "failed":
            stops_all = self._is_train_job and name not in self.job.topology.restart_alone
            has_ended = not (stops_all or deletions.follows(state.exit_code))
            for other in deletions.gone_before(self._records, state.happened, has_ended=has_ended):
                self._records[other] = self._records[other].ends_now(clock())
                yield from self._resolve_deletion(other)
        yield from self._change(name, record._replace(state=state))
        if self.ended_by_itself:
            yield from self._resolve_deletion(name)

    def _see_attempt(self, pod: Object) -> Generator[Fact, None, bool]:
        """Handle the attempt of JobSet that a pod is part of; return whether the pod is to be followed."""
        attempt, current = attempt_of(pod), self._attempts.current
        if self._attempts.is_over(attempt) or (self.end and current not in (attempt, None)):
            return False
        if attempt is None or current is None or attempt == current:
            self._attempts.begin(attempt)
            return True
        for name, record in list(self._records.items()):
            if record.deletion and record.deletion.is_cleanup is not None:
                yield from self._resolve_deletion(name)
        if reason := self.policy.end_of_restarts(by_jobset=attempt.jobset == current.jobset):
            self.end, self._limit_reached = (False, reason), True
            return False
        yield self.policy.restart_event("a replica was deleted")
        yield from self.restart()
        self._attempts.begin(attempt)
        return True

    def _end_before_the_others(self, record: Record) -> None:
        """End a TrainJob after a permanent failure. Unless it is to be kept, its end of all pods is not awaited."""
        is_final = record.deletion and record.deletion.is_cleanup and self.policy.is_permanent
        if self._is_train_job and is_final and not (self.end or self.job.specification.keep_job):
            self.end, self._limit_reached = (False, FOR_GOOD), True

    def _is_after_failure(self, replica: str) -> bool:
        """Return whether the cluster deletes a pod because of another one. A TrainJob restarts some replicas alone."""
        alone = self.job.topology.restart_alone if self._is_train_job else self.job.topology.spared
        return deletions.is_after_failure(replica, self._records, self.policy.recent(but=replica), alone)

    def _next_start(self, name: str, pod: Object) -> Generator[Fact, None, Record]:
        """Return the record of a replica that has a new pod, or whose container was restarted."""
        before, metadata = self._records[name], pod["metadata"]
        is_restart = bool(before.uid and before.state.state != "stopped")
        if is_restart:
            yield from self.policy.replica_restarts(name, bool(before.preemption), before.state.state == "failed")
        self.policy.replica_starts(name)
        if before.uid and before.uid != metadata["uid"]:
            self._retired.add(before.uid)
        uid, created, restart = metadata["uid"], metadata["creationTimestamp"], before.restart + is_restart
        return Record(uid, created, restarts_in_place(pod), restart=restart, begun=clock())

    def _report_sidecars(self, replica: str, pod: Object) -> Iterator[Fact]:
        """Report each failed sidecar once. It does not count as a failure of the replica."""
        for name, end in failed_sidecars(pod).items():
            key = (pod["metadata"]["uid"], name)
            if key not in self._reported:
                self._reported.add(key)
                yield JobEvent(clock(), f"{replica}: sidecar {name} failed with {end}, training continues", "WARNING")

    def _defer_end(self, name: str, record: Record, state: PodState = UNKNOWN) -> Iterator[Fact]:
        """Wait for the end of the job, which decides whether the deletion of a pod was a failure."""
        if record.pending_end or record.state.state in ENDED:
            return
        self._records[name] = record._replace(pending_end=(clock(), state))
        if self.ended_by_itself:
            yield from self._resolve_deletion(name)

    def _resolve_deletion(self, name: str) -> Iterator[Fact]:
        """Decide about a deleted pod: failed if it was deleted before the job ended, else stopped by the operator."""
        record = self._records[name]
        has_ended = record.state.state in ENDED
        if not record.pending_end and not (self.ended_by_itself and record.deletion and not has_ended):
            return
        time, state = record.pending_end[0] if record.pending_end else clock(), record.lost()
        succeeded = bool(self.end and self.end[0])
        if self.ended_by_itself and deletions.is_cleanup(record, succeeded, self.end_time, bool(self.policy.recent())):
            if not record.pending_end:
                return  # Its containers have not ended yet.
            state = state._replace(state="stopped", exit_code=None, reason="job ended", preempted=False)
        elif not self.ended_by_itself and self.kind == "PyTorchJob" and name in self.job.topology.restart_alone:
            # An elastic job continues without the worker. Changing the number of workers is not limited.
            state = state._replace(state="stopped")
        elif self._is_train_job and deletions.stops_with_others(record, self._leader_state == "succeeded"):
            state = state._replace(state="stopped", exit_code=None, reason="stopped by JobSet")
        # The fact has the time of the deletion, which decides whether other failures followed from it.
        yield from self._change(name, record._replace(state=state, pending_end=None), time)

    def _change(self, name: str, record: Record, time: float = 0) -> Iterator[Fact]:
        """Store the record of a replica and report its state if it has changed."""
        before, self._records[name] = self._records[name], record
        state, reason, install_seconds = record.state.state, record.state.reason, record.state.install_seconds
        if install_seconds and not before.state.install_seconds:
            yield JobEvent(clock(), f"{name}: packages installed in {format_seconds(install_seconds)}")
        if before.restart == record.restart and before.state._replace(happened=record.state.happened) == record.state:
            return
        # The reason of a failing image pull alternates between two values for minutes.
        if reason and before.state.state == state:
            if (name, reason, record.restart) in self._reported:
                return
            self._reported.add((name, reason, record.restart))
        fact = record.change(name, time or clock(), before)
        yield fact
        if state in ENDED:
            self.policy.pod_ended(name)
        if reason.startswith(("InvalidImageName", INSTALLATION_FAILED)) and not self.end:
            self.end = (False, f"{name} cannot start: {reason}.")
        if state == "failed":
            self._count(fact, record.begun)
        if record.state.hidden_by:
            yield from self._end_in_place_of_operator(fact, record.state.hidden_by)

    def _count(self, failure: ReplicaChanged, begun: float) -> None:
        """Count a failure, and end the job if it has reached a limit.

        The operator decides about permanent failures, and the launcher of an elastic MPI job about lost workers. When
        the leader has succeeded, the operator soon reports the end of the job.
        """
        if self._is_train_job and deletions.stops_all(failure, self.job.topology.restart_alone):
            self.policy.all_stop_since = self.policy.all_stop_since or failure.time
        reason = self.policy.add(failure, begun)
        if reason and self._decides_the_end(failure):
            self.end, self._limit_reached = (False, reason), True

    def _decides_the_end(self, failure: ReplicaChanged) -> bool:
        """Return whether a failure can end the job, which has neither ended nor trained its model."""
        return not (self.end or self._leader_state == "succeeded" or failure.replica in self.job.topology.spared)

    def _end_in_place_of_operator(self, end: ReplicaChanged, hidden_by: Sequence[str]) -> Iterator[Fact]:
        """End the job after the end of a replica that its operator does not see, because of running or failed sidecars.

        Operators go by the phase of the pod. The success of the leader is that of the job, also if its operator has
        failed it for the sidecar: its model is checked. After a retryable failure, `can_restart` becomes true.
        """
        is_success = end.state == "succeeded" and end.replica == self.job.topology.leader
        if is_success and (self.end is None or (self.ended_by_itself and not self.end[0])):
            self.end = (True, "")
        elif end.state == "failed" and self._decides_the_end(end):
            self.end = (False, self.policy.end_reason(end))
        else:
            return
        self.is_held, self.ended_by_itself = self.is_held or not self.ended_by_itself, True
        text = f"{end.replica} has ended, but its pod does not show it because of sidecar {', '.join(hidden_by)}"
        yield JobEvent(clock(), f"{text}: the step ends the {self.kind}", "WARNING")
