"""Decide when to restart or stop the replicas of a local job, as the training operator does on a cluster. Pure.

The rules are those of the operator's restartPolicy ExitCode. A replica that was killed or exited with 128 or more is
restarted. Exit codes 1 to 127 are permanent failures. Restarts after an outage of the object store have no limit.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Literal, NamedTuple

from kfp_distributed.components.train.describe.topology import Topology
from kfp_distributed.components.train.run.conclusions.failures import (
    FOR_GOOD,
    SAME_MOMENT_SECONDS,
    STORE_DID_NOT_ANSWER,
    own_cause,
    root_failure,
)
from kfp_distributed.components.train.run.conclusions.restarts import Restarts
from kfp_distributed.components.train.run.facts import ReplicaChanged

END_GRACE_SECONDS = 30.0
"""Seconds that the other replicas may take to end after the leader has succeeded."""


class Decision(NamedTuple):
    """An action on replicas.

    Attributes:
        action: "stop" or "restart" the replicas, or end the job: "succeed" or "fail".
        replicas: Names of the replicas that the action affects.
        reason: Reason of the action.
        counts: Whether a restart counts for restart_limit.
    """

    action: Literal["stop", "restart", "succeed", "fail"]
    replicas: tuple[str, ...] = ()
    reason: str = ""
    counts: bool = True


def decide(
    topology: Topology,
    last: Mapping[str, ReplicaChanged],
    now: float,
    restarts: Restarts,
    taken: Set[str] = frozenset(),
) -> Decision | None:
    """Decide what to do with the replicas.

    Args:
        topology: Replicas of the job.
        last: Last change of each replica, by name.
        now: Current time, of the same clock as the changes.
        restarts: Restarts so far, and their limit.
        taken: Names of failed replicas whose port was taken by another process. Default: none.

    Returns:
        The decision; None to wait.
    """
    leader = last[topology.leader]
    active = tuple(name for name, change in last.items() if change.state in ("starting", "running"))
    failed = [change for change in last.values() if change.state == "failed"]
    if leader.state == "succeeded":
        # Only permanent failures before the end of the leader count.
        failed = [change for change in failed if change.time <= leader.time and not is_retryable(change)]
    if failed:
        # The root failure may be detected after those of its peers. It decides which replicas restart.
        if active and now - min(change.time for change in failed) < SAME_MOMENT_SECONDS:
            return None
        return _handle_failures(topology, last, failed, restarts, taken)
    if leader.state != "succeeded":
        return None
    if serving := tuple(replica.name for replica in topology.replicas if replica.serves and replica.name in active):
        return Decision("stop", serving, f"{leader.replica} succeeded")
    if active and now - leader.time >= END_GRACE_SECONDS:
        return Decision("stop", active, f"still running {END_GRACE_SECONDS:g} s after {leader.replica} succeeded")
    return None if active else Decision("succeed")


def _handle_failures(
    topology: Topology,
    last: Mapping[str, ReplicaChanged],
    failed: Sequence[ReplicaChanged],
    restarts: Restarts,
    taken: Set[str],
) -> Decision:
    root = root_failure(failed)
    if not (taken or is_retryable(root)):
        return Decision("fail", tuple(last), FOR_GOOD)
    names = tuple(failure.replica for failure in failed)
    if taken or not topology.restart_alone.issuperset(names):
        names = tuple(last)
    if not taken and own_cause(root, restarts.store_has_answered) == "outage":
        return Decision("restart", names, f"{root.replica}: {STORE_DID_NOT_ANSWER}", counts=False)
    if not restarts.can_restart(names):
        return Decision("fail", tuple(last), restarts.restart_limit_reached)
    reason = f"the port of {', '.join(sorted(taken))} is taken" if taken else f"{root.replica} failed"
    return Decision("restart", names, reason)


def is_retryable(end: ReplicaChanged) -> bool:
    """Return whether a replica that ended so is restarted: it was killed, or exited with 128 or more."""
    return end.signal is not None or (end.exit_code or 0) >= 128
