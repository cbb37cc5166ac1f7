"""Reads the role and the rank of this process from its environment."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_RUN_ID = "TORCHELASTIC_RUN_ID"
"""Environment variable that torchrun sets in the processes that it starts."""


class Rank(NamedTuple):
    """The rank of a process that mpirun, horovodrun or torchrun has started.

    Attributes:
        rank: Number of the process, from 0.
        size: Number of ranks in the job.
        local_size: Number of ranks in the same pod or on the same machine.
    """

    rank: int
    size: int
    local_size: int


@dataclass(frozen=True)
class Cluster:
    """A TensorFlow cluster.

    Attributes:
        addresses: Address of each task, HOST:PORT, by role; empty if this process trains alone.
        role: Role of this process.
        index: Index of this process within its role.
    """

    addresses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    role: str = "worker"
    index: int = 0

    @property
    def workers(self) -> int:
        """Number of workers; 1 if this process trains alone."""
        return len(self.addresses.get("worker", [""]))

    @property
    def neighbours(self) -> int:
        """Number of the cluster's processes with the host name of this one, including itself."""
        hosts = {role: [address.rpartition(":")[0] for address in tasks] for role, tasks in self.addresses.items()}
        return sum(tasks.count(hosts[self.role][self.index]) for tasks in hosts.values()) or 1

    def training_config(self) -> str:
        """Return TF_CONFIG without the evaluator, as the strategies of TensorFlow expect it."""
        tasks = {role: hosts for role, hosts in self.addresses.items() if role != "evaluator"}
        return json.dumps({"cluster": tasks, "task": {"type": self.role, "index": self.index}, "environment": "cloud"})


def read_cluster(environment: Mapping[str, str]) -> Cluster:
    """Read TF_CONFIG from an environment. Without it, the process trains alone."""
    if not environment.get("TF_CONFIG"):
        return Cluster()
    config = json.loads(environment["TF_CONFIG"])
    return Cluster(config["cluster"], config["task"]["type"], int(config["task"]["index"]))


def read_rank(environment: Mapping[str, str]) -> Rank | None:
    """Read the rank that mpirun of OpenMPI, horovodrun with Gloo or torchrun has set; None if none of them has."""
    for prefix in ("OMPI_COMM_WORLD_", "HOROVOD_"):
        if environment.get(f"{prefix}RANK"):
            return Rank(*(int(environment[prefix + name]) for name in ("RANK", "SIZE", "LOCAL_SIZE")))
    if is_rank(environment):
        return Rank(*(int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")))
    return None


def is_rank(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun has started this process."""
    return _RUN_ID in environment


def has_ranks(environment: Mapping[str, str]) -> bool:
    """Return whether this replica starts ranks with torchrun instead of being a rank itself."""
    several = environment.get("PET_NPROC_PER_NODE", "1") != "1"
    return not is_rank(environment) and (several or "PET_RDZV_BACKEND" in environment)


def is_elastic(environment: Mapping[str, str]) -> bool:
    """Return whether the launcher of an elastic job has started this process."""
    return environment.get("HOROVOD_ELASTIC") == "1"


def processors(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the number of processors, or the CPU limit of the container (cgroup v2), rounded up, if that is less."""
    count = os.cpu_count() or 1
    with suppress(OSError, ValueError):  # Without a limit the first word is "max".
        quota, period = map(int, limit.read_text().split())
        count = min(count, math.ceil(quota / period))
    return count


def check_size(environment: Mapping[str, str], size: int) -> None:
    """Check that Horovod sees all ranks. Otherwise each rank would train a model of its own.

    Raises:
        RuntimeError: Horovod sees fewer ranks than the launcher has started.
    """
    rank = read_rank(environment)
    if rank and rank.size != size:
        raise RuntimeError(f"Horovod sees {size} of {rank.size} ranks: it was built without MPI")
