"""Status of a job, computed from its facts: replicas, and the cause of a failure. Pure.

Times are in seconds since 1970, as in the facts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.describe.mpirun import failed_worker
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.describe.task_path import format_task
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.conclusions import replica_status
from kfp_distributed.components.train.run.conclusions.failures import (
    FOR_GOOD,
    RECENT_SECONDS,
    SAME_MOMENT_SECONDS,
    exception_line,
    how_it_ended,
    is_of_program,
    root_failure,
    was_killed,
)
from kfp_distributed.components.train.run.conclusions.history import add_change, add_sample
from kfp_distributed.components.train.run.conclusions.replica_status import ReplicaStatus, shown_lines, without_output
from kfp_distributed.components.train.run.facts import (
    Fact,
    JobAdopted,
    JobEnded,
    JobEvent,
    LogLine,
    ReplicaChanged,
    ReplicaSample,
    Span,
    moment,
)
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry

TIMELINE_LENGTH = 1000
"""Number of timeline entries that are kept, the newest."""

_SHOWN_REPLICAS = 10

NOT_READY = ("queued", "waiting", "pulling", "installing")
"""States of a replica before it has its node, its image and its packages."""


@dataclass(frozen=True)
class JobStatus:
    """Status of a job.

    Attributes:
        job: Name of the job.
        leader: Replica whose end is the end of the job.
        slots_per_worker: Number of processes of each replica that trains.
        started: Time at which this process began to follow the job, of `clock`. Time budgets go by it.
        created: Time at which the job began. It is before `started` if this process has adopted the job.
        attempt: Time of the current start of the replicas. It is the latest of: the start of the job, the last
            restart of all replicas, and the time when the last of them had its node, image and packages.
        replicas: All replicas by name.
        running: Time when all replicas were running for the first time; None before.
        timeline: Events as (time, text), the newest `TIMELINE_LENGTH`.
        ended: How the job ended; None before.
        failures: Last failure of each replica that failed. The replica may have been restarted since.
        spared: Replicas whose failure does not fail the job. See `Topology`.
        optional: Replicas that the job can do without. See `Topology`.
        title: Task and run of the job, for users; "" if the job has no labels.
        spans: Periods of each replica's states, oldest first.
        samples: Samples of each replica's resource usage, oldest first.
    """

    job: str
    leader: str
    slots_per_worker: int
    started: float
    created: float
    attempt: float
    replicas: Mapping[str, ReplicaStatus]
    running: float | None = None
    timeline: tuple[tuple[float, str], ...] = ()
    ended: JobEnded | None = None
    failures: Mapping[str, ReplicaStatus] = field(default_factory=dict)
    spared: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
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
        created=now,
        attempt=now,
        replicas={name: ReplicaStatus(now, name, "waiting", since=now) for name in names},
        spared=job.topology.spared,
        optional=job.topology.optional,
        title=f"{format_task(job.labels)} of run {job.labels['run']}" if job.labels else "",
        spans={name: (Span("waiting", now),) for name in names},
    )


def advance(status: JobStatus, fact: Fact) -> JobStatus:
    """Return the status after one more fact."""
    if isinstance(fact, LogLine | ReplicaSample):
        return add_output(status, [fact])
    if isinstance(fact, ReplicaChanged):
        status = _add_change(status, fact)
    elif isinstance(fact, JobAdopted):
        spans = {name: (Span("waiting", fact.created),) for name in status.replicas}
        status = replace(status, created=fact.created, spans=spans)
    elif isinstance(fact, JobEnded):
        status = replace(status, ended=fact)
    text = describe(fact)
    return replace(status, timeline=(*status.timeline, (moment(fact), text))[-TIMELINE_LENGTH:]) if text else status


def add_output(status: JobStatus, output: Iterable[LogLine | ReplicaSample]) -> JobStatus:
    """Return the status after output of any replicas. Many facts at once cost little more than one."""
    by_replica: dict[str, list[LogLine | ReplicaSample]] = defaultdict(list)
    for fact in output:
        by_replica[fact.replica].append(fact)
    if not by_replica:
        return status
    replicas, samples = {**status.replicas}, {**status.samples}
    for name, facts in by_replica.items():
        facts.sort(key=lambda fact: fact.time)
        for fact in facts:
            if isinstance(fact, ReplicaSample):
                samples[name] = add_sample(samples.get(name, ()), fact)
        if name in replicas:
            replicas[name] = replica_status.add_output(replicas[name], facts)
        else:
            # A worker that a user added to an elastic job is not in the topology. Its output only counts as activity.
            replicas[status.leader] = _with_activity_of_other(replicas[status.leader], facts)
    return replace(status, replicas=replicas, samples=samples)


def _with_activity_of_other(leader: ReplicaStatus, facts: Sequence[LogLine | ReplicaSample]) -> ReplicaStatus:
    leader = replace(leader, heard=facts[-1].time)
    lines = [fact for fact in facts if isinstance(fact, LogLine)]
    if lines:
        leader = replace(leader, progressed=lines[-1].time, progress=f"{lines[-1].replica} printed a line")
    return leader


def _add_change(status: JobStatus, change: ReplicaChanged) -> JobStatus:
    before = status.replicas[change.replica]
    is_restart = change.restart > before.restart
    after = replace(
        before,
        **{
            **vars(change),
            # The peak of all starts. Only some changes have the duration of pip.
            "peak_memory": max(change.peak_memory, before.peak_memory),
            "install_seconds": change.install_seconds or before.install_seconds,
        },
        since=before.since if change.state == before.state else change.time,
        tail=before.tail if change.restart == before.restart else (),
    )
    status = replace(status, spans=add_change(status.spans, change, is_restart=is_restart))
    if before.state in NOT_READY and change.state not in NOT_READY:
        status = replace(status, attempt=change.time)
    if change.state == "failed":
        status = replace(status, failures={**status.failures, change.replica: after})
    # Lines before the start of the program are those of pip.
    if change.state == "starting" or before.state == "installing" or is_restart:
        after = without_output(after)
        if change.replica not in status.spared:
            status = replace(status, attempt=change.time)
        if change.replica == status.leader:
            # The MPI launcher prints the lines of its workers, which start with it.
            silent = {name: replace(replica, heard=None, sampled=None) for name, replica in status.replicas.items()}
            status = replace(status, replicas=silent)
    status = replace(status, replicas={**status.replicas, change.replica: after})
    if status.running is None and not unstarted(status):
        status = replace(status, running=change.time)
    return status


def describe(fact: Fact) -> str:
    """Return a fact about the job as text; "" for log lines and for facts that the timeline leaves out."""
    if isinstance(fact, JobEvent | JobAdopted):
        return fact.text
    if isinstance(fact, JobEnded):
        return "the job succeeded" if fact.succeeded else f"the job failed: {fact.reason}"
    if not isinstance(fact, ReplicaChanged) or (fact.state in ("queued", "waiting", "starting") and not fact.reason):
        return ""
    how = how_it_ended(fact) if fact.state == "failed" else fact.reason
    return f"{fact.replica}: {fact.state}" + (f" ({how})" if how else "")


def failure_cause(status: JobStatus, *, frames: bool = True) -> str:
    """Return why an ended job failed.

    Args:
        status: Status of the job.
        frames: Whether its log lines include the frames of tracebacks. Default: True. Set it to False for a log that
            has all lines of the replicas already.

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
    after = format_seconds(max(0.0, moment(root) - status.created))
    separator = ":" if root.exit_code is None and root.signal is None else " with"
    first = f"{root.replica} failed{separator} {how_it_ended(root)}, {after} after the start of the job"
    shown = [root]
    if worker := status.replicas.get(failed_worker(root.tail, status.slots_per_worker)):
        shown, first = [worker, root], f"{first}, as a process of {worker.replica} did"
    # A program that did not end by itself may have handled an exception before.
    ended_by_itself = root.exit_code is not None and not root.preempted and not was_killed(root)
    exceptions = [exception_line(shown_lines(replica, frames=True)) for replica in shown if ended_by_itself]
    first = ": ".join([first, *list(filter(None, exceptions))[:1]]).rstrip(".")
    lines = [
        str(LogEntry(moment(root), "ERROR", replica.replica, line))
        for replica in shown
        for line in shown_lines(replica, frames=frames)
    ]
    return "\n".join([*lines, " ".join([f"{first}.", *sentences])])


