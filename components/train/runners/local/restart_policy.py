"""What is to be done with the replicas of a local job: what a cluster's training operator decides there. Pure.

As under the operators' restart policy ExitCode, a replica that was killed, or ended with an exit code of 128 or more,
is started again, and exit codes from 1 to 127 are for good.
"""

from collections.abc import Mapping, Set
from typing import Literal, NamedTuple

from kfp_distributed.components.train.failures import FOR_GOOD, SAME_MOMENT_SECONDS, root_failure
from kfp_distributed.components.train.job import ReplicaChanged
from kfp_distributed.components.train.topology import Topology

END_GRACE_SECONDS = 30.0
"""How long the others may take to end by themselves when the leader has."""


class Step(NamedTuple):
    """The next thing to do: with which replicas, and why."""

    action: Literal["stop", "restart", "succeed", "fail"]
    replicas: tuple[str, ...] = ()
    reason: str = ""


def next_step(
    topology: Topology,
    last: Mapping[str, ReplicaChanged],
    now: float,
    restart_limit: int,
    taken: Set[str] = frozenset(),
) -> Step | None:
    """Decides what to do now.

    Args:
        topology: All replicas of the job.
        last: The last thing that happened to each replica, by its name.
        now: The time, on the clock of these.
        restart_limit: How often each replica may be started again.
        taken: The failed replicas on whose port somebody else listens.

    Returns:
        None where nothing is to be done but to wait.
    """
    leader = last[topology.leader]
    done = leader.state == "succeeded"
    active = tuple(name for name, each in last.items() if each.state in ("starting", "running"))
    failed = [each for each in last.values() if each.state == "failed"]
    if done:
        # The work is done: what is killed, or fails after that, changes nothing. What failed before counts.
        failed = [each for each in failed if each.time <= leader.time and not _is_retryable(each)]
    if failed:
        # What failed first may be seen last, and a peer may not get over it: that decides who starts again.
        if active and now - min(each.time for each in failed) < SAME_MOMENT_SECONDS:
            return None
        root = root_failure(failed)
        if not (taken or _is_retryable(root)):
            return Step("fail", tuple(last), FOR_GOOD)
        names = tuple(each.replica for each in failed)
        if taken or not topology.restart_alone.issuperset(names):
            names = tuple(last)
        if max(last[name].restart for name in names) >= restart_limit:
            return Step("fail", tuple(last), f"The restarts that restart_limit allows ({restart_limit}) are used up.")
        why = f"the port of {', '.join(sorted(taken))} is taken" if taken else f"{root.replica} failed"
        return Step("restart", names, why)
    if not done:
        return None
    if serving := tuple(each.name for each in topology.replicas if each.serves and each.name in active):
        return Step("stop", serving, f"{leader.replica} is done")
    if active and now - leader.time >= END_GRACE_SECONDS:
        return Step("stop", active, f"still running {END_GRACE_SECONDS:g} s after {leader.replica} was done")
    return None if active else Step("succeed")


def _is_retryable(end: ReplicaChanged) -> bool:
    return end.signal is not None or (end.exit_code or 0) >= 128
