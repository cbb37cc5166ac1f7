"""What is known of a replica: its pod, its state and its restarts. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from kfp_distributed.components.train.run.conclusions.failures import POD_DELETED
from kfp_distributed.components.train.run.facts import ReplicaChanged
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import PodState
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.record_times import happened_before

UNKNOWN = PodState("waiting")

NOT_STARTED = ("waiting", "pulling", "starting")
ENDED = ("succeeded", "failed", "stopped")


class Deletion(NamedTuple):
    """Deletion of a pod by its operator or another client.

    Attributes:
        time: Time of the deletion by the clock of the API server; None if unknown.
        is_cleanup: Whether another replica had failed or was deleted before, which means that the operator deleted the
            pod. None if not known yet.
    """

    time: datetime | None
    is_cleanup: bool | None

    @property
    def seconds(self) -> float | None:
        """Time of the deletion in seconds since 1970; None if unknown."""
        return self.time.timestamp() if self.time else None


class Record(NamedTuple):
    """Known state of a replica.

    Attributes:
        uid: UID of its pod; "" if it has none.
        created: Creation time of the pod, as the API server writes it.
        container_restarts: Restarts of the container in this pod.
        state: State of the pod.
        restart: Number of restarts of the replica.
        node: Node of the pod.
        deletion: Deletion of the pod; None if it was not deleted.
        pending_end: Time at which the pod disappeared and its last state, until it is known whether that was a failure.
        begun: Time when the pod, or this start of its container, was first reported.
        preemption: Why the cluster ends or has ended the pod; "" if it does not.
    """

    uid: str = ""
    created: str = ""
    container_restarts: int = 0
    state: PodState = UNKNOWN
    restart: int = 0
    node: str = ""
    deletion: Deletion | None = None
    pending_end: tuple[float, PodState] | None = None
    begun: float = 0.0
    preemption: str = ""

    def ends_now(self, time: float) -> "Record":
        """Return the record of a pod that was deleted and whose end is not awaited any more."""
        return self if self.pending_end else self._replace(pending_end=(time, self.state))

    def lost(self) -> PodState:
        """Return the state after the deletion of its pod, if that was a failure."""
        state = self.pending_end[1] if self.pending_end else self.state
        return state._replace(
            state="failed",
            exit_code=state.exit_code or None,
            reason=self.preemption or POD_DELETED,
            hidden_by=(),
            preempted=bool(self.preemption),
            # Of a pod that was deleted while it ran, that time is the start of its container.
            happened=(state.happened if state.state in ENDED else None) or (self.deletion and self.deletion.seconds),
        )

    def change(self, replica: str, time: float, before: "Record") -> ReplicaChanged:
        """Return the fact that a replica has changed to this record.

        Args:
            replica: Name of the replica.
            time: Time of the fact, of `clock`.
            before: The record before. Of a state that goes on, nothing tells when its reason has changed.
        """
        state = self.state
        goes_on = (before.state.state, before.restart) == (state.state, self.restart)
        return ReplicaChanged(
            time,
            replica,
            state.state,
            state.exit_code,
            reason=state.reason,
            restart=self.restart,
            node=self.node,
            peak_memory=state.peak_memory,
            install_seconds=state.install_seconds,
            preempted=state.preempted,
            happened=None if goes_on else happened_before(state.happened, time),
        )


def failed_by_sidecar(records: Mapping[str, Record]) -> str:
    """Return the name of a replica that succeeded while a sidecar failed its pod; "" if there is none."""
    states = {name: record.state for name, record in records.items()}
    return next((name for name, state in states.items() if state.state == "succeeded" and state.hidden_by), "")
