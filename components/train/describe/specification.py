"""A parsed `distribution_specification`. Pure."""

from dataclasses import dataclass
from typing import Literal

from kfp_distributed.components.train.describe.value_kinds import Pairs, shown

DistributionType = Literal["Job", "MPI", "TF", "PyTorch"]

OperatorKey = Literal["auto", "training-operator", "trainer"]
"""Value of the key `operator`: the operator that must run the job, or "auto" for one that the cluster has."""


@dataclass(frozen=True)
class DistributionSpecification:
    """How a training is distributed over replicas, with all defaults. `parse_distribution` makes it of a user's dict.

    The fields are those of `Distribution` and its subclasses under the names of the dict. Counts are numbers of
    replicas. Times are in seconds; None means no limit. CPUs and memory are canonical Kubernetes quantities; None means
    the cluster's default. Keys that do not belong to the type have a value without effect.

    Raises:
        ValueError: Two valid values contradict each other.
    """

    distribution_type: DistributionType
    number_of_workers: int
    worker_cpus: str | None
    worker_memory: str | None
    worker_gpus: int
    worker_gpu_memory: str | None
    gpu_resource: str
    launcher_cpus: str | None
    launcher_memory: str | None
    number_of_parameter_servers: int
    ps_cpus: str | None
    ps_memory: str | None
    evaluator: bool
    slots_per_worker: int
    min_workers: int | None
    max_workers: int | None
    node_selector: Pairs
    tolerations: tuple[Pairs, ...]
    shared_memory: str | None
    volumes: tuple[Pairs, ...]
    queue_name: str | None
    required_topology: str | None
    preferred_topology: str | None
    priority_class: str | None
    scheduler_name: str | None
    gang_scheduling: bool
    operator: OperatorKey
    tensorboard: bool
    restart_limit: int
    preemption_limit: int | None
    termination_grace_seconds: int
    keep_job: bool
    queue_timeout: float | None
    scheduling_timeout: float | None
    image_pull_timeout: float | None
    install_timeout: float | None
    start_timeout: float | None
    silence_timeout: float | None
    progress_timeout: float | None
    running_timeout: float | None
    total_timeout: float | None
    launcher_lost_timeout: float | None

    def __post_init__(self) -> None:
        workers = self.number_of_workers
        is_all_reduce = self.distribution_type == "TF" and not self.number_of_parameter_servers
        for name, is_invalid, reason in (
            (
                "number_of_workers",
                self.distribution_type == "Job" and workers != 1,
                "is not 1; a Job has one pod. Set distribution_type to TF, MPI or PyTorch",
            ),
            ("min_workers", (self.min_workers or 1) > workers, f"is more than number_of_workers, {workers}"),
            ("max_workers", (self.max_workers or workers) < workers, f"is less than number_of_workers, {workers}"),
            (
                "preferred_topology",
                self.preferred_topology and self.required_topology,
                "contradicts required_topology; remove one of the two",
            ),
            *(
                (
                    name,
                    is_all_reduce and getattr(self, name),
                    "is not used when number_of_parameter_servers is 0; remove it",
                )
                for name in ("ps_cpus", "ps_memory", "launcher_cpus", "launcher_memory")
            ),
        ):
            if is_invalid:
                raise ValueError(f"{name} = {shown(getattr(self, name))} {reason}")

    @property
    def ranks(self) -> int:
        """Number of processes in all workers together."""
        return self.number_of_workers * self.slots_per_worker
