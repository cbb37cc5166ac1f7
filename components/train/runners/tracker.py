"""What an API server tells of a job -> facts. It keeps what is known of each replica; reads and writes nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kfp_distributed.components.train.runners.pods import (
    PodState,
    is_suspended,
    job_end,
    pod_state,
    replica_of,
)
from kfp_distributed.components.train.runners.protocol import (
    Fact,
    JobEvent,
    ReplicaChanged,
    TrainingJob,
    clock,
)
from kfp_distributed.components.train.status import root_failure

Object = Mapping[str, Any]

_CLAIM_SECONDS = 10.0
"""How long an operator may take to notice a job."""

# What the state of a pod says too.
_SAID_OTHERWISE = ("Failed", "BackOff", "FailedScheduling", "ErrImagePull", "ImagePullBackOff")

_OVER = ("succeeded", "failed", "stopped")


class _Seen(NamedTuple):
    """What is known of a replica.

    Its pod, where that stood, how often the replica was started again, and the version in which the pod was to go.
    """

    uid: str = ""
    created: str = ""
    state: PodState = PodState("waiting")
    restart: int = 0
    doomed: int = 0


@dataclass
class Tracker:
    """Follows one job from object to object.

    Attributes:
        job: The job.
        kind: Its kind, such as "TFJob", for sentences.
        end: Whether it succeeded and why not, once it has ended.
    """

    job: TrainingJob
    kind: str
    end: tuple[bool, str] | None = None
    _uid: str = ""
    _unclaimed_since: float | None = None
    _end_version: int = 0
    _failures: list[ReplicaChanged] = field(default_factory=list)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _told: set[tuple[str, str]] = field(default_factory=set)

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
        used = max(each.restart for each in self._seen.values())
        if not (self._end_version and self._failures) or used >= self.job.specification.restart_limit:
            return False
        return _is_retryable(root_failure(self._failures).exit_code)

    def start_again(self, uid: str) -> Iterator[Fact]:
        """The job was deleted, and is created anew as the object `uid`."""
        again = max(each.restart for each in self._seen.values()) + 1
        root = root_failure(self._failures)
        limit = self.job.specification.restart_limit
        yield JobEvent(clock(), f"restart {again} of {limit}: the whole job ({root.replica} failed)")
        self.end, self._end_version, self._failures, self._uid = None, 0, [], uid
        for name in self._seen:
            yield from self._change(name, _Seen(restart=again))

    def tell_job(self, found: Object | None, deleted: bool = False) -> Iterator[Fact]:
        """The job's object changed, or is gone."""
        if self.end or (found and self._uid and found["metadata"]["uid"] != self._uid):
            return
        if found is None or deleted:
            self.end = (False, f"Somebody deleted the {self.kind}.")
            return
        if end := job_end(found):
            self.end = (end[0], "" if end[0] else _sentence(f"{self.kind} failed", end[1]))
            self._end_version = int(found["metadata"]["resourceVersion"])
        if found.get("status"):
            self._unclaimed_since = None
        elif self._unclaimed_since is None:
            self._unclaimed_since = clock()
        state = PodState("waiting")
        if is_suspended(found):
            state = PodState("queued", None, "the queue has not admitted the job")
        for name, seen in self._seen.items():
            # What an event said of why there is no pod is more than this.
            if not seen.uid and state.state != seen.state.state:
                yield from self._change(name, seen._replace(state=state))

    def tell_time(self, now: float) -> Iterator[Fact]:
        """Nothing happened for a while: a job without a status has no operator that looks after it."""
        if self._unclaimed_since is not None and now - self._unclaimed_since > _CLAIM_SECONDS:
            self._unclaimed_since = None
            for name, seen in self._seen.items():
                state = PodState("waiting", None, f"no operator has taken up the {self.kind}: is it running?")
                yield from self._change(name, seen._replace(state=state))

    def tell_event(self, event: Object) -> Iterator[Fact]:
        """A warning of the namespace: those of the job and its pods are worth a line, each once."""
        about, reason = event["involvedObject"]["name"], event.get("reason") or "Warning"
        text = f"{reason}: {(event.get('message') or '').strip()}"
        mine = about == self.job.name or about.startswith(f"{self.job.name}-")
        if not mine or reason in _SAID_OTHERWISE or (about, text) in self._told:
            return
        self._told.add((about, text))
        yield JobEvent(clock(), f"{about}: {text}")
        if reason.startswith("FailedCreate"):
            for name, seen in self._seen.items():
                if not seen.uid:
                    yield from self._change(name, seen._replace(state=PodState("waiting", None, text)))

    def tell_pods(self, pods: Sequence[Object]) -> Iterator[Fact]:
        """All pods of the job, as they are now."""
        there = {each["metadata"]["uid"] for each in pods}
        for name, seen in list(self._seen.items()):
            if seen.uid and seen.uid not in there:
                yield from self._lose(name, seen, self._end_version)
        for pod in sorted(pods, key=lambda each: str(each["metadata"]["creationTimestamp"])):
            yield from self.tell_pod(pod)

    def tell_pod(self, pod: Object, deleted: bool = False) -> Iterator[Fact]:
        """A pod changed, or is gone."""
        name, about = replica_of(pod), pod["metadata"]
        seen = self._seen.get(name)
        owners = [each["uid"] for each in about.get("ownerReferences", ()) if each["kind"] == self.kind]
        earlier = self._uid and owners and self._uid not in owners
        if seen is None or earlier or about["creationTimestamp"] < seen.created:
            return
        known = about["uid"] == seen.uid
        if known and seen.state.state in _OVER:
            return
        doomed = seen.doomed if known else 0
        if not doomed and (deleted or "deletionTimestamp" in about):
            doomed = int(about["resourceVersion"])
        state = pod_state(pod)
        if state.state == "failed" and doomed:
            state = self._deleted_state(doomed, state.exit_code)
        restart = seen.restart + (bool(seen.uid) and not known)
        seen = _Seen(about["uid"], about["creationTimestamp"], state, restart, doomed)
        yield from self._change(name, seen)
        if deleted:
            yield from self._lose(name, seen, doomed)

    def _lose(self, name: str, seen: _Seen, version: int) -> Iterator[Fact]:
        if seen.state.state not in _OVER:
            yield from self._change(name, seen._replace(state=self._deleted_state(version, None)))

    def _deleted_state(self, version: int, exit_code: int | None) -> PodState:
        """A pod that had not ended is deleted: by the operator when the job is done, else by somebody else.

        News of pods and of the job come in any order; the numbers of their versions tell what was first.
        """
        if self.end and version >= self._end_version > 0:
            return PodState("stopped", None, "job is done")
        return PodState("failed", exit_code, "pod deleted")

    def _change(self, name: str, now: _Seen) -> Iterator[Fact]:
        before, self._seen[name] = self._seen[name], now
        state, code, reason = now.state
        if (before.state, before.restart) == (now.state, now.restart):
            return
        # A pull fails in two ways by turns, for minutes.
        if reason and before.state.state == state and before.restart == now.restart:
            if (name, reason) in self._told:
                return
            self._told.add((name, reason))
        fact = ReplicaChanged(clock(), name, state, exit_code=code, reason=reason, restart=now.restart)
        yield fact
        if state == "failed":
            self._failures.append(fact)
            limit = self.job.specification.restart_limit
            # An exit code that is for good is the operator's to judge.
            if limit and _is_retryable(code) and now.restart >= limit and not self.end:
                self.end = (False, f"The restarts that restart_limit allows ({limit}) are used up.")


def _is_retryable(exit_code: int | None) -> bool:
    """Whether a replica that ended so is started again; a pod that is gone has no exit code."""
    return exit_code is None or exit_code >= 128


def _sentence(start: str, message: str) -> str:
    text = ": ".join(filter(None, (start, message)))
    return text if text.endswith(".") else f"{text}."
