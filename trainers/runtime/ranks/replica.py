"""What this process is in its job: its name, and what it does. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from kfp_distributed.trainers.programs.program import Program
from kfp_distributed.trainers.runtime.job_description import REPLICA_VARIABLE, JobDescription
from kfp_distributed.trainers.runtime.ranks.cluster import Cluster, Rank, is_elastic, is_rank


@dataclass(frozen=True)
class ThisReplica:
    """What this process is in its job.

    Attributes:
        job: The job.
        program: Its program.
        cluster: The processes of the job according to TF_CONFIG; without addresses for other kinds.
        rank: The rank of this process; None in jobs without ranks.
        name: Name of the replica, such as "worker-1".
        elastic: Whether the job may get more or fewer ranks while it runs.
    """

    job: JobDescription
    program: Program
    cluster: Cluster
    rank: Rank | None
    name: str
    elastic: bool

    @property
    def role(self) -> str:
        """Role of the replica, such as "worker"."""
        return self.name.rpartition("-")[0]

    @property
    def leads(self) -> bool:
        """Whether this process stores results. In an elastic job any rank may become the first, which does."""
        return self.elastic or (self.rank.rank == 0 if self.rank else self.name == self.job.leader)

    @property
    def is_served(self) -> bool:
        """Whether the parameter servers and workers of the job only serve, because the chief uses them."""
        return self.program.kind != "command" and self.job.parameter_servers > 0

    @property
    def reads(self) -> tuple[int, int] | None:
        """Index of the part of the training rows to download, and number of parts; None for no rows.

        Any rank of an elastic job may have to read any rows. A chief that runs a user's function may need all data.
        The chief of a built-in trainer leaves them to the workers. A program with rows "all" divides them itself.
        """
        if self.program.rows == "all" and part_of(self.name, self.job, self.rank):
            return 0, 1
        every_row = (0, 1) if self.leads and self.program.kind != "trainer" else None
        return (0, 1) if self.elastic else part_of(self.name, self.job, self.rank) or every_row

    @property
    def scores(self) -> tuple[int, int] | None:
        """Index of the part of the validation rows to download, and number of parts; None for no rows.

        The ranks of a PyTorch trainer score a part each. With a Keras trainer the leader, or else the evaluator, scores
        all rows. `language_model` gets all rows in each rank, and so does a function that has a parameter for their
        folder, and a command always.
        """
        if "validation_dir" not in self.program.folders:
            return None
        if self.program.reads_store and not self.elastic:
            if self.program.name.startswith("torch_"):
                return self.reads
            return (0, 1) if self.leads or self.role == "evaluator" else None
        return 0, 1

    @property
    def leader_to_leave_with(self) -> str:
        """Address of the leader if this process may be its peer in MultiWorkerMirroredStrategy; "" for others.

        Nobody knows what a command does, and its TensorFlow has ended with it.
        """
        is_peer = self.role == "worker" and not (self.leads or self.job.parameter_servers)
        leaders = self.cluster.addresses.get("chief") or self.cluster.addresses.get("worker") or ("",)
        return leaders[0] if is_peer and self.program.kind != "command" else ""

    @property
    def is_needed(self) -> bool:
        """Whether the job cannot continue without this replica, as far as is known.

        An elastic job of Horovod continues without a replica that ends, and so does a job without its evaluator, or
        without a worker if there are parameter servers. Nobody knows what a command does.
        """
        return not self.elastic and self.role != "evaluator" and self.program.kind != "command"


def replica_name(
    environment: Mapping[str, str], cluster: Cluster, job: JobDescription, rank: Rank | None = None
) -> str:
    """Return the name of this replica.

    It follows from the rank, from the runner's environment variable, or from TF_CONFIG or RANK. The default is the
    leader's.
    """
    # mpirun passes the launcher's environment to each rank, so the variable does not count.
    if rank and not (is_rank(environment) or is_elastic(environment)):
        return job.data_replicas[rank.rank * len(job.data_replicas) // rank.size]
    if environment.get(REPLICA_VARIABLE):
        return environment[REPLICA_VARIABLE]
    if cluster.addresses:
        return f"{cluster.role}-{cluster.index}"
    # An elastic job may get more workers than it was created with.
    number = int(environment.get("RANK", 0))
    return f"worker-{number - 1}" if number else job.leader


def part_of(name: str, job: JobDescription, rank: Rank | None) -> tuple[int, int] | None:
    """Return the index of the part of the rows that this rank or replica reads, and the number of parts.

    Returns:
        None if it does not read training rows.
    """
    if rank:
        return rank.rank, rank.size
    if name in job.data_replicas:
        return job.data_replicas.index(name), len(job.data_replicas)
    return None
