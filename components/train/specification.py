"""The `distribution_specification` of `train`: a dict as users and KFP write it -> a frozen, checked object.

The fields of `DistributionSpecification` are the only table of keys: what a key accepts, its default and the types of
job that it belongs to. Its docstring says what they mean. Parsing, the errors and docs/distribution-specification.md
follow from these. Everything here is pure, and everything that is wrong with a specification is a ValueError.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from kfp_distributed.components.train.kinds import (
    AT_LEAST_ONE,
    COUNT,
    CPUS,
    MAPPING,
    MEMORY,
    NODE_LABELS,
    RESOURCE_NAME,
    SECONDS,
    TOLERATIONS,
    TRUTH,
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
    """How a training is distributed. Counts are of replicas, times are in seconds (None: no limit).

    `parse_distribution` makes one from a user's dict. Sizes are canonical Kubernetes quantities, None where the
    cluster decides; keys of other types of job keep the defaults that stand here. A default that is named below is
    what a key has that a user leaves away, where that is not simply the field's own.

    Attributes:
        distribution_type: one pod (Job), or a TFJob, an MPIJob, a PyTorchJob.
        number_of_workers: worker replicas; PyTorch has a master beside them. Default: 2 (Job: always 1).
        worker_cpus: CPU limit of each worker. Default: the cluster's.
        worker_memory: memory limit of each worker. Default: the cluster's.
        worker_gpus: GPUs of each worker, evaluator and PyTorch master.
        gpu_resource: what the cluster calls a GPU.
        launcher_cpus: CPU limit of the MPI launcher, TF chief or PyTorch master. Default: the cluster's.
        launcher_memory: memory limit of the MPI launcher, TF chief or PyTorch master. Default: the cluster's.
        number_of_parameter_servers: parameter servers, with a chief; 0: workers all-reduce. Default: number_of_workers.
        ps_cpus: CPU limit of each parameter server. Default: worker_cpus.
        ps_memory: memory limit of each parameter server. Default: worker_memory.
        evaluator: an evaluator replica beside the training.
        slots_per_worker: processes of each replica that trains. Default: max(1, worker_gpus).
        min_workers: elastic training: fewest workers. Default: none; number_of_workers if elastic.
        max_workers: elastic training: most workers. Default: none; number_of_workers if elastic.
        node_selector: labels of the nodes to run on. Default: none.
        tolerations: taints of nodes to put up with. Default: none.
        shared_memory: size of /dev/shm in each replica. Default: the cluster's.
        volumes: PersistentVolumeClaims that each replica mounts. Default: none.
        queue_name: queue that admits the job. Default: none.
        priority_class: PriorityClass of the pods. Default: the cluster's.
        scheduler_name: scheduler of the pods. Default: the cluster's.
        gang_scheduling: the operator's gang scheduler places all replicas (elastic PyTorchJob: the fewest) or none.
        tensorboard: the program gets a folder for TensorBoard logs, which is kept in object storage.
        restart_limit: how often each replica may be started again after a failure.
        keep_job: leave the ended job in place, to look at it.
        queue_timeout: longest wait for admission by the queue. Default: unlimited.
        scheduling_timeout: longest wait for nodes.
        image_pull_timeout: longest wait for images.
        install_timeout: longest installation of packages by pip in a replica.
        start_timeout: longest start of the replicas after that, up to a first line of log.
        silence_timeout: longest time without a line of log, after a first one.
        running_timeout: longest training, from its start. Default: unlimited.
        total_timeout: longest time for everything together. Default: unlimited.
        launcher_lost_timeout: a job whose train step has written no heartbeat for so long stops.

    Raises:
        ValueError: two values that are fine by themselves contradict each other.
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
    evaluator: bool = _key(TRUTH, False, _TF)
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
    gang_scheduling: bool = _key(TRUTH, False, _LAUNCHED)
    tensorboard: bool = _key(TRUTH, False)
    restart_limit: int = _key(COUNT, 3)
    keep_job: bool = _key(TRUTH, False)
    queue_timeout: float | None = _key(SECONDS)
    scheduling_timeout: float | None = _key(SECONDS, 600)
    image_pull_timeout: float | None = _key(SECONDS, 1200)
    install_timeout: float | None = _key(SECONDS, 1800)
    start_timeout: float | None = _key(SECONDS, 600)
    silence_timeout: float | None = _key(SECONDS, 1800)
    running_timeout: float | None = _key(SECONDS)
    total_timeout: float | None = _key(SECONDS)
    launcher_lost_timeout: float | None = _key(SECONDS, 600)

    def __post_init__(self) -> None:
        workers = self.number_of_workers
        alone = self.distribution_type == "TF" and not self.number_of_parameter_servers
        for name, wrong, reason in (
            (
                "number_of_workers",
                self.distribution_type == "Job" and workers != 1,
                "is not 1, and a Job is one pod; choose another distribution_type",
            ),
            ("min_workers", (self.min_workers or 1) > workers, f"is more than number_of_workers, {workers}"),
            ("max_workers", (self.max_workers or workers) < workers, f"is less than number_of_workers, {workers}"),
            *(
                (name, alone and getattr(self, name), "has no use where number_of_parameter_servers is 0; remove it")
                for name in ("ps_cpus", "ps_memory", "launcher_cpus", "launcher_memory")
            ),
        ):
            if wrong:
                raise ValueError(f"{name} = {shown(getattr(self, name))} {reason}")

    @property
    def ranks(self) -> int:
        """How many processes the workers run together."""
        return self.number_of_workers * self.slots_per_worker


KEYS: Mapping[str, Kind] = {each.name: each.metadata["kind"] for each in fields(DistributionSpecification)}


def parse_distribution(spec: Mapping[str, object] | str | None = None) -> DistributionSpecification:
    """Checks a `distribution_specification` and fills in its defaults.

    Args:
        spec: the dict, or its JSON text; None, "" and {} mean an ordinary Job. A key whose value is None or "" is
            not given. Numbers may come as 2, 2.0, "2" or "2.0", as KFP leaves them.

    Raises:
        ValueError: names the key, its value and what is allowed.
    """
    given = {} if is_blank(spec) else read_entry("distribution_specification", MAPPING, spec)
    try:
        values = read_keys(given, KEYS)
        chosen = values.setdefault("distribution_type", "Job")
        for name in values:
            types = KEYS[name].types
            if chosen not in types:
                of = " and ".join(types)
                raise ValueError(f"{name} = {shown(given[name])} is a key of {of}, not of {chosen}; remove it")
        return DistributionSpecification(**_with_defaults(values))
    except ValueError as error:
        raise ValueError(f"distribution_specification: {error}") from None


def _with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Adds the defaults that follow from the type of job or from other keys."""
    chosen = values["distribution_type"]
    workers = values.setdefault("number_of_workers", 1 if chosen == "Job" else 2)
    if chosen == "TF" and values.setdefault("number_of_parameter_servers", workers):
        return {"ps_cpus": values.get("worker_cpus"), "ps_memory": values.get("worker_memory")} | values
    if chosen in _RANKED:
        values.setdefault("slots_per_worker", max(1, values.get("worker_gpus", 0)))
    if values.keys() & {"min_workers", "max_workers"}:
        return {"min_workers": workers, "max_workers": workers} | values
    return values
