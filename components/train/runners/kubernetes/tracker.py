"""What an API server tells of a job -> facts. It keeps what is known of each replica; reads and writes nothing."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from kfp_distributed.components.train.durations import format_seconds
from kfp_distributed.components.train.failures import RECENT_SECONDS, root_failure
from kfp_distributed.components.train.job import Fact, JobEvent, ReplicaChanged, TrainingJob, clock
from kfp_distributed.components.train.runners.kubernetes.pods import (
    NOT_INSTALLED,
    PodState,
    deletion_time,
    is_suspended,
    job_end,
    job_end_time,
    pod_state,
    replica_of,
    restarts_in_place,
)

Object = Mapping[str, Any]

_CLAIM_SECONDS = 10.0
"""How long an operator may take to notice a job."""

_HOLD_SECONDS = 3.0
"""How long a deleted pod is no failure yet: when a job is done its operator deletes pods, and of that we may hear
before we hear of the job."""

_CLOCKS_DIFFER = timedelta(seconds=2)
"""Times so close tell no order: the API server and an operator each write whole seconds of their own clock."""

_PASSING_MOUNT = re.compile(
    r"failed to sync (configmap|secret) cache: timed out|(configmap|secret) \S+ not found$", re.IGNORECASE
)
"""Why a volume is not mounted at a pod's first try: its node learns of a new ConfigMap a moment after the pod."""

_PASSING_SECONDS = 30.0
"""A pod that still waits so long after such an event waits for that reason."""

# What the state of a pod says too, and what its deletion brings about.
_SAID_OTHERWISE = (
    "Failed",
    "BackOff",
    "FailedScheduling",
    "ErrImagePull",
    "ImagePullBackOff",
    "Error",
    "FailedToUpdateEndpoint",
)

_UNKNOWN = PodState("waiting")

_NOT_STARTED = ("waiting", "pulling", "starting")
_OVER = ("succeeded", "failed", "stopped")


class _Deletion(NamedTuple):
    """Somebody or the operator has deleted a pod.

    Attributes:
        time: When, by the API server's clock; None where nobody can tell any more.
        is_cleanup: Whether another replica had failed or was deleted before, so that it was the operator. None
            where that is to be decided later.
    """

    time: datetime | None
    is_cleanup: bool | None


class _Seen(NamedTuple):
    """What is known of a replica: its pod and which start of that, where it stood, how often it was started again.

    `held` is when we heard that its pod had gone, and how it stood then.
    """

    uid: str = ""
    created: str = ""
    start: int = 0
    state: PodState = _UNKNOWN
    restart: int = 0
    node: str = ""
    deletion: _Deletion | None = None
    held: tuple[float, PodState] | None = None

    @property
    def past(self) -> str:
        """A time that only pods after this one are created at: what is still told of this one is of no interest."""
        return self.created and f"{self.created}~"


