"""Pod templates of a job: containers, environment, volumes, resources and permissions. Pure."""

from collections.abc import Mapping, Sequence

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.code import CHECKED, CODE_SUFFIX, JOB_KEY, MOUNT, checked
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.describe.topology import Resources
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.library.packages import install_command
from kfp_distributed.trainers.runtime.job_description import (
    GPUS_VARIABLE,
    GRACE_VARIABLE,
    JOB_VARIABLE,
    LOST_SECONDS_VARIABLE,
    PEAK_MEMORY,
    REPLICA_VARIABLE,
)

JOB_LABEL = "kfp-distributed/job"
MANAGED = {"app.kubernetes.io/managed-by": "kfp-distributed"}
"""Label of every object that this library creates."""

_RESERVED = (GRACE_VARIABLE, JOB_VARIABLE, LOST_SECONDS_VARIABLE, REPLICA_VARIABLE)
"""Environment variables that the settings of the task cannot change."""

ENTRY = ("python3", "-m", "kfp_distributed.trainers.runtime.entry")
WORK = "/kfp-distributed/work"

FIRST_REPLICA_LABEL = "kfp-distributed/first-replica"
"""Label of the pods of an indexed Job: name of the replica that the pod with index 0 is. The Jobs of a TrainJob are
indexed."""

STORE_SUFFIX = "-object-store"

_MESSAGE = f"{WORK}/{PEAK_MEMORY}"
"""File that Kubernetes copies to the status of the pod when a container ends."""

ADDRESS_VARIABLE = "KFP_DISTRIBUTED_POD_ADDRESS"
"""Environment variable with the IP address of the pod, in an indexed Job without an operator."""

INSTALLER = "packages"
"""Name of the init container that installs packages."""

CONTAINERS = {"Job": "training", "TFJob": "tensorflow", "PyTorchJob": "pytorch", "MPIJob": "mpi"}
"""Name of the container that runs the training, by kind of the job. The operators of TFJob and PyTorchJob require
theirs. A pod may have other containers, which an admission webhook of the cluster adds."""

NODE_CONTAINER = "node"
"""Name of the container that runs the training in all pods of a TrainJob, which Kubeflow Trainer requires."""

_VOLUME_PREFIX = "kfp-distributed-"
"""Prefix of the names of volumes, which keeps them apart from the volumes of the task."""
_PACKAGES = "/kfp-distributed/packages"
_INSTALLER_VOLUMES = {"code": MOUNT, "checked": CHECKED, "packages": _PACKAGES, "work": WORK}

# The Pod Security Standard "restricted". The user ID is that of the library's images; any user but root works.
_SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}
_RESTRICTED_POD = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, **_SECCOMP}
_RESTRICTED_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def labels_of(job: TrainingJob) -> dict[str, str]:
    """Return the labels of all objects of a job."""
    job_labels = {f"kfp-distributed/{name}": value for name, value in job.labels.items() if value}
    return {**MANAGED, JOB_LABEL: job.name, **job_labels}


def pod_template(
    job: TrainingJob,
    settings: ClusterSettings,
    container: str,
    resources: Resources,
    *,
    command: Sequence[str] = ENTRY,
    trains: bool = True,
    as_root: bool = False,
    calls_api: bool = False,
) -> Object:
    """Return the pod template of one role.

    Args:
        job: The job.
        settings: Settings of the cluster.
        container: Name of the container; operators require a fixed one.
        resources: Resource limits of each pod.
        command: Command of the container.
        trains: Whether the role trains. If so, resources of the task apply where `distribution_specification` sets
            none.
        as_root: Whether the pod needs root, which the Pod Security Standard "restricted" does not allow.
        calls_api: Whether the pod calls the API server.
    """
    spec, task = job.specification, settings.task
    volumes = _volumes(job, settings)
    common = {"image": settings.image, **({} if as_root else {"securityContext": _RESTRICTED_CONTAINER})}
    limits = _resources(resources, task.resources if trains else {})
    if limits:
        common["resources"] = limits
    mounts = [*({"name": name, "mountPath": path} for name, path, _ in volumes), *task.volume_mounts]
    main = _main_container(container, checked(job, settings, command, _MESSAGE), environment(job, settings), mounts)
    pod = {
        "automountServiceAccountToken": calls_api,
        # Otherwise each Service of the namespace, of which there may be thousands, adds environment variables.
        "enableServiceLinks": False,
        "securityContext": {"runAsUser": 0, **_SECCOMP} if as_root else _RESTRICTED_POD,
        "initContainers": _init_containers(job, settings, common),
        "containers": [{**main, **common}],
        "volumes": [*({"name": name, **source} for name, _, source in volumes), *task.volumes],
        "nodeSelector": dict(spec.node_selector or task.node_selector),
        "tolerations": [dict(toleration) for toleration in spec.tolerations or task.tolerations],
        "affinity": task.affinity,
        "priorityClassName": spec.priority_class,
        "schedulerName": spec.scheduler_name,
        "terminationGracePeriodSeconds": spec.termination_grace_seconds,
    }
    annotations = {"sidecar.istio.io/inject": "false", **_topology(spec)}
    metadata = {"labels": labels_of(job), "annotations": annotations}
    return {"metadata": metadata, "spec": {key: value for key, value in pod.items() if value not in (None, {}, [])}}


