"""Specification -> the replicas of the job, what each may use, and what each must know of the others. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kfp_distributed.components.train.specification import DistributionSpecification, DistributionType
from kfp_distributed.trainers.runtime.job import REPLICA_VARIABLE

_PLAIN = DistributionSpecification()

LAST_CALL_SECONDS = 10
"""How long the processes of an elastic PyTorch job wait for more when there are enough. Later ones interrupt them."""


@dataclass(frozen=True)
class Resources:
    """Limits of one replica: Kubernetes quantities, None where the cluster decides; `gpus` of `gpu_resource`."""

    cpus: str | None
    memory: str | None
    gpus: int
    gpu_resource: str


@dataclass(frozen=True)
class Replica:
    """One process of the job, one pod on a cluster.

    Attributes:
        role: "worker", "chief", "ps", "evaluator", "launcher" or "master".
        index: its number among the replicas of its role, from 0.
        resources: what it may use.
        serves: whether it never ends by itself.
    """

    role: str
    index: int
    resources: Resources
    serves: bool = False

    @property
    def name(self) -> str:
        """The name within the job, such as "worker-0"."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class Topology:
    """The replicas of a job.

    Attributes:
        distribution_type: the type of job.
        replicas: all of them, the leader's role first, each role by index.
        leader: the replica whose end is the job's end.
        data_replicas: the replicas that read training shards, in the order of their ranks. The MPI workers are
            those whose processes do.
        restart_alone: the replicas that may be restarted while the others go on; if another fails, all restart.
    """

    distribution_type: DistributionType
    replicas: tuple[Replica, ...]
    leader: str
    data_replicas: tuple[str, ...]
    restart_alone: frozenset[str]

    @property
    def spared(self) -> frozenset[str]:
        """The replicas whose end fails nothing: the workers of an elastic MPI job, of which its launcher judges."""
        return self.restart_alone if self.distribution_type == "MPI" else frozenset()


def plan_topology(spec: DistributionSpecification) -> Topology:
    """The replicas that `spec` asks for."""
    job, servers, gpu = spec.distribution_type, spec.number_of_parameter_servers, spec.gpu_resource
    worker = Resources(spec.worker_cpus, spec.worker_memory, spec.worker_gpus, gpu)
    # A chief and an MPI launcher coordinate; a PyTorch master is rank 0 and trains as the workers do.
    launcher = Resources(spec.launcher_cpus, spec.launcher_memory, 0, gpu)
    roles: tuple[tuple[str, int, Resources, bool], ...] = (
        ("launcher", job == "MPI", launcher, False),
        ("master", job == "PyTorch", replace(launcher, gpus=spec.worker_gpus), False),
        ("chief", servers > 0, launcher, False),
        ("ps", servers, Resources(spec.ps_cpus, spec.ps_memory, 0, gpu), True),
        ("worker", spec.number_of_workers, worker, servers > 0 or job == "MPI"),
        ("evaluator", spec.evaluator, worker, False),
    )
    replicas = tuple(
        Replica(role, index, resources, serves) for role, count, resources, serves in roles for index in range(count)
    )
    readers = (each.name for each in replicas if each.role in ("master", "worker"))
    # Under a chief, workers hold nothing that a restarted one would lack; a parameter server holds the weights. An
    # elastic job does with fewer, but not without the master or launcher, where they meet.
    free = servers or spec.min_workers
    alone = (each.name for each in replicas if each.role == "evaluator" or (free and each.role == "worker"))
    return Topology(job, replicas, replicas[0].name, tuple(readers), frozenset(alone))


def replica_environment(
    topology: Topology,
    replica_name: str,
    addresses: Mapping[str, str],
    spec: DistributionSpecification = _PLAIN,
) -> dict[str, str]:
    """The environment of a replica, as training-operator 1.9 sets it, and its name in KFP_DISTRIBUTED_REPLICA.

    Args:
        topology: the job's replicas.
        replica_name: one of them, such as "worker-0".
        addresses: "host:port" of every replica by name. A Job and MPI need none.
        spec: what the job was made of. WORLD_SIZE counts the processes of each replica, while RANK is the replica's
            own, as torchrun's node rank is.

    Raises:
        ValueError: there is no such replica.
        KeyError: an address that is needed is missing.
    """
    job, replicas = topology.distribution_type, topology.replicas
    rank = [each.name for each in replicas].index(replica_name)
    environment = {REPLICA_VARIABLE: replica_name}
    if job == "TF" and len(replicas) > 1:
        cluster: dict[str, list[str]] = {}
        for each in replicas:
            cluster.setdefault(each.role, []).append(addresses[each.name])
        task = {"type": replicas[rank].role, "index": replicas[rank].index}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
    if job == "PyTorch":
        environment |= _torch_environment(topology, rank, addresses[topology.leader], spec)
    return environment


def _torch_environment(
    topology: Topology, rank: int, leader_address: str, spec: DistributionSpecification
) -> dict[str, str]:
    """The variables of PyTorch, and those of torchrun, PET_..., for several processes and for elastic training."""
    host, _, port = leader_address.rpartition(":")
    place = {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port}  # Of an IPv6 address the host is in brackets.
    replicas = len(topology.replicas)
    environment = {
        **place,
        **{f"PET_{key}": value for key, value in place.items()},
        "WORLD_SIZE": str(replicas * spec.slots_per_worker),
        "RANK": str(rank),
        "PET_NPROC_PER_NODE": str(spec.slots_per_worker),
        "PET_NNODES": str(replicas),
        "PET_NODE_RANK": str(rank),
        "PYTHONUNBUFFERED": "1",
    }
    if spec.min_workers and spec.max_workers:
        environment |= {
            "PET_NNODES": f"{spec.min_workers + 1}:{spec.max_workers + 1}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": leader_address,
            # On one machine all would take themselves for the host.
            "PET_RDZV_CONF": f"last_call_timeout={LAST_CALL_SECONDS},is_host={int(not rank)}",
            "PET_MAX_RESTARTS": str(spec.restart_limit),
        }
    return environment
