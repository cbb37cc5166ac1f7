"""Names of the objects that Kubeflow Trainer and JobSet create for a TrainJob. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from kfp_distributed.components.train.describe.topology import Replica, Topology
from kfp_distributed.components.train.describe.training_job import TrainingJob

NODE = "node"
"""Name of the replicatedJob that the policies torch and mpi require."""


@dataclass(frozen=True)
class ReplicaNames:
    """Names of one replica in the cluster.

    Attributes:
        replicated_job: Entry of the JobSet, as in the label jobset.sigs.k8s.io/replicatedjob-name of the pod.
        index: Index of the pod in its Job, as in the label batch.kubernetes.io/job-completion-index.
        job: Name of the batch/v1 Job.
        host: Host name of the pod. The name of the pod is this with a random suffix, which changes with each restart.
        address: DNS name of the pod in its namespace.
    """

    replicated_job: str
    index: int
    job: str
    host: str
    address: str


@dataclass(frozen=True)
class TrainJobNames:
    """Names of the objects of one TrainJob, all in its namespace.

    Attributes:
        train_job: Name of the TrainJob, of its TrainingRuntime, its JobSet and the headless Service.
        snapshot: ConfigMap with the copy of the TrainingRuntime that Trainer uses.
        replicas: Names of each replica, by its name in the topology, such as "worker-0".
        mpi_keys: Secret with the SSH keys; None for other types of job.
        mpi_hosts: ConfigMap with the hostfile; None for other types of job.
    """

    train_job: str
    snapshot: str
    replicas: Mapping[str, ReplicaNames]
    mpi_keys: str | None = None
    mpi_hosts: str | None = None

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of the batch/v1 Jobs, in the order of the topology."""
        return tuple(dict.fromkeys(names.job for names in self.replicas.values()))


def train_job_names(job: TrainingJob) -> TrainJobNames:
    """Return the names of all objects of a TrainJob."""
    name, topology = job.name, job.topology
    replicas = {replica.name: _replica_names(name, topology, replica) for replica in topology.replicas}
    is_mpi = topology.distribution_type == "MPI"
    return TrainJobNames(
        name,
        f"{name}-runtime-snapshot",
        replicas,
        f"{name}-mpi-ssh-auth" if is_mpi else None,
        f"{name}-mpi-hostfile" if is_mpi else None,
    )


def has_one_template(topology: Topology) -> bool:
    """Return whether the master and the workers of a PyTorch job have one pod template, as the policy torch requires.

    They have two if their resources differ, or if workers are restarted alone and the master is not.
    """
    master, *workers = topology.replicas
    return not topology.restart_alone & {worker.name for worker in workers} and all(
        worker.resources == master.resources for worker in workers
    )


def _replica_names(name: str, topology: Topology, replica: Replica) -> ReplicaNames:
    replicated_job, index = replica.role, replica.index
    if topology.distribution_type == "MPI" and replica.role == "worker":
        replicated_job = NODE
    if topology.distribution_type == "PyTorch" and has_one_template(topology):
        replicated_job, index = NODE, topology.replicas.index(replica)
    host = f"{name}-{replicated_job}-0-{index}"
    return ReplicaNames(replicated_job, index, f"{name}-{replicated_job}-0", host, f"{host}.{name}")
