"""Facts -> where the job stands, when it is to end, and why it failed. Pure.

Time is in seconds since 1970, as the facts have it.
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
"""How many lines of each replica are kept, to be shown where it fails."""

TIMELINE_LENGTH = 1000
"""How many entries of the timeline are kept, the newest."""

_SHOWN_REPLICAS = 10
_NOT_READY = ("queued", "waiting", "pulling", "installing")


@dataclass(frozen=True)
class ReplicaStatus(ReplicaChanged):
    """Where one replica stands: the last change, and what it printed.

    Attributes:
        since: When it came into this state.
        heard: When it last printed a line since its start; None if it has not.
        tail: Its last lines since its start.
    """

    since: float = 0.0
    heard: float | None = None
    tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobStatus:
    """Where a job stands.

    Attributes:
        job: Its name.
        leader: The replica whose end is the job's end.
        slots_per_worker: Processes of each replica that trains.
        started: When the job was started.
        attempt: When the replicas could last begin to start: the job's start, the last restart of all, or when the
            last of them had a node, an image and its packages.
        replicas: All replicas by name.
        running: When all replicas were running for the first time.
        timeline: What happened, as (time, text).
        ended: How it ended; None while it has not.
        failures: The last failure of each replica that had any; it may have been started again since.
        spared: The replicas whose failure is not why the job failed.
        title: Task and run of the job, for people; "" where it has none.
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
    """The status of a job that is about to start."""
    replicas = {each.name: ReplicaStatus(now, each.name, "waiting", since=now) for each in job.topology.replicas}
    leader, slots, spared = job.topology.leader, job.specification.slots_per_worker, job.topology.spared
    title = "{task} of run {run}".format_map(job.labels) if job.labels else ""
    spans = {name: (Span("waiting", now),) for name in replicas}
    return JobStatus(job.name, leader, slots, now, now, replicas, spared=spared, title=title, spans=spans)


def advance(status: JobStatus, fact: Fact) -> JobStatus:
    """The status after one more fact."""
    if isinstance(fact, LogLine):
        # A worker that somebody added to an elastic job was not planned: it is only heard.
        known = fact.replica in status.replicas
        before = status.replicas[fact.replica if known else status.leader]
        tail = (*before.tail, fact.line)[-LAST_LINES:] if known else before.tail
        after = replace(before, heard=fact.time, tail=tail)
        return replace(status, replicas={**status.replicas, before.replica: after})
    if isinstance(fact, ReplicaSample):
        return replace(status, samples=add_sample(status.samples, fact))
    if isinstance(fact, ReplicaChanged):
        before = status.replicas[fact.replica]
        is_restart = fact.restart > before.restart
        status = replace(status, spans=add_change(status.spans, fact, is_restart=is_restart))
        since = before.since if fact.state == before.state else fact.time
        # The peak is that of all its starts. Not every fact knows how long pip took.
        install_seconds = fact.install_seconds or before.install_seconds
        fact = replace(fact, peak_memory=max(fact.peak_memory, before.peak_memory), install_seconds=install_seconds)
        tail = before.tail if fact.restart == before.restart else ()
        after = ReplicaStatus(**vars(fact), since=since, heard=before.heard, tail=tail)
        if before.state in _NOT_READY and fact.state not in _NOT_READY:
            status = replace(status, attempt=fact.time)
        if fact.state == "failed":
            status = replace(status, failures={**status.failures, fact.replica: after})
        # Lines that pip printed are not the program's.
        if fact.state == "starting" or before.state == "installing" or fact.restart > before.restart:
            after = replace(after, heard=None)
            if fact.replica not in status.spared:
                status = replace(status, attempt=fact.time)
            if fact.replica == status.leader:
                # What the launcher of MPI prints counts as the workers', and they start with it.
                silent = {name: replace(each, heard=None) for name, each in status.replicas.items()}
                status = replace(status, replicas=silent)
        status = replace(status, replicas={**status.replicas, fact.replica: after})
        if status.running is None and not _unstarted(status):
            status = replace(status, running=fact.time)
    elif isinstance(fact, JobEnded):
        status = replace(status, ended=fact)
    text = describe(fact)
    return replace(status, timeline=(*status.timeline, (fact.time, text))[-TIMELINE_LENGTH:]) if text else status


def describe(fact: Fact) -> str:
    """A fact about the job in words; "" for log lines and for what is not worth a line."""
    if isinstance(fact, JobEvent):
        return fact.text
    if isinstance(fact, JobEnded):
        return "the job succeeded" if fact.succeeded else f"the job failed: {fact.reason}"
    if not isinstance(fact, ReplicaChanged) or (fact.state in ("queued", "waiting", "starting") and not fact.reason):
        return ""
    how = how_it_ended(fact) if fact.state == "failed" else fact.reason
    return f"{fact.replica}: {fact.state}" + (f" ({how})" if how else "")