def _failures_of_end(status: JobStatus) -> list[ReplicaStatus]:
    """Return the failures that ended the job: of replicas that are failed now, else the last ones before the end."""
    counted = {name: replica for name, replica in status.replicas.items() if name not in status.spared}
    if failed := [replica for replica in counted.values() if replica.state == "failed"]:
        return failed
    last_progress = max(replica.progressed or status.attempt for replica in status.replicas.values())
    failures = [
        failure
        for name, failure in status.failures.items()
        if name in counted
        # A preemption that was survived is no cause.
        and not (failure.preempted and counted[name].state in ("running", "succeeded"))
        and (failure.time >= last_progress - RECENT_SECONDS or counted[name].state not in ("running", "succeeded"))
    ]
    last_failure = max((failure.time for failure in failures), default=0.0)
    return [failure for failure in failures if last_failure - failure.time <= SAME_MOMENT_SECONDS]


_BUDGETS_OF_PROGRAM = ("start_timeout", "silence_timeout", "progress_timeout", "running_timeout", "total_timeout")
"""Time budgets that run while the program does. The others are for the cluster."""


def program_has_failed(status: JobStatus) -> bool:
    """Return whether the program is the cause of the failure of a job.

    It has left no model, was too slow or silent, or is the cause for the replica that failed first. Otherwise the cause
    is the cluster, a store, or who has ended the job.
    """
    if status.ended and (status.ended.succeeded or status.ended.budget):
        return status.ended.succeeded or status.ended.budget in _BUDGETS_OF_PROGRAM
    failed = _failures_of_end(status)
    return bool(failed) and is_of_program(root_failure(failed))


