"""Parse and validate the `distribution_specification` of `train`. Pure.

The fields of `DistributionSpecification` are the single source of all keys: each declares its kind of value, its
default and the distribution types that it belongs to. The class docstring describes each key. Parsing, error messages
and the reference documentation are derived from both. An invalid specification raises ValueError.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from kfp_distributed.components.train.describe.kinds import (
    AT_LEAST_ONE,
    BOOLEAN,
    COUNT,
    CPUS,
    GRACE,
    LIMIT,
    MAPPING,
    MEMORY,
    NODE_LABELS,
    RESOURCE_NAME,
    SECONDS,
    TOLERATIONS,
    VOLUMES,
    Kind,
    Pairs,
    choice,
    is_blank,
    object_name,
    read_entry,
    read_keys,
    shown,
)

DistributionType = Literal["Job", "MPI", "TF", "PyTorch"]
_ALL = get_args(DistributionType)
_LAUNCHED = ("MPI", "TF", "PyTorch")
_RANKED = ("MPI", "PyTorch")
_TF = ("TF",)


def _key(kind: Kind, default: object = None, types: tuple[str, ...] = _ALL) -> Any:  # noqa: ANN401 - as field()
    return field(default=default, metadata={"kind": kind._replace(types=types)})


@dataclass(frozen=True)
class DistributionSpecification:
    """How a training is distributed over replicas.

    Counts are numbers of replicas. Times are in seconds; None means no limit. CPUs and memory are canonical Kubernetes
    quantities; None means the cluster's default. `parse_distribution` creates a specification from a user's dict.

    An entry below states a default where it depends on other keys or on the cluster. All other keys default to the
    value of their field. Keys that do not belong to the distribution type keep that value, too.

    Attributes:
        distribution_type: Kubernetes object of the training: a Job with one pod, a TFJob, an MPIJob or a PyTorchJob.
        number_of_workers: Number of worker replicas; PyTorch adds a master. Default: 2 (Job: always 1).
        worker_cpus: CPU limit of each worker. Default: the cluster's.
        worker_memory: Memory limit of each worker. Default: the cluster's.
        worker_gpus: Number of GPUs of each worker, evaluator and PyTorch master.
        gpu_resource: Resource name of a GPU.
        launcher_cpus: CPU limit of the MPI launcher, TF chief or PyTorch master. Default: the cluster's.
        launcher_memory: Memory limit of the MPI launcher, TF chief or PyTorch master. Default: the cluster's.
        number_of_parameter_servers: Parameter servers, plus a chief; 0 for all-reduce. Default: number_of_workers.
        ps_cpus: CPU limit of each parameter server. Default: worker_cpus.
        ps_memory: Memory limit of each parameter server. Default: worker_memory.
        evaluator: Whether to add an evaluator replica.
        slots_per_worker: Number of processes in each replica that trains. Default: max(1, worker_gpus).
        min_workers: Minimum number of workers of an elastic training. Default: none; number_of_workers if elastic.
        max_workers: Maximum number of workers of an elastic training. Default: none; number_of_workers if elastic.
        node_selector: Node labels that the pods require. Default: none.
        tolerations: Tolerations of the pods. Default: none.
        shared_memory: Size of /dev/shm in each replica. Default: the cluster's.
        volumes: PersistentVolumeClaims to mount in each replica. Default: none.
        queue_name: Kueue queue that admits the job. Default: none.
        priority_class: PriorityClass of the pods. Default: the cluster's.
        scheduler_name: Scheduler of the pods. Default: the cluster's.
        gang_scheduling: Whether to schedule all replicas at once or none; an elastic PyTorchJob needs min_workers.
        tensorboard: Whether to pass the program a folder for TensorBoard logs, which is kept in object storage.
        restart_limit: Maximum number of restarts of each replica after failures without a newer checkpoint in between.
        preemption_limit: Maximum number of preemptions of the job, such as evictions. Default: unlimited.
        termination_grace_seconds: Time from SIGTERM to SIGKILL in which a replica can store a checkpoint.
        keep_job: Whether to keep the finished job.
        queue_timeout: Maximum time in the queue, until the job is admitted. Default: unlimited.
        scheduling_timeout: Maximum time that a replica waits for a node.
        image_pull_timeout: Maximum time to pull the image of a replica.
        install_timeout: Maximum time for pip to install packages in a replica.
        start_timeout: Maximum time after installation until all replicas run and one has printed a line or a sample.
        silence_timeout: Maximum time without a line or a sample of a replica, each of its own. Default: unlimited.
        progress_timeout: Maximum time without rows, bytes, epochs or lines of any replica. Default: unlimited.
        running_timeout: Maximum time from the moment when all replicas run. Default: unlimited.
        total_timeout: Maximum time from the start of the job. Default: unlimited.
        launcher_lost_timeout: Maximum time without a heartbeat of the train step before the replicas stop.

    Raises:
        ValueError: Two valid values contradict each other.
    """

    distribution_type: DistributionType = _key(choice(*_ALL), "Job")  # noqa: RUF009 - it is a field
    number_of_workers: int = _key(AT_LEAST_ONE, 1)
    worker_cpus: str | None = _key(CPUS)
    worker_memory: str | None = _key(MEMORY)
    worker_gpus: int = _key(COUNT, 0)
    gpu_resource: str = _key(RESOURCE_NAME, "nvidia.com/gpu")
    launcher_cpus: str | None = _key(CPUS, None, _LAUNCHED)
    launcher_memory: str | None = _key(MEMORY, None, _LAUNCHED)
    number_of_parameter_servers: int = _key(COUNT, 0, _TF)
    ps_cpus: str | None = _key(CPUS, None, _TF)
    ps_memory: str | None = _key(MEMORY, None, _TF)
    evaluator: bool = _key(BOOLEAN, False, _TF)
    slots_per_worker: int = _key(AT_LEAST_ONE, 1, _RANKED)
    min_workers: int | None = _key(AT_LEAST_ONE, None, _RANKED)
    max_workers: int | None = _key(AT_LEAST_ONE, None, _RANKED)
    node_selector: Pairs = _key(NODE_LABELS, ())  # noqa: RUF009 - it is a field
    tolerations: tuple[Pairs, ...] = _key(TOLERATIONS, ())
    shared_memory: str | None = _key(MEMORY)
    volumes: tuple[Pairs, ...] = _key(VOLUMES, ())
    queue_name: str | None = _key(object_name(63))
    priority_class: str | None = _key(object_name(253))
    scheduler_name: str | None = _key(object_name(253))
    gang_scheduling: bool = _key(BOOLEAN, False, _LAUNCHED)
    tensorboard: bool = _key(BOOLEAN, False)
    restart_limit: int = _key(COUNT, 3)
    preemption_limit: int | None = _key(LIMIT)
    termination_grace_seconds: int = _key(GRACE, 30)
    keep_job: bool = _key(BOOLEAN, False)
    queue_timeout: float | None = _key(SECONDS)
    scheduling_timeout: float | None = _key(SECONDS, 600)
    image_pull_timeout: float | None = _key(SECONDS, 1200)
    install_timeout: float | None = _key(SECONDS, 1800)
    start_timeout: float | None = _key(SECONDS, 600)
    silence_timeout: float | None = _key(SECONDS)
    progress_timeout: float | None = _key(SECONDS)
    running_timeout: float | None = _key(SECONDS)
    total_timeout: float | None = _key(SECONDS)
    launcher_lost_timeout: float | None = _key(SECONDS, 600)

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


KEYS: Mapping[str, Kind] = {entry.name: entry.metadata["kind"] for entry in fields(DistributionSpecification)}


def parse_distribution(spec: Mapping[str, object] | str | None = None) -> DistributionSpecification:
    """Validate a `distribution_specification` and fill in its defaults.

    Args:
        spec: The dict or its JSON text. None, "" and {} mean a Job. A key with the value None or "" gets its default.
            A number may be 2, 2.0, "2" or "2.0", because KFP converts numbers inside dicts.

    Raises:
        ValueError: A key is unknown, has an invalid value, or does not belong to the distribution type. The message
            names the key, the value and what is allowed.
    """
    entries = {} if is_blank(spec) else read_entry("distribution_specification", MAPPING, spec)
    try:
        values = read_keys(entries, KEYS)
        distribution_type = values.setdefault("distribution_type", "Job")
        for name in values:
            types = KEYS[name].types
            if distribution_type not in types:
                raise ValueError(
                    f"{name} = {shown(entries[name])} is a key of {' and '.join(types)}, not of {distribution_type}; "
                    "remove it"
                )
        return DistributionSpecification(**_with_defaults(values))
    except ValueError as error:
        raise ValueError(f"distribution_specification: {error}") from None


def _with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the defaults that depend on the distribution type or on other keys."""
    distribution_type = values["distribution_type"]
    workers = values.setdefault("number_of_workers", 1 if distribution_type == "Job" else 2)
    if distribution_type == "TF" and values.setdefault("number_of_parameter_servers", workers):
        return {"ps_cpus": values.get("worker_cpus"), "ps_memory": values.get("worker_memory")} | values
    if distribution_type in _RANKED:
        values.setdefault("slots_per_worker", max(1, values.get("worker_gpus", 0)))
    if values.keys() & {"min_workers", "max_workers"}:
        return {"min_workers": workers, "max_workers": workers} | values
    return values
