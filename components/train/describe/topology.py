"""Plan the replicas of a job from its specification: their roles, resources and environment. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kfp_distributed.components.train.describe.specification import DistributionSpecification, DistributionType
from kfp_distributed.trainers.runtime.job_description import REPLICA_VARIABLE

LAST_CALL_SECONDS = 10
"""Seconds that an elastic PyTorch job waits for more processes once it has `min_workers`. A process that joins later
interrupts the training."""


@dataclass(frozen=True)
class Resources:
    """Resource limits of one replica.

    Attributes:
        cpus: CPU limit as a Kubernetes quantity; None for the cluster's default.
        memory: Memory limit, likewise.
        gpus: Number of GPUs.
        gpu_resource: Resource name of a GPU.
    """

    cpus: str | None
    memory: str | None
    gpus: int
    gpu_resource: str


@dataclass(frozen=True)
class Replica:
    """One replica of a job: a pod of a cluster or a process of this machine.

    Attributes:
        role: "worker", "chief", "ps", "evaluator", "launcher", "master" or, of a Dask cluster, "scheduler".
        index: Index among the replicas of the same role, from 0.
        resources: Resource limits.
        serves: Whether the replica runs until it is stopped, as a parameter server does.
    """

    role: str
    index: int
    resources: Resources
    serves: bool = False

    @property
    def name(self) -> str:
        """Name within the job, such as "worker-0"."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class Topology:
    """The replicas of a job.

    Attributes:
        distribution_type: Type of the job.
        replicas: All replicas, the leader's role first, each role ordered by index.
        leader: Name of the replica whose end is the end of the job.
        data_replicas: Names of the replicas that read training shards, ordered by rank. For MPI these are the workers.
        restart_alone: Names of the replicas that are restarted individually. If any other replica fails, all replicas
            restart.
        optional: Names of the replicas that the job can do without, whether they start late, never, or end. Default:
            none.
    """

    distribution_type: DistributionType
    replicas: tuple[Replica, ...]
    leader: str
    data_replicas: tuple[str, ...]
    restart_alone: frozenset[str]
    optional: frozenset[str] = frozenset()

    @property
    def spared(self) -> frozenset[str]:
        """Names of the replicas whose failure does not fail the job: optional ones, and workers of an elastic MPI job.

        The launcher of an MPI job decides whether enough workers are left.
        """
        return self.restart_alone if self.distribution_type == "MPI" else self.optional


def plan_topology(spec: DistributionSpecification) -> Topology:
    """Return the replicas of a job with this specification."""
    distribution_type, servers = spec.distribution_type, spec.number_of_parameter_servers
    gpu = spec.gpu_resource
    worker = Resources(spec.worker_cpus, spec.worker_memory, spec.worker_gpus, gpu)
    # A chief and an MPI launcher coordinate; a PyTorch master is rank 0 and trains like the workers.
    launcher = Resources(spec.launcher_cpus, spec.launcher_memory, 0, gpu)
    roles: tuple[tuple[str, int, Resources, bool], ...] = (
        ("launcher", distribution_type == "MPI", launcher, False),
        ("master", distribution_type == "PyTorch", replace(launcher, gpus=spec.worker_gpus), False),
        ("chief", servers > 0, launcher, False),
        ("ps", servers, Resources(spec.ps_cpus, spec.ps_memory, 0, gpu), True),
        ("worker", spec.number_of_workers, worker, servers > 0 or distribution_type == "MPI"),
        ("evaluator", spec.evaluator, worker, False),
    )
    replicas = tuple(
        Replica(role, index, resources, serves) for role, count, resources, serves in roles for index in range(count)
    )
    readers = tuple(replica.name for replica in replicas if replica.role in ("master", "worker"))
    # Workers of a chief have no state of their own: the parameter servers have the weights. Workers of an elastic job
    # may be fewer for a while, but need the master or the launcher for their rendezvous.
    restart_roles = ("worker", "evaluator") if servers or spec.min_workers else ("evaluator",)
    restart_alone = frozenset(replica.name for replica in replicas if replica.role in restart_roles)
    return Topology(distribution_type, replicas, replicas[0].name, readers, restart_alone)


def replica_environment(
    topology: Topology,
    replica_name: str,
    addresses: Mapping[str, str],
    spec: DistributionSpecification,
) -> dict[str, str]:
    """Return the environment variables that training-operator 1.9 sets in a replica, and KFP_DISTRIBUTED_REPLICA.

    Args:
        topology: Replicas of the job.
        replica_name: Name of the replica, such as "worker-0".
        addresses: "host:port" of every replica, by name. A Job and MPI need none.
        spec: Specification of the job. WORLD_SIZE counts processes (slots_per_worker in each replica), but RANK is the
            index of the replica, which torchrun uses as node rank.

    Raises:
        ValueError: There is no such replica.
        KeyError: A required address is missing.
    """
    distribution_type, replicas = topology.distribution_type, topology.replicas
    rank = [replica.name for replica in replicas].index(replica_name)
    environment = {REPLICA_VARIABLE: replica_name}
    if distribution_type == "TF" and len(replicas) > 1:
        cluster: dict[str, list[str]] = {}
        for replica in replicas:
            cluster.setdefault(replica.role, []).append(addresses[replica.name])
        task = {"type": replicas[rank].role, "index": replicas[rank].index}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
    if distribution_type == "PyTorch":
        environment |= _torch_environment(topology, rank, addresses[topology.leader], spec)
    return environment


def _torch_environment(
    topology: Topology, rank: int, leader_address: str, spec: DistributionSpecification
) -> dict[str, str]:
    """Return the variables that torch.distributed reads, and PET_*, which configure torchrun."""
    host, _, port = leader_address.rpartition(":")
    master = {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port}  # The host of an IPv6 address is in brackets.
    replicas = len(topology.replicas)
    environment = {
        **master,
        **{f"PET_{key}": value for key, value in master.items()},
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
            # Without is_host every replica on one machine would host the rendezvous.
            "PET_RDZV_CONF": f"last_call_timeout={LAST_CALL_SECONDS},is_host={int(not rank)}",
            "PET_MAX_RESTARTS": str(spec.restart_limit),
        }
    return environment
