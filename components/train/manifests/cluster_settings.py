"""What a manifest needs to know of the cluster, beside the job itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as its JSON."""

MpiVersion = Literal["v1", "v2beta1"]


@dataclass(frozen=True)
class TaskSettings:
    """What a pipeline's author has set on the `train` task itself, in Kubernetes' own form.

    Attributes:
        resources: {"limits": {...}, "requests": {...}} of the replicas that train, where the dict says nothing.
        node_selector: Labels of the nodes.
        tolerations: Taints to put up with.
        affinity: A whole affinity.
        env: Environment entries.
        volumes: Volumes of the pods.
        volume_mounts: Where they are.
    """

    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Object, ...] = ()
    affinity: Object = field(default_factory=dict)
    env: tuple[Object, ...] = ()
    volumes: tuple[Object, ...] = ()
    volume_mounts: tuple[Object, ...] = ()


def read_task_settings(given: Mapping[str, Any]) -> TaskSettings:
    """Reads the fields of kfp's TaskConfig, of which those are None that are not set.

    Raises:
        ValueError: One is not of its form; the text has its name alone, for a value may be somebody's secret.
    """
    found: dict[str, Any] = {}
    for each in fields(TaskSettings):
        value, listed = given.get(each.name), each.default == ()
        if value is None:
            continue
        named = each.name in ("env", "volumes", "volume_mounts")
        entries = value if isinstance(value, list) and listed else [value]
        if isinstance(value, list) != listed or not all(
            isinstance(entry, dict) and (not named or "name" in entry) for entry in entries
        ):
            form = f"a list of dicts{', each with a name' * named}" if listed else "a dict"
            raise ValueError(f"task_config: {each.name} is not {form}, as in the specification of a pod")
        found[each.name] = tuple(value) if listed else value
    return TaskSettings(**found)


@dataclass(frozen=True)
class ClusterSettings:
    """The cluster's side of a job.

    Attributes:
        namespace: Where the job runs.
        image: The image of every replica; the runner fills in what the program names.
        environment: What is added to each replica's environment, as Kubernetes' entries; secrets are references.
        object_store: Keys of the object store by the replicas' names for them, for a Secret of the job's own; {} where
            `environment` refers to a Secret that is there.
        packages: What pip installs before a replica starts.
        packages_alone: More of these, installed without what they depend on.
        library: Files of the library that a replica imports, by path: content of its archive.
        owner: The step's pod as an ownerReference; None outside of one.
        mpi_version: The version of MPIJob that the API server has; None where it has none.
        task: What is set on the step's own task.
    """

    namespace: str
    image: str = ""
    environment: tuple[Object, ...] = ()
    object_store: Mapping[str, str] = field(default_factory=dict, repr=False)
    packages: tuple[str, ...] = ()
    packages_alone: tuple[str, ...] = ()
    library: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    owner: Object | None = None
    mpi_version: MpiVersion | None = None
    task: TaskSettings = field(default_factory=TaskSettings)
