"""What a training job is, and the facts that a runner yields while the job runs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kfp_distributed.components.train.log_format import Level
from kfp_distributed.components.train.specification import DistributionSpecification
from kfp_distributed.components.train.topology import Topology
from kfp_distributed.trainers.runtime.job import JobDescription

State = Literal["queued", "waiting", "pulling", "installing", "starting", "running", "succeeded", "failed", "stopped"]


@dataclass(frozen=True)
class TrainingJob:
    """One job, ready to run.

    Attributes:
        name: A DNS-1035 label of at most 50 characters.
        topology: Its replicas.
        specification: Restarts, time budgets, and what a cluster must know.
        description: What every replica is told.
        argv: The command of each replica that is a process of this machine; () for the entry program.
        environment: What is added to its environment.
        labels: What people find the job by: "run" and "task", each a valid value of a Kubernetes label.
    """

    name: str
    topology: Topology
    specification: DistributionSpecification
    description: JobDescription
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplicaChanged:
    """A replica is in another state: "stopped" is what we did to it, "failed" what it did itself.

    "queued" is a replica of a job that its queue has not admitted, "waiting" one that has no node yet, "pulling" one
    whose image is not there yet, "installing" one whose packages pip installs before its program starts.

    Attributes:
        time: Seconds since 1970, of `clock`.
        replica: Its name.
        state: The new state.
        exit_code: Of a process that ended by itself.
        signal: Number of the signal that killed it.
        reason: Why, where more is known than exit code and signal say.
        restart: How often this replica has been started again.
        node: The node that it is on, where there are nodes.
        peak_memory: KiB of its largest process, once that is known; else 0.
        install_seconds: Seconds that pip took to install its packages, once that is known; else 0.
    """

    time: float
    replica: str
    state: State
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    restart: int = 0
    node: str = ""
    peak_memory: int = 0
    install_seconds: float = 0.0


@dataclass(frozen=True)
class ReplicaSample:
    """Resource usage of a replica at one time. Values that the replica does not know are None.

    Attributes:
        time: Seconds since 1970, of `clock`.
        replica: Name of the replica.
        memory_mib: Memory that its processes use, in MiB.
        rows_per_second: Training rows processed per second.
        gpu_percent: Utilization of its GPUs, 0 to 100.
        gpu_memory_mib: Memory that is used on its GPUs, in MiB.
    """

    time: float
    replica: str
    memory_mib: float | None = None
    rows_per_second: float | None = None
    gpu_percent: float | None = None
    gpu_memory_mib: float | None = None


@dataclass(frozen=True)
class Span:
    """Period during which a replica was in one state.

    Attributes:
        state: The state.
        begin: Seconds since 1970.
        end: Seconds since 1970; None while the state lasts.
        reason: Reason of the state, such as "exit code 1"; "" if unknown.
    """

    state: State
    begin: float
    end: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class LogLine:
    """A replica printed a line: text without its end, at most 64 KiB of it."""

    time: float
    replica: str
    line: str


@dataclass(frozen=True)
class JobEvent:
    """An event of the job, for its log and timeline.

    Attributes:
        time: Seconds since 1970, of `clock`.
        text: The event, in one line.
        level: Severity in the log.
    """

    time: float
    text: str
    level: Level = "INFO"


@dataclass(frozen=True)
class Quiet:
    """All facts up to this time are told, but for the ends of deleted pods, which take some seconds to be judged.

    Comes after each burst of facts, and at least once a second.
    """

    time: float


@dataclass(frozen=True)
class JobEnded:
    """The last fact: what the one who manages the replicas, operator or runner, made of them.

    Attributes:
        time: Seconds since 1970, of `clock`.
        succeeded: Whether the leader did its work. Whether a model came of it is looked at later.
        reason: Why the job failed, as a sentence. Which replica it was, the replicas' own facts say.
    """

    time: float
    succeeded: bool
    reason: str = ""


Fact = ReplicaChanged | ReplicaSample | LogLine | JobEvent | Quiet | JobEnded

_BOOT = time.time() - time.monotonic()


def clock() -> float:
    """Seconds since 1970 that never jump: a wall clock that is set anew must not use up a time budget."""
    return _BOOT + time.monotonic()
