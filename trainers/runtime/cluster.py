"""The place of this process in its job: in the cluster that TF_CONFIG describes, or among the ranks of a job."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kfp_distributed.trainers.runtime.torchrun import is_rank


class Rank(NamedTuple):
    """The place of a process among those that mpirun, horovodrun or torchrun has started.

    Attributes:
        rank: Its number, from 0.
        size: How many there are.
        local_size: How many of them are in the same pod, or on the same machine.
    """

    rank: int
    size: int
    local_size: int


@dataclass(frozen=True)
class Cluster:
    """A TensorFlow cluster.

    Attributes:
        addresses: The host:port of each task, by role; empty where this process is alone.
        role: This process's role.
        index: Its number among those of its role.
    """

    addresses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    role: str = "worker"
    index: int = 0

    @property
    def workers(self) -> int:
        """How many workers there are, this process counted where it is alone."""
        return len(self.addresses.get("worker", [""]))

    @property
    def neighbours(self) -> int:
        """How many of the cluster's processes have this one's host name, itself included."""
        hosts = {role: [address.rpartition(":")[0] for address in tasks] for role, tasks in self.addresses.items()}
        return sum(tasks.count(hosts[self.role][self.index]) for tasks in hosts.values()) or 1

    def training_config(self) -> str:
        """Return TF_CONFIG as TensorFlow's strategies want it: with no evaluator among the tasks."""
        tasks = {role: hosts for role, hosts in self.addresses.items() if role != "evaluator"}
        return json.dumps({"cluster": tasks, "task": {"type": self.role, "index": self.index}, "environment": "cloud"})


def read_cluster(environment: Mapping[str, str]) -> Cluster:
    """Read the TF_CONFIG of an environment; without one the process is alone."""
    if not environment.get("TF_CONFIG"):
        return Cluster()
    config = json.loads(environment["TF_CONFIG"])
    return Cluster(config["cluster"], config["task"]["type"], int(config["task"]["index"]))


def read_rank(environment: Mapping[str, str]) -> Rank | None:
    """Read the rank that OpenMPI's mpirun, horovodrun over Gloo or torchrun has given a process; None without one."""
    for prefix in ("OMPI_COMM_WORLD_", "HOROVOD_"):
        if environment.get(f"{prefix}RANK"):
            return Rank(*(int(environment[prefix + name]) for name in ("RANK", "SIZE", "LOCAL_SIZE")))
    if is_rank(environment):
        return Rank(*(int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")))
    return None


def processors(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many processors there are, or as many as a container's limit (cgroup v2) is worth, rounded up."""
    count = os.cpu_count() or 1
    with suppress(OSError, ValueError):  # Without a limit the first word is "max".
        quota, period = map(int, limit.read_text().split())
        count = min(count, math.ceil(quota / period))
    return count


def check_size(environment: Mapping[str, str], size: int) -> None:
    """Refuse that Horovod sees fewer ranks than there are: each of them would train for itself."""
    place = read_rank(environment)
    if place and place.size != size:
        raise RuntimeError(f"Horovod sees {size} of {place.size} ranks: it was built without MPI")
