"""The `distribution_specification` of `train`: typed builders, checks and the JSON Schema. Pure.

A key is a field of a builder here and of `DistributionSpecification`. Here it has its kind, its meaning and its
default, and the classes say which types of job it belongs to. The checks of a dict, the error messages, the JSON Schema
and the reference page are made from them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from kfp_distributed.components.train.describe.builder import Builder
from kfp_distributed.components.train.describe.keys import Key, dict_key, entries_of, keys_of, read_keys, schema_of
from kfp_distributed.components.train.describe.pipeline_values import is_of_pipeline, refuse_what_kfp_cannot_insert
from kfp_distributed.components.train.describe.pod_settings import (
    NODE_LABELS,
    TOLERATIONS,
    VOLUMES,
    Toleration,
    Volume,
)
from kfp_distributed.components.train.describe.specification import (
    DistributionSpecification,
    DistributionType,
    OperatorKey,
)
from kfp_distributed.components.train.describe.value_kinds import (
    AT_LEAST_ONE,
    BOOLEAN,
    COUNT,
    CPUS,
    GRACE,
    LIMIT,
    MAPPING,
    MEMORY,
    NODE_LABEL,
    RESOURCE_NAME,
    SECONDS,
    choice,
    is_blank,
    object_name,
    read_entry,
    shown,
)

Time = float | str | None
"""Seconds, or a text such as "10m" or "unlimited"; None for the default."""

Quantity = float | str | None
"""A Kubernetes quantity such as "500m" or "8Gi"; None for the default."""


@dataclass(frozen=True, kw_only=True)
class Distribution(Builder):
    """How a training is distributed. This class has the keys of all types of job; use one of its subclasses.

    None stands for a key that is not set, so that its default applies. A value, a part of a text, and an entry of a
    dict or list may be a parameter of the pipeline or an output of a task, which the step checks when the pipeline
    runs. KFP does not replace them in an argument of a pipeline. Pass an object to `train` or `train_and_export`, or
    `to_dict()` where a dict is needed, such as the default of a pipeline's parameter.

    Raises:
        ValueError: A value is not allowed, or two values contradict each other. The message names the key, the value
            and what is allowed.
    """

    components, parameter = ("train", "evaluate_language_model", "tune"), "distribution_specification"
    distribution_type: ClassVar[DistributionType]

    workers: int | None = dict_key(
        AT_LEAST_ONE,
        "Number of worker replicas; PyTorch adds a master.",
        default_text="2 (Job: always 1)",
        name="number_of_workers",
    )
    worker_cpus: Quantity = dict_key(CPUS, "CPU limit of each worker.", default_text="the cluster's")
    worker_memory: Quantity = dict_key(MEMORY, "Memory limit of each worker.", default_text="the cluster's")
    worker_gpus: int | None = dict_key(COUNT, "Number of GPUs of each worker, evaluator and PyTorch master.", 0)
    worker_gpu_memory: Quantity = dict_key(
        MEMORY,
        "Memory of each GPU, which language_model compares with its estimate; it requests nothing.",
        default_text="unknown",
    )
    gpu_resource: str | None = dict_key(RESOURCE_NAME, "Resource name of a GPU.", "nvidia.com/gpu")
    node_selector: Mapping[str, str] | None = dict_key(NODE_LABELS, "Node labels that the pods require.", {}, "none")
    tolerations: Sequence[Toleration | Mapping[str, object]] | None = dict_key(
        TOLERATIONS, "Tolerations of the pods.", [], "none"
    )
    shared_memory: Quantity = dict_key(MEMORY, "Size of /dev/shm in each replica.", default_text="the cluster's")
    volumes: Sequence[Volume | Mapping[str, object]] | None = dict_key(
        VOLUMES, "PersistentVolumeClaims to mount in each replica.", [], "none"
    )
    queue_name: str | None = dict_key(object_name(63), "Kueue queue that admits the job.", default_text="none")
    required_topology: str | None = dict_key(
        NODE_LABEL, "Node label of a level of Kueue's topology; all pods get nodes with one value.", default_text="none"
    )
    preferred_topology: str | None = dict_key(NODE_LABEL, "The same, if that is possible.", default_text="none")
    priority_class: str | None = dict_key(object_name(253), "PriorityClass of the pods.", default_text="the cluster's")
    scheduler_name: str | None = dict_key(object_name(253), "Scheduler of the pods.", default_text="the cluster's")
    tensorboard: bool | None = dict_key(
        BOOLEAN, "Whether to pass the program a folder for TensorBoard logs, which is kept in object storage.", False
    )
    restart_limit: int | None = dict_key(
        COUNT,
        "Maximum number of restarts of each replica after failures without a newer checkpoint in between.",
        3,
    )
    preemption_limit: int | Literal["unlimited"] | None = dict_key(
        LIMIT, "Maximum number of preemptions of the job, such as evictions.", default_text="unlimited"
    )
    termination_grace_seconds: int | str | None = dict_key(
        GRACE, "Time from SIGTERM to SIGKILL in which a replica can store a checkpoint.", 30
    )
    keep_job: bool | None = dict_key(BOOLEAN, "Whether to keep the finished job.", False)
    queue_timeout: Time = dict_key(
        SECONDS, "Maximum time in the queue, until the job is admitted.", default_text="unlimited"
    )
    scheduling_timeout: Time = dict_key(SECONDS, "Maximum time that a replica waits for a node.", 600)
    image_pull_timeout: Time = dict_key(SECONDS, "Maximum time to pull the image of a replica.", 1200)
    install_timeout: Time = dict_key(SECONDS, "Maximum time for pip to install packages in a replica.", 1800)
    start_timeout: Time = dict_key(
        SECONDS, "Maximum time after installation until all replicas run and one has printed a line or a sample.", 600
    )
    silence_timeout: Time = dict_key(
        SECONDS, "Maximum time without a line or a sample of a replica, each of its own.", default_text="unlimited"
    )
    progress_timeout: Time = dict_key(
        SECONDS, "Maximum time without rows, bytes, epochs or lines of any replica.", default_text="unlimited"
    )
    running_timeout: Time = dict_key(
        SECONDS, "Maximum time from the moment when all replicas run.", default_text="unlimited"
    )
    total_timeout: Time = dict_key(SECONDS, "Maximum time from the start of the job.", default_text="unlimited")
    launcher_lost_timeout: Time = dict_key(
        SECONDS, "Maximum time without a heartbeat of the train step before the replicas stop.", 600
    )

    def __post_init__(self) -> None:
        if not hasattr(self, "distribution_type"):
            names = [kind.__name__ for kind in TYPES.values()]
            raise TypeError(f"{type(self).__name__} is no type of job; use {', '.join(names[:-1])} or {names[-1]}")
        entries = self.to_dict()
        for name in ("node_selector", "tolerations", "volumes"):
            value = entries.get(name)
            if not isinstance(value, str | Mapping | list) and is_of_pipeline(value):
                # KFP inserts it as JSON into a JSON text without escaping its quotes.
                raise ValueError(
                    f"distribution_specification: {name} = {shown(value)} is a parameter of the pipeline as a whole. "
                    f"KFP cannot insert a dict or list into a dict; use parameters as entries of {name}, or one "
                    "parameter for the whole distribution_specification"
                )
        try:
            for name, value in entries.items():
                refuse_what_kfp_cannot_insert(name, value)
        except ValueError as error:
            raise ValueError(f"distribution_specification: {error}") from None
        known = {name: value for name, value in entries.items() if not is_of_pipeline(value)}
        if known == entries:
            parse_distribution(entries)
        else:  # Whether values contradict each other is known in the run.
            _read(known)

    def to_dict(self) -> dict[str, Any]:
        """Return the `distribution_specification`: the type and the keys that are set."""
        return {"distribution_type": self.distribution_type, **entries_of(self)}


@dataclass(frozen=True, kw_only=True)
class SingleJob(Distribution):
    """A Kubernetes Job with one pod."""

    distribution_type = "Job"


@dataclass(frozen=True, kw_only=True)
class Launched(Distribution):
    """The keys of the jobs that an operator runs."""

    launcher_cpus: Quantity = dict_key(
        CPUS, "CPU limit of the MPI launcher, TF chief or PyTorch master.", default_text="the cluster's"
    )
    launcher_memory: Quantity = dict_key(
        MEMORY, "Memory limit of the MPI launcher, TF chief or PyTorch master.", default_text="the cluster's"
    )
    gang_scheduling: bool | None = dict_key(
        BOOLEAN,
        "Whether to schedule all replicas at once or none; an elastic PyTorchJob needs min_workers.",
        False,
    )
    operator: OperatorKey | None = dict_key(
        choice("auto", "training-operator", "trainer"),
        "Operator of the job: training-operator (for MPI also the MPI operator), trainer (Kubeflow Trainer v2), or the "
        "one that the cluster serves and the step may use.",
        "auto",
    )


@dataclass(frozen=True, kw_only=True)
class TensorFlow(Launched):
    """A TFJob: a chief, workers and parameter servers, or workers alone that average their gradients."""

    distribution_type = "TF"

    parameter_servers: int | None = dict_key(
        COUNT,
        "Parameter servers, plus a chief; 0 for all-reduce.",
        0,
        "number_of_workers",
        name="number_of_parameter_servers",
    )
    ps_cpus: Quantity = dict_key(CPUS, "CPU limit of each parameter server.", default_text="worker_cpus")
    ps_memory: Quantity = dict_key(MEMORY, "Memory limit of each parameter server.", default_text="worker_memory")
    evaluator: bool | None = dict_key(BOOLEAN, "Whether to add an evaluator replica.", False)


@dataclass(frozen=True, kw_only=True)
class Ranked(Launched):
    """The keys of the jobs whose replicas may have several processes, and whose number of workers may change."""

    slots_per_worker: int | None = dict_key(
        AT_LEAST_ONE, "Number of processes in each replica that trains.", 1, "max(1, worker_gpus)"
    )
    min_workers: int | None = dict_key(
        AT_LEAST_ONE,
        "Minimum number of workers of an elastic training.",
        default_text="none; number_of_workers if elastic",
    )
    max_workers: int | None = dict_key(
        AT_LEAST_ONE,
        "Maximum number of workers of an elastic training.",
        default_text="none; number_of_workers if elastic",
    )


@dataclass(frozen=True, kw_only=True)
class Mpi(Ranked):
    """An MPIJob: a launcher that starts Horovod's ranks in the workers."""

    distribution_type = "MPI"


