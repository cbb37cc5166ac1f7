"""Time budgets of a job: which one has run out, and since when the job has made no progress. Pure.

Times are in seconds since 1970, as in the facts.
"""

import math
from collections.abc import Sequence

from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.run.conclusions.replica_status import ReplicaStatus, describe_activity
from kfp_distributed.components.train.run.conclusions.status import NOT_READY, JobStatus, awaited, unstarted

_SHOWN_REPLICAS = 10


def expired_budget(status: JobStatus, budgets: DistributionSpecification, now: float) -> str:
    """Return a sentence about the time budget that ran out, and about the replicas; "" if none ran out."""
    for name, begun in _budgets_begun(status).items():
        limit = getattr(budgets, name)
        if begun is not None and limit is not None and now - begun >= limit:
            late = [
                f"{replica.replica} not started" + (f" ({replica.reason})" if replica.reason else "")
                for replica in unstarted(status)
            ]
            texts = shortened([*late, *describe_running(status, now)]) or "no replica is running"
            return f"{name} ran out after {format_seconds(limit)}: {texts}."
    return ""


def describe_running(status: JobStatus, now: float) -> list[str]:
    """Return what each running replica did last, the one first that has been silent for longest."""
    running = [replica for replica in status.replicas.values() if replica.state == "running"]
    return [describe_activity(replica, now) for replica in sorted(running, key=lambda replica: replica.heard or 0)]


def shortened(texts: Sequence[str]) -> str:
    """Return texts as one, separated by semicolons: the first ten, and the number of the others."""
    more = len(texts) - _SHOWN_REPLICAS
    return "; ".join(texts[:_SHOWN_REPLICAS]) + (f"; and {more} more" if more > 0 else "")


def stalled_since(status: JobStatus) -> float | None:
    """Return the time since which no replica has made progress; None unless all replicas run."""
    if _is_done(status) or unstarted(status):
        return None
    return max([status.attempt, *(replica.progressed or 0.0 for replica in status.replicas.values())])


def is_launched(status: JobStatus) -> bool:
    """Return whether an MPI launcher starts the ranks. A rank then ends long before the pod of its worker may."""
    return status.leader == "launcher-0"


def _budgets_begun(status: JobStatus) -> dict[str, float | None]:
    """Return the time since which each time budget runs, by its key; None for budgets that do not run.

    A start runs from the time when all replicas have a node, an image and their packages until all are running and one
    has printed a line or a sample. From then on silence counts, and progress. When all have run, the budgets of a
    replica that starts again run from the last progress of the others.
    """
    replicas = awaited(status)
    queued, waiting, pulling, installing = (
        min((_waits_since(replica, replicas) for replica in replicas if replica.state == state), default=None)
        for state in NOT_READY
    )
    is_done = _is_done(status)
    is_placed = not is_done and all(replica.state not in NOT_READY for replica in replicas)
    is_silent = all(replica.heard is None for replica in replicas)
    starts = {
        "scheduling_timeout": None if is_done else waiting,
        "image_pull_timeout": None if is_done else pulling,
        "install_timeout": None if is_done else installing,
        "start_timeout": status.attempt if is_placed and (is_silent or unstarted(status)) else None,
    }
    if status.running is not None:  # The others may train on while a lost replica comes back.
        progressed = max(replica.progressed or 0.0 for replica in replicas)
        starts = {name: begun and max(begun, progressed) for name, begun in starts.items()}
    return {
        "queue_timeout": queued,
        **starts,
        "silence_timeout": _silent_since(status, replicas) if is_placed or is_done else None,
        "progress_timeout": stalled_since(status),
        "running_timeout": status.running,
        "total_timeout": status.started,
    }


def _silent_since(status: JobStatus, replicas: Sequence[ReplicaStatus]) -> float | None:
    """Return the time of the last output of the replica that has been silent for longest.

    It is that of all replicas together where silence of a single one is no sign of a fault:

    - if none of them prints samples, as programs do that the entry program has not started;
    - in an MPI job, whose launcher prints no samples and whose workers outlive their ranks;
    - after the end of the leader, when the others end, too.
    """
    last = max((replica.heard for replica in replicas if replica.heard is not None), default=None)
    if _is_done(status):
        return max(status.replicas[status.leader].since, last or 0.0)
    sampled = [
        replica.heard
        for replica in replicas
        if replica.state == "running" and replica.sampled is not None and replica.heard is not None
    ]
    return min(sampled) if sampled and not is_launched(status) else last


def _is_done(status: JobStatus) -> bool:
    return status.replicas[status.leader].state == "succeeded"


def _waits_since(replica: ReplicaStatus, replicas: Sequence[ReplicaStatus]) -> float:
    """Return the time since which only the cluster delays a replica.

    The launcher of MPIJob v2beta1 is created after all workers are ready.
    """
    others = [other for other in replicas if replica.replica == "launcher-0" != other.replica]
    if any(other.state in NOT_READY for other in others):
        return math.inf
    return max(other.since for other in (replica, *others))
