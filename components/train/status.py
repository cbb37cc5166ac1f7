"""Status of a job, computed from its facts: replicas, time budgets and the cause of a failure. Pure.

Times are in seconds since 1970, as in the facts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kfp_distributed.components.train.durations import format_seconds
from kfp_distributed.components.train.failures import (
    FOR_GOOD,
    RECENT_SECONDS,
    SAME_MOMENT_SECONDS,
    how_it_ended,
    root_failure,
)
from kfp_distributed.components.train.history import add_change, add_sample
from kfp_distributed.components.train.job import (
    Fact,
    JobEnded,
    JobEvent,
    LogLine,
    ReplicaChanged,
    ReplicaSample,
    Span,
    TrainingJob,
)
from kfp_distributed.components.train.log_format import LogEntry
from kfp_distributed.components.train.mpirun import failed_worker
from kfp_distributed.components.train.specification import DistributionSpecification

LAST_LINES = 20
"""Number of log lines that are kept for each replica. The cause of a failure shows them."""

TIMELINE_LENGTH = 1000
"""Number of timeline entries that are kept, the newest."""

_SHOWN_REPLICAS = 10
_NOT_READY = ("queued", "waiting", "pulling", "installing")


@dataclass(frozen=True)
class ReplicaStatus(ReplicaChanged):
    """Status of a replica: its last change and its last log lines.

    Attributes:
        since: Time since which it has been in this state.
        heard: Time of its last log line since its last start; None without one.
        tail: Its last log lines since its last start.
    """

    since: float = 0.0
    heard: float | None = None
    tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobStatus:
    """Status of a job.

    Attributes:
        job: Name of the job.
        leader: Replica whose end is the end of the job.
        slots_per_worker: Number of processes of each replica that trains.
        started: Start time of the job.
        attempt: Begin of the current start of the replicas. It is the latest of: the start of the job, the last
            restart of all replicas, and the time when the last of them had its node, image and packages.
        replicas: All replicas by name.
        running: Time when all replicas were running for the first time; None before.
        timeline: Events as (time, text), the newest `TIMELINE_LENGTH`.
        ended: How the job ended; None before.
        failures: Last failure of each replica that failed. The replica may have been restarted since.
        spared: Replicas whose failure does not fail the job: the workers of an elastic MPI job.
        title: Task and run of the job, for users; "" if the job has no labels.
        spans: Periods of each replica's states, oldest first.
        samples: Samples of each replica's resource usage, oldest first.
    """

    job: str
    leader: str
    slots_per_worker: int
    started: float
    attempt: float
    replicas: Mapping[str, ReplicaStatus]
    running: float | None = None
    timeline: tuple[tuple[float, str], ...] = ()
    ended: JobEnded | None = None
    failures: Mapping[str, ReplicaStatus] = field(default_factory=dict)
    spared: frozenset[str] = frozenset()
    title: str = ""
    spans: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    samples: Mapping[str, tuple[ReplicaSample, ...]] = field(default_factory=dict)


def begin(job: TrainingJob, now: float) -> JobStatus:
    """Return the status of a job that is about to start."""
    names = [replica.name for replica in job.topology.replicas]
    return JobStatus(
        job=job.name,
        leader=job.topology.leader,
        slots_per_worker=job.specification.slots_per_worker,
        started=now,
        attempt=now,
        replicas={name: ReplicaStatus(now, name, "waiting", since=now) for name in names},
        spared=job.topology.spared,
        title="{task} of run {run}".format_map(job.labels) if job.labels else "",
        spans={name: (Span("waiting", now),) for name in names},
    )


def advance(status: JobStatus, fact: Fact) -> JobStatus:
    """Return the status after one more fact."""
    if isinstance(fact, LogLine):
        return _add_line(status, fact)
    if isinstance(fact, ReplicaSample):
        return replace(status, samples=add_sample(status.samples, fact))
    if isinstance(fact, ReplicaChanged):
        status = _add_change(status, fact)
    elif isinstance(fact, JobEnded):
        status = replace(status, ended=fact)
    text = describe(fact)
    return replace(status, timeline=(*status.timeline, (fact.time, text))[-TIMELINE_LENGTH:]) if text else status


def _add_line(status: JobStatus, line: LogLine) -> JobStatus:
    # A worker that a user added to an elastic job is not in the topology. Its lines only count as activity.
    is_known = line.replica in status.replicas
    before = status.replicas[line.replica if is_known else status.leader]
    tail = (*before.tail, line.line)[-LAST_LINES:] if is_known else before.tail
    return replace(status, replicas={**status.replicas, before.replica: replace(before, heard=line.time, tail=tail)})


def _add_change(status: JobStatus, change: ReplicaChanged) -> JobStatus:
    before = status.replicas[change.replica]
    is_restart = change.restart > before.restart
    after = ReplicaStatus(
        **{
            **vars(change),
            # The peak of all starts. Only some changes have the duration of pip.
            "peak_memory": max(change.peak_memory, before.peak_memory),
            "install_seconds": change.install_seconds or before.install_seconds,
        },
        since=before.since if change.state == before.state else change.time,
        heard=before.heard,
        tail=before.tail if change.restart == before.restart else (),
    )
    status = replace(status, spans=add_change(status.spans, change, is_restart=is_restart))
    if before.state in _NOT_READY and change.state not in _NOT_READY:
        status = replace(status, attempt=change.time)
    if change.state == "failed":
        status = replace(status, failures={**status.failures, change.replica: after})
    # Lines before the start of the program are those of pip.
    if change.state == "starting" or before.state == "installing" or is_restart:
        after = replace(after, heard=None)
        if change.replica not in status.spared:
            status = replace(status, attempt=change.time)
        if change.replica == status.leader:
            # The MPI launcher prints the lines of its workers, which start with it.
            silent = {name: replace(replica, heard=None) for name, replica in status.replicas.items()}
            status = replace(status, replicas=silent)
    status = replace(status, replicas={**status.replicas, change.replica: after})
    if status.running is None and not _unstarted(status):
        status = replace(status, running=change.time)
    return status


def describe(fact: Fact) -> str:
    """Return a fact about the job as text; "" for log lines and for facts that the timeline leaves out."""
    if isinstance(fact, JobEvent):
        return fact.text
    if isinstance(fact, JobEnded):
        return "the job succeeded" if fact.succeeded else f"the job failed: {fact.reason}"
    if not isinstance(fact, ReplicaChanged) or (fact.state in ("queued", "waiting", "starting") and not fact.reason):
        return ""
    how = how_it_ended(fact) if fact.state == "failed" else fact.reason
    return f"{fact.replica}: {fact.state}" + (f" ({how})" if how else "")


def failure_cause(status: JobStatus) -> str:
    """Return why an ended job failed.

    Returns:
        The last log lines of the replica that failed first, then one line with the first failure, the failures that
        followed it, and the reason of the job's end.
    """
    sentences = [status.ended.reason] if status.ended else []
    if lost := [failure for name, failure in status.failures.items() if name in status.spared]:
        sentences.insert(0, f"Lost workers: {_ends(lost)}.")
    failed = _failures_of_end(status)
    if not failed:
        return " ".join(sentences)
    root: ReplicaStatus = root_failure(failed)  # type: ignore[assignment]  # It returns one of its arguments.
    if others := [failure for failure in failed if failure is not root]:
        sentences.insert(0, f"Then failed {_ends(others)}.")
    after = format_seconds(root.time - status.started)
    first = f"{root.replica} failed with {how_it_ended(root)}, {after} after the start of the job"
    shown = [root]
    if worker := status.replicas.get(failed_worker(root.tail, status.slots_per_worker)):
        shown, first = [worker, root], f"{first}, as a process of {worker.replica} did"
    lines = [str(LogEntry(root.time, "ERROR", replica.replica, line)) for replica in shown for line in replica.tail]
    return "\n".join([*lines, " ".join([f"{first}.", *sentences])])


def _failures_of_end(status: JobStatus) -> list[ReplicaStatus]:
    """Return the failures that ended the job: of replicas that are failed now, else the last ones before the end."""
    counted = {name: replica for name, replica in status.replicas.items() if name not in status.spared}
    if failed := [replica for replica in counted.values() if replica.state == "failed"]:
        return failed
    last_line = max(replica.heard or status.attempt for replica in status.replicas.values())
    failures = [
        failure
        for name, failure in status.failures.items()
        if name in counted
        and (failure.time >= last_line - RECENT_SECONDS or counted[name].state not in ("running", "succeeded"))
    ]
    last_failure = max((failure.time for failure in failures), default=0.0)
    return [failure for failure in failures if last_failure - failure.time <= SAME_MOMENT_SECONDS]


def expired_budget(status: JobStatus, budgets: DistributionSpecification, now: float) -> str:
    """Return a sentence about the time budget that ran out, and about the replicas; "" if none ran out."""
    for name, begun in _budgets_begun(status).items():
        limit = getattr(budgets, name)
        if begun is not None and limit is not None and now - begun >= limit:
            silent = [
                f"{replica.replica} silent for {format_seconds(now - (replica.heard or replica.time))}"
                for replica in status.replicas.values()
                if replica.state == "running"
            ]
            late = [
                f"{replica.replica} not started" + (f" ({replica.reason})" if replica.reason else "")
                for replica in _unstarted(status)
            ]
            return f"{name} ran out after {format_seconds(limit)}: {_listed(late + silent) or 'no replica is running'}."
    return ""


def _budgets_begun(status: JobStatus) -> dict[str, float | None]:
    """Return the time since which each time budget runs, by its key; None for budgets that do not run.

    A start runs from the time when all replicas have a node, an image and their packages until all are running and one
    has printed a line. From then on silence counts. After the end of the leader, silence counts from that end.
    """
    replicas = _awaited(status)
    heard = max((replica.heard for replica in replicas if replica.heard is not None), default=None)
    queued, waiting, pulling, installing = (
        min((_waits_since(replica, replicas) for replica in replicas if replica.state == state), default=None)
        for state in _NOT_READY
    )
    is_done = status.replicas[status.leader].state == "succeeded"
    is_placed = not is_done and all(replica.state not in _NOT_READY for replica in replicas)
    silent_since = heard if is_placed else None
    if is_done:
        silent_since = max(status.replicas[status.leader].since, heard or 0.0)
    return {
        "queue_timeout": queued,
        "scheduling_timeout": None if is_done else waiting,
        "image_pull_timeout": None if is_done else pulling,
        "install_timeout": None if is_done else installing,
        "start_timeout": status.attempt if is_placed and (heard is None or _unstarted(status)) else None,
        "silence_timeout": silent_since,
        "running_timeout": status.running,
        "total_timeout": status.started,
    }


def final_failure(status: JobStatus, specification: DistributionSpecification) -> str:
    """Return why a failed MPI launcher must not be restarted by its operator: a rank failed permanently. Else "".

    A launcher that names no worker may have failed to reach one. The launcher of an elastic job also fails if a
    connection is lost.
    """
    now = status.replicas.get("launcher-0")
    end = now if now and now.state == "failed" else status.failures.get("launcher-0")
    if not end or end.reason or status.spared or not specification.restart_limit:
        return ""
    is_final = 0 < (end.exit_code or 0) < 128 and failed_worker(end.tail, status.slots_per_worker)
    return FOR_GOOD if is_final else ""


def _awaited(status: JobStatus) -> list[ReplicaStatus]:
    """Return the replicas that the job needs. A spared worker that was lost may or may not come back."""
    return [replica for name, replica in status.replicas.items() if name not in status.spared or not replica.restart]


def _waits_since(replica: ReplicaStatus, replicas: Sequence[ReplicaStatus]) -> float:
    """Return the time since which only the cluster delays a replica.

    The launcher of MPIJob v2beta1 is created after all workers are ready.
    """
    others = [other for other in replicas if replica.replica == "launcher-0" != other.replica]
    if any(other.state in _NOT_READY for other in others):
        return math.inf
    return max(other.since for other in (replica, *others))


def _unstarted(status: JobStatus) -> list[ReplicaStatus]:
    return [replica for replica in _awaited(status) if replica.state in ("starting", *_NOT_READY)]


def _ends(failed: Iterable[ReplicaChanged]) -> str:
    return _listed([f"{failure.replica} with {how_it_ended(failure)}" for failure in failed])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_REPLICAS
    return ", ".join(names[:_SHOWN_REPLICAS]) + (f" and {more} more" if more > 0 else "")