@dataclass(frozen=True, kw_only=True)
class PyTorch(Ranked):
    """A PyTorchJob: a master and workers, which all train."""

    distribution_type = "PyTorch"


TYPES: Mapping[str, type[Distribution]] = {
    kind.distribution_type: kind for kind in (SingleJob, Mpi, TensorFlow, PyTorch)
}
"""Builder of each type of job."""

_TYPE = Key(
    choice(*TYPES), "Kubernetes object of the training: a Job with one pod, a TFJob, an MPIJob or a PyTorchJob.", "Job"
)

KEYS: Mapping[str, Key] = {"distribution_type": _TYPE} | {
    name: declared for kind in (Distribution, Launched, TensorFlow, Ranked) for name, declared in keys_of(kind).items()
}
"""All keys of a `distribution_specification`, by name."""


def types_of(name: str) -> tuple[str, ...]:
    """Return the types of job that a key belongs to."""
    return tuple(type_ for type_, kind in TYPES.items() if name == "distribution_type" or name in keys_of(kind))


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
    values = _read(entries)
    try:
        return DistributionSpecification(**{**_DEFAULTS, **_with_defaults(values)})
    except ValueError as error:
        raise ValueError(f"distribution_specification: {error}") from None


def _read(entries: Mapping[str, object]) -> dict[str, Any]:
    """Return the parsed values of the keys that are set, and the distribution type.

    Raises:
        ValueError: A key is unknown, has an invalid value, or does not belong to the distribution type.
    """
    try:
        values = read_keys(entries, KEYS)
        distribution_type = values.setdefault("distribution_type", "Job")
        for name in values:
            types = types_of(name)
            if distribution_type not in types:
                *others, last = types
                owners = f"{', '.join(others)} and {last}" if others else last
                raise ValueError(
                    f"{name} = {shown(entries[name])} is a key of {owners}, not of {distribution_type}; remove it"
                )
    except ValueError as error:
        raise ValueError(f"distribution_specification: {error}") from None
    return values


