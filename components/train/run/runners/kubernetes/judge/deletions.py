"""Why a pod was deleted: because its job ended or restarts, or as a failure of its own. Pure."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from kfp_distributed.components.train.run.facts import ReplicaChanged
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.record_times import CLOCK_TOLERANCE
from kfp_distributed.components.train.run.runners.kubernetes.judge.failure_policy import is_retryable
from kfp_distributed.components.train.run.runners.kubernetes.judge.replica_record import ENDED, Deletion, Record
from kfp_distributed.trainers.runtime.job_description import PEER_LOST, PREEMPTED


def is_after_failure(
    replica: str, records: Mapping[str, Record], failures: Iterable[ReplicaChanged], alone: Collection[str]
) -> bool:
    """Return whether another replica has failed or was deleted, so that the cluster deletes the pod of this one.

    News of pods arrive in order, so it was earlier.

    Args:
        replica: Replica of the pod.
        records: Records of all replicas.
        failures: Recent failures of other replicas. Those of replicas that run again do not count.
        alone: Replicas that are restarted alone.
    """
    others = [record for name, record in records.items() if name != replica and name not in alone]
    lasting = [failure for failure in failures if records[failure.replica].state.state != "running"]
    return any(stops_all(failure, alone) for failure in lasting) or any(record.deletion for record in others)


def gone_before(records: Mapping[str, Record], failed: float | None, *, has_ended: bool) -> list[str]:
    """Return the replicas whose pods were deleted before another one failed, which may follow from it.

    Args:
        records: Records of all replicas.
        failed: Time of the failure by the clock of its node, in seconds since 1970; None if unknown. Of a list of pods
            only the times tell which was first.
        has_ended: Whether only pods count that have ended. The end of a preempted pod is always awaited, because
            failures follow from its preemption until then.
    """
    own = {name: record for name, record in records.items() if record.deletion and record.deletion.is_cleanup is False}
    return [
        name
        for name, record in own.items()
        if (record.pending_end or not (has_ended or record.preemption or record.state.state in ENDED))
        and (not failed or ((record.deletion and record.deletion.seconds) or failed) <= failed)
    ]


def follows(exit_code: int | None) -> bool:
    """Return whether an exit code says that a replica ended because another one ended or must end soon."""
    return exit_code in (PEER_LOST, PREEMPTED)


def is_cleanup(record: Record, succeeded: bool, end_time: datetime | None, has_failures: bool) -> bool:
    """Return whether the operator deleted a pod because the job had ended.

    The times of both decide. If they are too close, the deletion was a cleanup if the job succeeded or another replica
    had failed before. Otherwise the job failed because of the deletion. An operator preempts no pod.

    Args:
        record: Record of the replica.
        succeeded: Whether the job succeeded.
        end_time: Time at which it ended; None if unknown.
        has_failures: Whether replicas have failed shortly before.
    """
    deletion = record.deletion or Deletion(None, None)
    if record.preemption and not succeeded:
        return False
    if deletion.time and end_time and abs(deletion.time - end_time) > CLOCK_TOLERANCE:
        return deletion.time > end_time
    return succeeded or (has_failures if deletion.is_cleanup is None else deletion.is_cleanup)


def stops_with_others(record: Record, leader_has_succeeded: bool) -> bool:
    """Return whether JobSet deleted a pod because another replica has failed or the leader has succeeded.

    It did so before the TrainJob ends, which is when all pods have ended.
    """
    is_after_other = bool(record.deletion and record.deletion.is_cleanup)
    return leader_has_succeeded or (is_after_other and not record.preemption)


def stops_all(failure: ReplicaChanged, alone: Collection[str]) -> bool:
    """Return whether a failure makes the cluster stop the other replicas.

    Args:
        failure: The failure.
        alone: Replicas that are restarted alone. Only a permanent failure of one of them stops all.
    """
    return failure.replica not in alone or not is_retryable(failure.exit_code)