def final_failure(status: JobStatus, specification: DistributionSpecification) -> str:
    """Return why a failed MPI launcher must not be restarted by its operator: a rank failed permanently. Else "".

    A launcher that names no worker may have failed to reach one. The launcher of an elastic job also fails if a
    connection is lost. A rank also fails because another one was preempted.
    """
    now = status.replicas.get("launcher-0")
    end = now if now and now.state == "failed" else status.failures.get("launcher-0")
    if not end or end.reason or status.spared or not specification.restart_limit:
        return ""
    if any(other.preempted and abs(other.time - end.time) <= RECENT_SECONDS for other in status.failures.values()):
        return ""
    is_final = 0 < (end.exit_code or 0) < 128 and failed_worker(end.tail, status.slots_per_worker)
    return FOR_GOOD if is_final else ""


def awaited(status: JobStatus) -> list[ReplicaStatus]:
    """Return the replicas that the job needs. A spared worker that was lost may or may not come back."""
    needed = {name: replica for name, replica in status.replicas.items() if name not in status.optional}
    return [replica for name, replica in needed.items() if name not in status.spared or not replica.restart]


def unstarted(status: JobStatus) -> list[ReplicaStatus]:
    """Return the replicas that the job needs and whose program does not run yet."""
    return [replica for replica in awaited(status) if replica.state in ("starting", *NOT_READY)]


def _ends(failed: Iterable[ReplicaChanged]) -> str:
    return listed([f"{failure.replica} with {how_it_ended(failure)}" for failure in failed])


def listed(names: Sequence[str]) -> str:
    """Return names as one text: the first ten, and the number of the others."""
    more = len(names) - _SHOWN_REPLICAS
    return ", ".join(names[:_SHOWN_REPLICAS]) + (f" and {more} more" if more > 0 else "")
