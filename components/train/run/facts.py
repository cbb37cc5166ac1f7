"""The facts that a runner yields while a job runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["queued", "waiting", "pulling", "installing", "starting", "running", "succeeded", "failed", "stopped"]

Level = Literal["INFO", "WARNING", "ERROR"]

Log = Callable[[Level, str], object]
"""Receives a line of the step's log, as level and text. Threads may call it at the same time."""


@dataclass(frozen=True)
class ReplicaChanged:
    """A replica changed its state.

    | state | meaning |
    |---|---|
    | queued | the job's queue has not admitted the job |
    | waiting | the replica has no node |
    | pulling | the node pulls the image |
    | installing | pip installs packages before the program starts |
    | starting | the process or container was created |
    | running | the program runs |
    | succeeded | the program ended with exit code 0 |
    | failed | the program ended otherwise, or the pod was lost |
    | stopped | the runner stopped the replica |

    Attributes:
        time: Seconds since 1970, of `clock`.
        replica: Name of the replica.
        state: The new state.
        exit_code: Exit code of the program, if it ended by itself.
        signal: Number of the signal that killed the program.
        reason: Reason of the state beyond exit code and signal, such as "OOMKilled"; "" if unknown.
        restart: Number of restarts of this replica.
        node: Name of its node; "" for a local replica.
        peak_memory: Peak memory of its largest process in KiB; 0 while unknown.
        install_seconds: Seconds that pip took to install its packages; 0 while unknown.
        preempted: Whether the cluster ended the replica, for example by an eviction. That is no failure of the program.
        happened: See `moment`.
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
    preempted: bool = False
    happened: float | None = None


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
        rows: Training rows that it has read since its start.
        transferred_kib: KiB of data, checkpoints and model that it has downloaded and uploaded since its start.
        store_seconds: Seconds since the last answer of the object store; None if it has not answered since its start.
        happened: See `moment`.
    """

    time: float
    replica: str
    memory_mib: float | None = None
    rows_per_second: float | None = None
    gpu_percent: float | None = None
    gpu_memory_mib: float | None = None
    rows: int | None = None
    transferred_kib: int | None = None
    store_seconds: int | None = None
    happened: float | None = None


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
    """A replica printed a line.

    Attributes:
        time: Seconds since 1970, of `clock`.
        replica: Name of the replica.
        line: Text without the line end, at most 64 KiB.
        happened: See `moment`.
        is_remark: Whether TensorFlow prints it at each start. It requires no action, so the step's log leaves it out.
    """

    time: float
    replica: str
    line: str
    happened: float | None = None
    is_remark: bool = False


@dataclass(frozen=True)
class JobEvent:
    """An event of the job, for its log and timeline.

    Attributes:
        time: Seconds since 1970, of `clock`.
        text: The event, in one line.
        level: Severity in the log.
        happened: See `moment`.
    """

    time: float
    text: str
    level: Level = "INFO"
    happened: float | None = None


@dataclass(frozen=True)
class JobAdopted:
    """The job existed before this process has read it. It is the first fact of such a job.

    Attributes:
        time: Seconds since 1970, of `clock`.
        created: Creation time of the job in seconds since 1970.
        text: The event, in one line; "" for none.
    """

    time: float
    created: float
    text: str = ""


@dataclass(frozen=True)
class Tick:
    """All facts up to this time have been yielded, except for deleted pods, whose end takes some seconds to classify.

    Yielded after each burst of facts, and at least once a second.
    """

    time: float


@dataclass(frozen=True)
class JobEnded:
    """The job ended. This is the last fact.

    Attributes:
        time: Seconds since 1970, of `clock`.
        succeeded: Whether the operator or the runner reports success. The model is checked later.
        reason: Why the job failed, as a sentence. The facts of the replicas tell which replica failed.
        happened: See `moment`.
        budget: Name of the time budget that ran out. Default: "", none.
    """

    time: float
    succeeded: bool
    reason: str = ""
    happened: float | None = None
    budget: str = ""


Fact = ReplicaChanged | ReplicaSample | LogLine | JobEvent | JobAdopted | Tick | JobEnded


def moment(fact: Fact) -> float:
    """Return the time at which a fact happened, in seconds since 1970. Logs and reports show it.

    This is `happened`, the time in a record of the cluster. It may be long before `time`, at which this process has
    read the fact. Without such a record it is `time`. Time budgets and the judgement of failures go by `time`, because
    the clocks of nodes may differ.
    """
    happened = getattr(fact, "happened", None)
    return fact.time if happened is None else float(happened)


_BOOT = time.time() - time.monotonic()


def clock() -> float:
    """Return seconds since 1970 by a monotonic clock. A change of the system time must not use up a time budget."""
    return _BOOT + time.monotonic()