def _topology(spec: DistributionSpecification) -> dict[str, str]:
    """Return the annotations by which Kueue places the pods of a template."""
    levels = {"required": spec.required_topology, "preferred": spec.preferred_topology}
    return {f"kueue.x-k8s.io/podset-{name}-topology": level for name, level in levels.items() if level}


def _main_container(name: str, command: list[str], env: list[Object], mounts: list[Object]) -> Object:
    return {
        "name": name,
        "command": command,
        "workingDir": WORK,
        "terminationMessagePath": _MESSAGE,
        "env": env,
        "volumeMounts": mounts,
    }


def environment(job: TrainingJob, settings: ClusterSettings) -> list[Object]:
    """Return the environment of a replica as entries of a container.

    Entries of the task come last and replace others of the same name, except for the variables that the entry program
    needs. The library comes first in the PYTHONPATH of the task.
    """
    values = {
        "PYTHONPATH": f"{CHECKED}:{_PACKAGES}" if _installs(settings) else CHECKED,
        "PYTHONUNBUFFERED": "1",
        "HOME": WORK,
        JOB_VARIABLE: f"{CHECKED}/{JOB_KEY}",
        GRACE_VARIABLE: str(job.specification.termination_grace_seconds),
        **job.pod_variables,
    }
    if job.specification.worker_gpus and job.specification.distribution_type in ("Job", "PyTorch"):
        values[GPUS_VARIABLE] = str(job.specification.worker_gpus)
    if job.specification.launcher_lost_timeout is not None:
        values[LOST_SECONDS_VARIABLE] = f"{job.specification.launcher_lost_timeout:.15g}"
    store = job.name + STORE_SUFFIX
    entries = [
        *({"name": name, "value": value} for name, value in values.items()),
        *settings.environment,
        *({"name": key, "valueFrom": {"secretKeyRef": {"name": store, "key": key}}} for key in settings.object_store),
    ]
    merged: dict[str, Object] = {}
    library_path = values["PYTHONPATH"]
    task_entries = (entry for entry in settings.task.env if entry["name"] not in _RESERVED)
    for entry in (*entries, *task_entries):
        name = entry["name"]
        if name == "PYTHONPATH" and library_path not in entry.get("value", ""):
            # A value from a reference is not known here, so it is dropped.
            path = f"{library_path}:{entry['value']}" if "value" in entry else library_path
            entry = {"name": name, "value": path}
        # Moved to the end, because its value may refer to variables that are defined before it.
        merged.pop(name, None)
        merged[name] = entry
    return list(merged.values())


def _installs(settings: ClusterSettings) -> bool:
    return bool(settings.packages or settings.packages_alone)


def _init_containers(job: TrainingJob, settings: ClusterSettings, common: Object) -> list[Object]:
    """Return the init container that installs the packages, if there are any.

    It has the resource limits of the replica, because a quota may require limits. They do not increase those of the
    pod.
    """
    if not _installs(settings):
        return []
    command = install_command(settings.packages, settings.packages_alone, folder=_PACKAGES)
    return [
        {
            "name": INSTALLER,
            "command": checked(job, settings, command, _MESSAGE),
            "terminationMessagePath": _MESSAGE,
            # With a cache a second attempt does not download again. It is deleted with the container. The environment
            # of the task may set a package index or a proxy.
            "env": [
                {"name": "HOME", "value": WORK},
                {"name": "PIP_CACHE_DIR", "value": "/tmp/pip"},
                *(entry for entry in settings.task.env if entry["name"] != "PYTHONPATH"),
                {"name": "PYTHONPATH", "value": CHECKED},
            ],
            "volumeMounts": [
                {"name": _VOLUME_PREFIX + name, "mountPath": path} for name, path in _INSTALLER_VOLUMES.items()
            ],
            **common,
        }
    ]


def _resources(limits: Resources, task: Mapping[str, Mapping[str, str]]) -> Object:
    """Return limits and requests of a replica. The task's apply where `distribution_specification` sets none."""
    values = {"cpu": limits.cpus, "memory": limits.memory, limits.gpu_resource: str(limits.gpus or "")}
    own_values = {name: value for name, value in values.items() if value}
    merged = {section: {**task.get(section, {}), **own_values} for section in ("limits", "requests")}
    return {section: entries for section, entries in merged.items() if entries}


def _volumes(job: TrainingJob, settings: ClusterSettings) -> list[tuple[str, str, Object]]:
    """Return name, mount path and source of each volume."""
    spec = job.specification
    volumes: list[tuple[str, str, Object]] = [
        ("code", MOUNT, {"configMap": {"name": job.name + CODE_SUFFIX}}),
        ("checked", CHECKED, {"emptyDir": {}}),
        ("work", WORK, {"emptyDir": {}}),
    ]
    if _installs(settings):
        volumes.append(("packages", _PACKAGES, {"emptyDir": {}}))
    if spec.shared_memory:
        memory = {"medium": "Memory", "sizeLimit": spec.shared_memory}
        volumes.append(("shared-memory", "/dev/shm", {"emptyDir": memory}))
    for number, volume in enumerate(map(dict, spec.volumes)):
        claim = {"claimName": volume["name"], "readOnly": volume.get("read_only", False)}
        volumes.append((f"volume-{number}", volume["path"], {"persistentVolumeClaim": claim}))
    return [(_VOLUME_PREFIX + name, path, source) for name, path, source in volumes]