def failure_cause(status: JobStatus) -> str:
    """Why an ended job failed: the root's last lines, then a few sentences: the root, what followed, the verdict."""
    sentences = [status.ended.reason] if status.ended else []
    if lost := [each for name, each in status.failures.items() if name in status.spared]:
        sentences.insert(0, f"Lost workers: {_ends(lost)}.")
    failed = [each for name, each in status.replicas.items() if each.state == "failed" and name not in status.spared]
    if not failed:
        since = max(each.heard or status.attempt for each in status.replicas.values()) - RECENT_SECONDS
        failures = [
            each
            for name, each in status.failures.items()
            if name not in status.spared
            and (each.time >= since or status.replicas[name].state not in ("running", "succeeded"))
        ]
        failed = [each for each in failures if max(each.time for each in failures) - each.time <= SAME_MOMENT_SECONDS]
    if not failed:
        return " ".join(sentences)
    root: ReplicaStatus = root_failure(failed)  # type: ignore[assignment]  # It is one of those it is given.
    if others := [each for each in failed if each is not root]:
        sentences.insert(0, f"Then failed {_ends(others)}.")
    after = format_seconds(root.time - status.started)
    first = f"{root.replica} failed with {how_it_ended(root)}, {after} after the start of the job"
    shown = [root]
    if worker := status.replicas.get(failed_worker(root.tail, status.slots_per_worker)):
        shown, first = [worker, root], f"{first}, as a process of {worker.replica} did"
    lines = [str(LogEntry(root.time, "ERROR", each.replica, line)) for each in shown for line in each.tail]
    return "\n".join([*lines, " ".join([f"{first}.", *sentences])])


def expired_budget(status: JobStatus, budgets: DistributionSpecification, now: float) -> str:
    """The time budget that ran out, in a sentence that names it and what each replica does; "" if none.

    A start begins when all replicas have a node, an image and their packages, and lasts until all run and one has
    printed a line; from then on silence counts; when the leader is done, from its end on.
    """
    replicas = _awaited(status)
    heard = max((each.heard for each in replicas if each.heard is not None), default=None)
    queued, waiting, pulling, installing = (
        min((_waits_since(each, replicas) for each in replicas if each.state == state), default=None)
        for state in _NOT_READY
    )
    done = status.replicas[status.leader].state == "succeeded"
    placed = not done and all(each.state not in _NOT_READY for each in replicas)
    since = {
        "queue_timeout": queued,
        "scheduling_timeout": None if done else waiting,
        "image_pull_timeout": None if done else pulling,
        "install_timeout": None if done else installing,
        "start_timeout": status.attempt if placed and (heard is None or _unstarted(status)) else None,
        "silence_timeout": max(status.replicas[status.leader].since, heard or 0.0)
        if done
        else heard
        if placed
        else None,
        "running_timeout": status.running,
        "total_timeout": status.started,
    }
    for name, begun in since.items():
        limit = getattr(budgets, name)
        if begun is not None and limit is not None and now - begun >= limit:
            silent = [
                f"{each.replica} silent for {format_seconds(now - (each.heard or each.time))}"
                for each in status.replicas.values()
                if each.state == "running"
            ]
            late = [
                f"{each.replica} not started" + (f" ({each.reason})" if each.reason else "")
                for each in _unstarted(status)
            ]
            return f"{name} ran out after {format_seconds(limit)}: {_listed(late + silent) or 'no replica is running'}."
    return ""


def final_failure(status: JobStatus, specification: DistributionSpecification) -> str:
    """Why an MPI launcher is not to be started again, which its operator would do: a rank has failed for good; else "".

    A launcher that names no worker may have reached none. One of an elastic job ends as a lost connection does, too.
    """
    now = status.replicas.get("launcher-0")
    end = now if now and now.state == "failed" else status.failures.get("launcher-0")
    if not end or end.reason or status.spared or not specification.restart_limit:
        return ""
    is_final = 0 < (end.exit_code or 0) < 128 and failed_worker(end.tail, status.slots_per_worker)
    return FOR_GOOD if is_final else ""


def _awaited(status: JobStatus) -> list[ReplicaStatus]:
    """The replicas that must be there: a worker that was lost, and is spared, may come again or not."""
    return [each for name, each in status.replicas.items() if name not in status.spared or not each.restart]


def _waits_since(replica: ReplicaStatus, replicas: Sequence[ReplicaStatus]) -> float:
    """Since when only the cluster keeps a replica waiting: the launcher of MPIJob v2beta1 comes after all workers."""
    others = [each for each in replicas if replica.replica == "launcher-0" != each.replica]
    if any(each.state in _NOT_READY for each in others):
        return math.inf
    return max(each.since for each in (replica, *others))


def _unstarted(status: JobStatus) -> list[ReplicaStatus]:
    return [each for each in _awaited(status) if each.state in ("starting", *_NOT_READY)]


def _ends(failed: Iterable[ReplicaChanged]) -> str:
    return _listed([f"{each.replica} with {how_it_ended(each)}" for each in failed])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_REPLICAS
    return ", ".join(names[:_SHOWN_REPLICAS]) + (f" and {more} more" if more > 0 else "")