@dataclass
class Tracker:
    """Follows one job from object to object.

    Attributes:
        job: The job.
        kind: Its kind, such as "TFJob", for sentences.
        uid: The uid of its object: an earlier one may have had the name, and news of that come late.
        created: When that was created, as the API server writes it; "" where that is not known yet.
        end: Whether it succeeded and why not, once it has ended.
        ended_by_itself: Whether its object says so. Else it was ended for its restarts, or is gone.
    """

    job: TrainingJob
    kind: str
    uid: str = ""
    created: str = ""
    end: tuple[bool, str] | None = None
    ended_by_itself: bool = False
    _end_time: datetime | None = None
    _unclaimed_since: float | None = None
    _suspended: bool = False
    _admitted: dict[str, Object] = field(default_factory=dict)
    """Pods that we hear of before we hear that the queue has admitted their job."""
    _failures: dict[str, ReplicaChanged] = field(default_factory=dict)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _told: set[tuple[object, ...]] = field(default_factory=set)
    _passing: dict[str, tuple[float, str, str]] = field(default_factory=dict)
    """Events that mostly pass, by the uid of their pod: when we heard of them, the pod's name, their text."""

    def __post_init__(self) -> None:
        self._seen = {each.name: _Seen() for each in self.job.topology.replicas}

    @property
    def leader_is_over(self) -> bool:
        """Whether the leader's own end is known."""
        return self._seen[self.job.topology.leader].state.state in _OVER

    @property
    def may_start_again(self) -> bool:
        """Whether the operator gave the job up for a failure after which a replica is started again.

        It does so where a pod is deleted, as by the draining of a node, and where a peer of a killed replica ends with
        a smaller exit code.
        """
        recent = self._recent_failures()
        if not self.ended_by_itself or not recent or self.end is None or self.end[0]:
            return False
        return self._restarts < self.job.specification.restart_limit and _is_retryable(root_failure(recent).exit_code)

    def restart_event(self) -> JobEvent:
        """Announces the restart of a job that `may_start_again`; for a moment only, for failures do not stay recent."""
        root, limit = root_failure(self._recent_failures()), self.job.specification.restart_limit
        text = f"restart {self._restarts + 1} of {limit}: the whole job ({root.replica} failed)"
        return JobEvent(clock(), text, "WARNING")

    def start_again(self) -> Iterator[Fact]:
        """The job was deleted, and is created anew."""
        self.end, self.ended_by_itself, self._end_time = None, False, None
        self._failures, self._told = {}, set()
        for name, seen in list(self._seen.items()):
            yield from self._change(name, _Seen(created=seen.past, restart=seen.restart + 1))

    def is_ours(self, pod: Object) -> bool:
        """Whether a pod is of this job, and not of an earlier one of its name. An added worker is, too."""
        owners = [each["uid"] for each in pod["metadata"].get("ownerReferences", ()) if each["kind"] == self.kind]
        return not self.uid or not owners or self.uid in owners

    def tell_job(self, found: Object | None, deleted: bool = False) -> Iterator[Fact]:
        """The job's object changed, or is gone."""
        if self.end or (found and self.uid and found["metadata"]["uid"] != self.uid):
            return
        if found is None or deleted:
            self.end = (False, f"Somebody deleted the {self.kind}.")
            return
        self.created = str(found["metadata"].get("creationTimestamp", ""))
        if end := job_end(found):
            self.end = (end[0], "" if end[0] else _sentence(f"{self.kind} failed", end[1]))
            self.ended_by_itself, self._end_time = True, job_end_time(found)
            for name in self._seen:
                yield from self._judge(name)
        if found.get("status"):
            self._unclaimed_since = None
        elif self._unclaimed_since is None:
            self._unclaimed_since = clock()
        yield from self._suspend(is_suspended(found))

    def _suspend(self, suspended: bool) -> Iterator[Fact]:
        """A job whose queue takes its admission back loses its pods, which is no failure."""
        if suspended == self._suspended or self.end:
            return
        self._suspended = suspended
        state = PodState("queued", None, "the queue has not admitted the job") if suspended else PodState("waiting")
        for name, seen in list(self._seen.items()):
            yield from self._change(name, _Seen(created=seen.past, state=state, restart=seen.restart))
        pods, self._admitted = self._admitted, {}
        for pod in pods.values():
            yield from self.tell_pod(pod)

    def tell_time(self, now: float) -> Iterator[Fact]:
        """Nothing happened for a while: what was waited for does not come."""
        if self._unclaimed_since is not None and now - self._unclaimed_since > _CLAIM_SECONDS:
            self._unclaimed_since = None
            state = PodState("waiting", None, f"no operator has taken up the {self.kind}")
            for name, seen in list(self._seen.items()):
                if not seen.state.reason:  # An event of the operator's may have said more.
                    yield from self._change(name, seen._replace(state=state))
        for name, seen in list(self._seen.items()):
            if seen.held and now - seen.held[0] > _HOLD_SECONDS:
                yield from self._judge(name)
        yield from self._tell_what_has_not_passed(now)

    def _tell_what_has_not_passed(self, now: float) -> Iterator[Fact]:
        for uid, (since, pod, text) in list(self._passing.items()):
            if now - since <= _PASSING_SECONDS:
                continue
            del self._passing[uid]
            for name, seen in list(self._seen.items()):
                if seen.uid == uid and seen.state.state in _NOT_STARTED:
                    yield JobEvent(clock(), f"{pod}: {text}", "WARNING")
                    yield from self._change(name, seen._replace(state=seen.state._replace(reason=text)))

    def tell_event(self, event: Object) -> Iterator[Fact]:
        """A warning of the namespace: those of the job and its pods are worth a line, each once."""
        about, reason = event["involvedObject"].get("name", ""), event.get("reason") or "Warning"
        text = f"{reason}: {(event.get('message') or '').strip()}"
        mine = about == self.job.name or about.startswith(f"{self.job.name}-")
        is_old = str(event.get("metadata", {}).get("creationTimestamp") or self.created) < self.created
        uid = event["involvedObject"].get("uid", "")
        passes = reason == "FailedMount" and _PASSING_MOUNT.search(text)
        told = (uid if passes else about, text)
        if not mine or is_old or reason in _SAID_OTHERWISE or told in self._told:
            return
        self._told.add(told)
        if passes:
            self._passing.setdefault(uid, (clock(), about, text))
            return
        yield JobEvent(clock(), f"{about}: {text}", "WARNING")
        if reason.startswith("FailedCreate"):
            for name, seen in list(self._seen.items()):
                if not seen.uid:
                    yield from self._change(name, seen._replace(state=PodState("waiting", None, text)))

    def tell_pods(self, pods: Sequence[Object]) -> Iterator[Fact]:
        """All pods of the job, as they are now."""
        there = {each["metadata"]["uid"] for each in pods}
        self._admitted = {name: pod for name, pod in self._admitted.items() if pod["metadata"]["uid"] in there}
        for name, seen in list(self._seen.items()):
            if seen.uid and seen.uid not in there:
                # When it went nobody can tell any more: where the job has ended, then.
                deletion = seen.deletion or _Deletion(None, self.ended_by_itself or None)
                yield from self._hold(name, seen._replace(deletion=deletion))
        for pod in sorted(pods, key=lambda each: str(each["metadata"]["creationTimestamp"])):
            yield from self.tell_pod(pod)

    def tell_pod(self, pod: Object, deleted: bool = False) -> Iterator[Fact]:
        """A pod changed, or is gone."""
        name, about = replica_of(pod), pod["metadata"]
        seen, start = self._seen.get(name), restarts_in_place(pod)
        if seen is None or not self.is_ours(pod) or about["creationTimestamp"] < seen.created:
            return
        if self._suspended:
            self._admitted.pop(name, None)
            if not deleted and "deletionTimestamp" not in about:
                self._admitted[name] = pod
            return
        # Of what it evicts the kubelet may count a restart that never was.
        is_over = pod.get("status", {}).get("phase") == "Failed"
        if about["uid"] != seen.uid or (start != seen.start and not is_over):
            yield from self._judge(name)
            if self.end and not self.ended_by_itself and self._seen[name].state.state == "failed":
                return  # Its operator does not know yet that this was the end.
            again = self._seen[name].restart + bool(seen.uid and self._seen[name].state.state != "stopped")
            seen = _Seen(about["uid"], about["creationTimestamp"], start, restart=again)
        elif seen.state.state in _OVER:
            return
        state = pod_state(pod)
        seen = seen._replace(node=pod.get("spec", {}).get("nodeName", ""))
        if deleted or "deletionTimestamp" in about:
            # News of pods come in their order, so a failure or another deletion that is known by now came before.
            others = [each for each in self._seen if each != name and each not in self.job.topology.spared]
            follows = bool(self._recent_failures(but=name)) or any(self._seen[each].deletion for each in others)
            seen = seen._replace(deletion=seen.deletion or _Deletion(deletion_time(pod), follows))
            # A worker that is told to go may end with 0; of a leader that is its success.
            if deleted or state.state == "failed" or (state.exit_code == 0 and name != self.job.topology.leader):
                yield from self._hold(name, seen, state)
                return
        yield from self._change(name, seen._replace(state=state))
        if self.ended_by_itself:
            yield from self._judge(name)

    def _hold(self, name: str, seen: _Seen, state: PodState = _UNKNOWN) -> Iterator[Fact]:
        """A pod is gone before its end: whether that is a failure the job's own end tells."""
        if seen.held or seen.state.state in _OVER:
            return
        self._seen[name] = seen._replace(held=(clock(), state))
        if self.ended_by_itself:
            yield from self._judge(name)

    def _judge(self, name: str) -> Iterator[Fact]:
        """A pod that was deleted before its job ended has failed; one deleted later was stopped by the operator."""
        seen = self._seen[name]
        if not seen.held and not (self.ended_by_itself and seen.deletion and seen.state.state not in _OVER):
            return
        gone, state = seen.held or (clock(), seen.state)
        state = state._replace(state="failed", exit_code=state.exit_code or None, reason="pod deleted")
        if self.ended_by_itself and self._is_cleanup(seen.deletion or _Deletion(None, None)):
            if not seen.held:
                return  # Its own end is still to come.
            state = state._replace(state="stopped", exit_code=None, reason="job is done")
        elif not self.ended_by_itself and self.kind == "PyTorchJob" and name in self.job.topology.restart_alone:
            # An elastic job that goes on without it: whoever changes the number of its workers may do so for ever.
            state = state._replace(state="stopped")
        # The moment in which it went tells what followed from it.
        yield from self._change(name, seen._replace(state=state, held=None), gone)

    def _is_cleanup(self, deletion: _Deletion) -> bool:
        """Whether a pod of a job that has ended was deleted by the operator, as all that still run then are.

        The two times tell it. Where they are too close, a job that succeeded was cleaned up, and so was one that
        another replica's failure had ended; else the deletion is what the job failed for.
        """
        if deletion.time and self._end_time and abs(deletion.time - self._end_time) > _CLOCKS_DIFFER:
            return deletion.time > self._end_time
        if self.end and self.end[0]:
            return True
        return bool(self._recent_failures()) if deletion.is_cleanup is None else deletion.is_cleanup

    def _change(self, name: str, now: _Seen, time: float = 0) -> Iterator[Fact]:
        before, self._seen[name] = self._seen[name], now
        state, code, reason, peak, install_seconds = now.state
        if install_seconds and not before.state.install_seconds:
            yield JobEvent(clock(), f"{name}: packages installed in {format_seconds(install_seconds)}")
        if (before.state, before.restart) == (now.state, now.restart):
            return
        # A pull fails in two ways by turns, for minutes.
        if reason and before.state.state == state:
            if (name, reason, now.restart) in self._told:
                return
            self._told.add((name, reason, now.restart))
        when = time or clock()
        fact = ReplicaChanged(when, name, state, code, None, reason, now.restart, now.node, peak, install_seconds)
        yield fact
        if reason.startswith(("InvalidImageName", NOT_INSTALLED)) and not self.end:
            self.end = (False, f"{name} cannot start: {reason}.")
        if state == "failed":
            self._failures[name] = fact
            # An exit code that is for good is the operator's to judge, and an elastic MPI job does without a worker.
            # When the leader is done the work is, and the operator tells so soon.
            limit = self.job.specification.restart_limit
            done = self._seen[self.job.topology.leader].state.state == "succeeded"
            judged = self.end or done or name in self.job.topology.spared
            if _is_retryable(code) and now.restart >= limit and not judged:
                self.end = (False, f"The restarts that restart_limit allows ({limit}) are used up.")

    @property
    def _restarts(self) -> int:
        """How many there were: those of workers that the job can do without are none."""
        return max(each.restart for name, each in self._seen.items() if name not in self.job.topology.spared)

    def _recent_failures(self, but: str = "") -> list[ReplicaChanged]:
        since, passed_over = clock() - RECENT_SECONDS, {*self.job.topology.spared, but}
        return [each for each in self._failures.values() if each.time >= since and each.replica not in passed_over]


def _is_retryable(exit_code: int | None) -> bool:
    """Whether a replica that ended so is started again; a pod that is gone has no exit code."""
    return exit_code is None or exit_code >= 128


def _sentence(start: str, message: str) -> str:
    text = ": ".join(filter(None, (start, message)))
    return text if text.endswith(".") else f"{text}."
