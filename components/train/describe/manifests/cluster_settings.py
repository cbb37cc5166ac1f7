"""Settings of the cluster and of the KFP task that the manifests of a job depend on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from kfp_distributed.cluster_api.objects import Object

MpiVersion = Literal["v1", "v2beta1"]

Operator = Literal["training-operator", "trainer"]
"""What runs TF, MPI and PyTorch jobs: the Kubeflow training operator (or the MPI operator), or Kubeflow Trainer v2."""


@dataclass(frozen=True)
class TaskSettings:
    """The `TaskConfig` of the `train` task, in the form of a Kubernetes pod spec.

    Attributes:
        resources: {"limits": {...}, "requests": {...}} of the replicas that train, for resources that
            `distribution_specification` does not set.
        node_selector: Node labels that the pods require.
        tolerations: Tolerations of the pods.
        affinity: Affinity of the pods.
        env: Environment variables.
        volumes: Volumes of the pods.
        volume_mounts: Mounts of the volumes.
    """

    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Object, ...] = ()
    affinity: Object = field(default_factory=dict)
    env: tuple[Object, ...] = ()
    volumes: tuple[Object, ...] = ()
    volume_mounts: tuple[Object, ...] = ()


def read_task_settings(task_config: Mapping[str, Any]) -> TaskSettings:
    """Read the fields of kfp's TaskConfig; fields that are not set are None.

    Raises:
        ValueError: A field has another form than in a pod spec. The message names the field but not its value, which
            may be a secret.
    """
    settings: dict[str, Any] = {}
    for field_ in fields(TaskSettings):
        name, is_list = field_.name, field_.default == ()
        value = task_config.get(name)
        if value is None:
            continue
        has_names = name in ("env", "volumes", "volume_mounts")
        entries = value if isinstance(value, list) and is_list else [value]
        if isinstance(value, list) != is_list or not all(
            isinstance(entry, dict) and (not has_names or "name" in entry) for entry in entries
        ):
            form = f"a list of dicts{', each with a name' * has_names}" if is_list else "a dict"
            raise ValueError(f"task_config: {name} is not {form}, as in the spec of a pod")
        settings[name] = tuple(value) if is_list else value
    return TaskSettings(**settings)


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of the cluster for one job.

    Attributes:
        namespace: Namespace of the job.
        image: Image of every replica. The runner sets it to the image of the program.
        environment: Environment variables added to each replica, as entries of a container. Secrets are references.
        object_store: Keys of the object store by environment variable, for a Secret that the job owns; {} if
            `environment` refers to an existing Secret.
        packages: Packages that pip installs before a replica starts.
        packages_alone: Packages that pip installs without their dependencies.
        library: Content of the files of the library that replicas import, by path in its archive.
        owner: ownerReference to the step's pod; None if the step does not run in a pod.
        mpi_version: Version of MPIJob that the API server serves; None if it serves none.
        operator: What runs the job. It does not matter for a Job.
        task: Settings of the KFP task.
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
    operator: Operator = "training-operator"
    task: TaskSettings = field(default_factory=TaskSettings)