_DEFAULTS = {
    name: None if declared.default is None else declared.kind.read(declared.default) for name, declared in KEYS.items()
}


def _with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the defaults that depend on the distribution type or on other keys."""
    distribution_type = values["distribution_type"]
    workers = values.setdefault("number_of_workers", 1 if distribution_type == "Job" else 2)
    if distribution_type == "TF" and values.setdefault("number_of_parameter_servers", workers):
        return {"ps_cpus": values.get("worker_cpus"), "ps_memory": values.get("worker_memory")} | values
    if "slots_per_worker" in keys_of(TYPES[distribution_type]):
        values.setdefault("slots_per_worker", max(1, values.get("worker_gpus", 0)))
    if values.keys() & {"min_workers", "max_workers"}:
        return {"min_workers": workers, "max_workers": workers} | values
    return values


def distribution_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a `distribution_specification`.

    It accepts all dicts that `train` accepts, except for keys that are None or "". It does not check numbers in texts,
    the content of JSON texts, and whether two values contradict each other.
    """
    variants = []
    for name, kind in TYPES.items():
        schema = schema_of(keys_of(kind))
        type_key = {"description": _TYPE.meaning, "const": name}
        required = [] if name == _TYPE.default else ["distribution_type"]
        variants.append(
            {
                "title": kind.__name__,
                "description": (kind.__doc__ or "").partition("\n")[0],
                **schema,
                "properties": {"distribution_type": type_key, **schema["properties"]},
                **({"required": required} if required else {}),
            }
        )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "distribution_specification",
        "oneOf": variants,
    }
