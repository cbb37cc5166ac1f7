"""Count the restarts and preemptions of a job, and judge them by its limits. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.run.conclusions.failures import RECENT_SECONDS, STORE_DID_NOT_ANSWER
from kfp_distributed.components.train.run.facts import LogLine, moment
from kfp_distributed.trainers.runtime.monitoring.samples import split_sample


@dataclass(frozen=True)
class Restarts:
    """Restarts of the replicas of a job that count for its limits.

    Attributes:
        specification: The limits of the job.
        restarts: Restarts after failures since the newest checkpoint changed, by replica. Preemptions and outages of
            the object store do not count.
        preemptions: Number of preemptions of the job.
        checkpoint: Name of the newest checkpoint at the last counted failure; "" if there was none.
        preempted: Time of the last preemption that was counted; None before the first.
        store_has_answered: Whether the object store is known to have answered a replica of the job.
    """

    specification: DistributionSpecification
    restarts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    preemptions: int = 0
    checkpoint: str = ""
    preempted: float | None = None
    store_has_answered: bool = False

    def after_failure(self, checkpoint: str) -> "Restarts":
        """Return the counts after a failure that is not a preemption.

        Args:
            checkpoint: Name of the newest complete checkpoint, such as "00000003"; "" if unknown. If it is newer than
                at the previous failure, the training has advanced, and the restarts count from 0.
        """
        return replace(self, restarts={}, checkpoint=checkpoint) if checkpoint > self.checkpoint else self

    def after_preemption(self, time: float, begun: float) -> "Restarts":
        """Return the counts after a preemption.

        Replicas that are preempted within `RECENT_SECONDS` count as one preemption, such as those of a drained node. A
        replica that has started since the last counted preemption is preempted anew.

        Args:
            time: Time of the preemption.
            begun: Time when this start of the preempted replica began.
        """
        if self.preempted is not None and time - self.preempted <= RECENT_SECONDS and begun <= self.preempted:
            return self
        return replace(self, preemptions=self.preemptions + 1, preempted=time)

    def after_restart(self, names: Iterable[str]) -> "Restarts":
        """Return the counts after replicas were restarted because of a failure."""
        return replace(self, restarts={**self.restarts, **{name: self.restarts.get(name, 0) + 1 for name in names}})

    def after_answer(self) -> "Restarts":
        """Return the counts after it is known that the object store has answered a replica."""
        return replace(self, store_has_answered=True)

    def number(self, names: Iterable[str]) -> int:
        """Return the largest number of counted restarts of these replicas."""
        return max((self.restarts.get(name, 0) for name in names), default=0)

    def can_restart(self, names: Iterable[str]) -> bool:
        """Return whether each of these replicas may be restarted after a failure."""
        return self.number(names) < self.specification.restart_limit

    @property
    def can_be_preempted(self) -> bool:
        """Whether the preemptions so far are within preemption_limit."""
        limit = self.specification.preemption_limit
        return limit is None or self.preemptions <= limit

    def next_restart(self, names: Iterable[str]) -> str:
        """Return the number of the next restart of these replicas as text, such as "restart 2 of 3"."""
        return f"restart {self.number(names) + 1} of {self.specification.restart_limit}"

    @property
    def last_preemption(self) -> str:
        """The number of the last preemption as text, such as "preemption 5" or "preemption 2 of 4"."""
        limit = self.specification.preemption_limit
        return f"preemption {self.preemptions}" + ("" if limit is None else f" of {limit}")

    @property
    def restart_limit_reached(self) -> str:
        """Why a job ends whose replicas may not be restarted any more, as a sentence."""
        return f"Restart limit reached (restart_limit={self.specification.restart_limit})."

    @property
    def preemption_limit_reached(self) -> str:
        """Why a job ends that was preempted too often, as a sentence."""
        return f"Preemption limit reached (preemption_limit={self.specification.preemption_limit})."


def answer_time(line: LogLine) -> float | None:
    """Return when the object store last answered a replica, in seconds since 1970, if a line is a sample that says so.

    Returns:
        None for any other line.
    """
    sample = split_sample(line.line)[1] if " store=" in line.line else None
    return None if sample is None or sample.store_seconds is None else moment(line) - sample.store_seconds


def outage_restart(restarted: str, replica: str) -> str:
    """Return the text of a restart after an outage of the object store. It has no number, because it has no limit.

    Args:
        restarted: What is restarted, such as "all replicas".
        replica: Name of the replica whose object store did not answer.
    """
    return f"restart: {restarted} ({replica}: {STORE_DID_NOT_ANSWER})"
