"""Progress of the replicas of one training: entries of its log, or facts of its job -> rows of a table. Pure."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kfp_distributed.components.train.run.facts import Fact, LogLine, ReplicaChanged, ReplicaSample
from kfp_distributed.components.train.run.shown_progress.log_entry import JOB, LogEntry
from kfp_distributed.trainers.runtime.monitoring.progress import Progress, parse_progress
from kfp_distributed.trainers.runtime.monitoring.samples import Sample, split_sample

_CHANGE = re.compile(
    r"(?P<replica>[a-z]+-\d+): "
    r"(?P<state>queued|waiting|pulling|installing|starting|running|succeeded|failed|stopped)(?: \((?P<reason>.*)\))?"
)
"""Entry of the step's log for a change of a replica, see `status.describe`."""

_BURST_SECONDS = 1.0
"""Epochs or steps that are read within this time of the first one do not count for the speed: they may be a backlog."""

_SERVES = re.compile(r"[a-z]+-\d+ serves")
"""Line that a parameter server prints when it is ready."""


@dataclass
class ReplicaProgress:
    """Progress of one replica.

    Attributes:
        name: Name of the replica.
        state: Its state, such as "running".
        reason: Reason of the state; "" if there is none.
        progress: Last epoch, or last step of a training that reports steps; None until there is one.
        epoch: Last epoch, of a training that also reports steps; "" otherwise.
        metrics: Latest value of each metric.
        sample: Latest resource usage. A value that the latest sample lacks is that of an earlier one.
        peak_memory_mib: Largest memory of all samples.
        first_done: Time and number of the epoch or step at which the measurement of the speed begins.
        last_time: Time of `progress`.
        burst_begin: Time of the first epoch or step that was read.
    """

    name: str
    state: str = "waiting"
    reason: str = ""
    progress: Progress | None = None
    epoch: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    sample: Sample = field(default_factory=Sample)
    peak_memory_mib: float = 0
    first_done: tuple[float, int] | None = None
    last_time: float = 0
    burst_begin: float = 0

    @property
    def estimated_end(self) -> float | None:
        """Time at which the last epoch or step is probably done; None before there is an estimate.

        It only changes when `progress` does, and is in the past if the next epoch takes longer than those before it.
        """
        if self.first_done is None or self.progress is None or self.state != "running":
            return None
        (time, number), done, total = self.first_done, self.progress.done, self.progress.total
        if done <= number or total <= done:
            return None
        seconds_of_one = (self.last_time - time) / (done - number)
        return self.last_time + seconds_of_one * (total - done)

    def seconds_left(self, now: float) -> float | None:
        """Return the estimated seconds until the last epoch or step is done, or None before there is an estimate."""
        end = self.estimated_end
        return None if end is None else max(0.0, end - now)


class TrainingProgress:
    """Progress of a training.

    Attributes:
        replicas: Its replicas by name, in the order in which they were mentioned first.
    """

    def __init__(self) -> None:
        self.replicas: dict[str, ReplicaProgress] = {}

    def add_entry(self, entry: LogEntry, now: float) -> None:
        """Add an entry of the step's log.

        Args:
            entry: The entry. Its time has whole seconds only.
            now: The time at which it was read.
        """
        if entry.replica != JOB:
            text, sample = split_sample(entry.message)
            if sample:
                self._add_sample(entry.replica, sample)
            else:
                self._add_line(entry.replica, text, now)
        elif match := _CHANGE.fullmatch(entry.message):
            self._change(match["replica"], match["state"], match["reason"] or "")

    def add_fact(self, fact: Fact) -> None:
        """Add a fact of the job."""
        if isinstance(fact, LogLine):
            self._add_line(fact.replica, fact.line, fact.time)
        elif isinstance(fact, ReplicaSample):
            self._add_sample(fact.replica, Sample(**{name: getattr(fact, name) for name in Sample._fields}))
        elif isinstance(fact, ReplicaChanged):
            self._change(fact.replica, fact.state, fact.reason)

    def stop(self) -> None:
        """Set replicas that have not ended to "stopped", because their step was stopped."""
        for replica in self.replicas.values():
            if replica.state not in ("succeeded", "failed"):
                replica.state, replica.reason = "stopped", ""

    def states(self) -> str:
        """Return how many replicas are in each state, such as "2 running, 1 waiting"."""
        counts = Counter(replica.state for replica in self.replicas.values())
        return ", ".join(f"{count} {state}" for state, count in counts.most_common())

    def _replica(self, name: str) -> ReplicaProgress:
        return self.replicas.setdefault(name, ReplicaProgress(name))

    def _change(self, name: str, state: str, reason: str) -> None:
        replica = self._replica(name)
        if state == "running" and replica.state != "running":
            # It was restarted. Its speed is measured anew, without the pause.
            replica.first_done = None
        replica.state, replica.reason = state, reason

    def _add_line(self, name: str, text: str, time: float) -> None:
        replica = self._replica(name)
        if replica.state == "waiting":
            replica.state, replica.reason = "running", ""
        progress = parse_progress(text)
        if progress and (progress.total or progress.unit == "step"):
            _add_progress(replica, progress, time)
        elif _SERVES.fullmatch(text):
            replica.reason = "serving"

    def _add_sample(self, name: str, sample: Sample) -> None:
        replica = self._replica(name)
        known = {field: value for field, value in sample._asdict().items() if value is not None}
        replica.sample = replica.sample._replace(**known)
        replica.peak_memory_mib = max(replica.peak_memory_mib, sample.memory_mib or 0)


def _add_progress(replica: ReplicaProgress, progress: Progress, time: float) -> None:
    before = replica.progress
    if before and before.unit == "step":
        # A step may report some of the metrics, such as those of the validation rows.
        replica.metrics = {**replica.metrics, **progress.metrics}
        if progress.unit == "epoch":
            replica.epoch = str(progress)
            return
    else:
        replica.metrics = progress.metrics
    if before and before.unit != progress.unit:
        replica.epoch, replica.first_done = str(before), None
    replica.progress = progress
    if replica.first_done is None or progress.done < replica.first_done[1]:
        replica.burst_begin = time
    # The lines of a backlog arrive together.
    if time - replica.burst_begin < _BURST_SECONDS:
        replica.first_done = (time, progress.done)
    replica.last_time = time
