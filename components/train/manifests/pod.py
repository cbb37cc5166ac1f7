"""The pods of a job: what runs in them, what they see, and what they may do. Pure."""

from collections.abc import Mapping, Sequence

from kfp_distributed.components.train.job import TrainingJob
from kfp_distributed.components.train.manifests.cluster_settings import ClusterSettings, Object
from kfp_distributed.components.train.topology import Resources
from kfp_distributed.library.archive import ARCHIVE_KEY
from kfp_distributed.library.packages import install_command
from kfp_distributed.trainers.runtime.heartbeat import LOST_SECONDS_VARIABLE
from kfp_distributed.trainers.runtime.job import JOB_VARIABLE, PEAK_MEMORY, REPLICA_VARIABLE

JOB_LABEL = "kfp-distributed/job"
MANAGED = {"app.kubernetes.io/managed-by": "kfp-distributed"}
"""The label of all that is created."""

_OURS = (JOB_VARIABLE, LOST_SECONDS_VARIABLE, REPLICA_VARIABLE)
"""Environment variables that nobody else sets."""

ENTRY = ("python3", "-m", "kfp_distributed.trainers.runtime.entry")
WORK = "/kfp-distributed/work"
STORE_SUFFIX = "-object-store"
JOB_KEY = "job.json"

INSTALLER = "packages"
"""Name of the init container that installs packages."""

_OWN = "kfp-distributed-"
_CODE, _PACKAGES = "/kfp-distributed/code", "/kfp-distributed/packages"
_LIBRARY = f"{_CODE}/{ARCHIVE_KEY}"

# Together what the Pod Security Standard "restricted" asks for. The user is that of our images; any but root will do.
_SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}
_RESTRICTED_POD = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, **_SECCOMP}
_RESTRICTED_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def labels_of(job: TrainingJob) -> dict[str, str]:
    """The labels by which everything of a job is found."""
    named = {f"kfp-distributed/{name}": value for name, value in job.labels.items() if value}
    return {**MANAGED, JOB_LABEL: job.name, **named}


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
    """Makes the template of the pods of one role.

    Args:
        job: The job.
        settings: The cluster's side of it.
        container: Name of the container, which operators prescribe.
        resources: What each pod may use.
        command: What runs in it.
        trains: Whether it trains, and so gets the resources that are set on the task where the dict says nothing.
        as_root: Whether it must be root, and cannot do with what "restricted" allows.
        calls_api: Whether it calls the API server.
    """
    spec, task = job.specification, settings.task
    folders = _folders(job, settings)
    common = {"image": settings.image, **({} if as_root else {"securityContext": _RESTRICTED_CONTAINER})}
    limits = _resources(resources, task.resources if trains else {})
    if limits:
        common["resources"] = limits
    mounts = [*({"name": name, "mountPath": path} for name, path, _ in folders), *task.volume_mounts]
    main = _main_container(container, command, environment(job, settings), mounts)
    pod = {
        "automountServiceAccountToken": calls_api,
        # Variables for each Service of the namespace: there may be thousands.
        "enableServiceLinks": False,
        "securityContext": {"runAsUser": 0, **_SECCOMP} if as_root else _RESTRICTED_POD,
        "initContainers": _init_containers(settings, common),
        "containers": [{**main, **common}],
        "volumes": [*({"name": name, **source} for name, _, source in folders), *task.volumes],
        "nodeSelector": dict(spec.node_selector or task.node_selector),
        "tolerations": [dict(each) for each in spec.tolerations or task.tolerations],
        "affinity": task.affinity,
        "priorityClassName": spec.priority_class,
        "schedulerName": spec.scheduler_name,
    }
    about = {"labels": labels_of(job), "annotations": {"sidecar.istio.io/inject": "false"}}
    return {"metadata": about, "spec": {key: value for key, value in pod.items() if value not in (None, {}, [])}}


def _main_container(name: str, command: Sequence[str], env: list[Object], mounts: list[Object]) -> Object:
    return {
        "name": name,
        "command": list(command),
        "workingDir": WORK,
        # Kubernetes stores this file in the status of the pod when the container ends.
        "terminationMessagePath": f"{WORK}/{PEAK_MEMORY}",
        "env": env,
        "volumeMounts": mounts,
    }


def environment(job: TrainingJob, settings: ClusterSettings) -> list[Object]:
    """The environment of a replica. What is set on the task counts, but for what the entry program needs.

    It comes last. Of a PYTHONPATH that is set on the task ours is the first part.
    """
    values = {
        "PYTHONPATH": f"{_LIBRARY}:{_PACKAGES}" if _installs(settings) else _LIBRARY,
        "PYTHONUNBUFFERED": "1",
        "HOME": WORK,
        JOB_VARIABLE: f"{_CODE}/{JOB_KEY}",
    }
    if job.specification.launcher_lost_timeout is not None:
        values[LOST_SECONDS_VARIABLE] = f"{job.specification.launcher_lost_timeout:.15g}"
    store = job.name + STORE_SUFFIX
    entries = [
        *({"name": name, "value": value} for name, value in values.items()),
        *settings.environment,
        *({"name": key, "valueFrom": {"secretKeyRef": {"name": store, "key": key}}} for key in settings.object_store),
    ]
    found: dict[str, Object] = {}
    own = values["PYTHONPATH"]
    set_on_task = (each for each in settings.task.env if each["name"] not in _OURS)
    for each in (*entries, *set_on_task):
        if each["name"] == "PYTHONPATH" and own not in each.get("value", ""):
            # What comes by reference cannot be added.
            each = {"name": each["name"], "value": f"{own}:{each['value']}" if "value" in each else own}
        # It takes the last place too: its value may refer to what stands before it.
        found.pop(each["name"], None)
        found[each["name"]] = each
    return list(found.values())


def _installs(settings: ClusterSettings) -> bool:
    return bool(settings.packages or settings.packages_alone)


def _init_containers(settings: ClusterSettings, common: Object) -> list[Object]:
    """What installs the packages. It has the limits of the replica: a quota may ask for some, and they add nothing."""
    if not _installs(settings):
        return []
    return [
        {
            "name": INSTALLER,
            "command": install_command(settings.packages, settings.packages_alone, folder=_PACKAGES),
            # The cache saves a second attempt what the first one has downloaded, and goes with the container. An index
            # or a proxy is set on the task.
            "env": [
                {"name": "HOME", "value": WORK},
                {"name": "PIP_CACHE_DIR", "value": "/tmp/pip"},
                *(entry for entry in settings.task.env if entry["name"] != "PYTHONPATH"),
                {"name": "PYTHONPATH", "value": _LIBRARY},
            ],
            "volumeMounts": [
                {"name": f"{_OWN}code", "mountPath": _CODE},
                {"name": f"{_OWN}packages", "mountPath": _PACKAGES},
                {"name": f"{_OWN}work", "mountPath": WORK},
            ],
            **common,
        }
    ]


def _resources(own: Resources, task: Mapping[str, Mapping[str, str]]) -> Object:
    """Limits and requests: the dict's, and where it says nothing the task's."""
    wanted = {"cpu": own.cpus, "memory": own.memory, own.gpu_resource: str(own.gpus or "")}
    own_part = {name: value for name, value in wanted.items() if value}
    found = {part: {**task.get(part, {}), **own_part} for part in ("limits", "requests")}
    return {part: values for part, values in found.items() if values}


def _folders(job: TrainingJob, settings: ClusterSettings) -> list[tuple[str, str, Object]]:
    """What is mounted: name, path and source. The names have a prefix, for the volumes of the task have names too."""
    spec = job.specification
    found: list[tuple[str, str, Object]] = [
        ("code", _CODE, {"configMap": {"name": f"{job.name}-code"}}),
        ("work", WORK, {"emptyDir": {}}),
    ]
    if _installs(settings):
        found.append(("packages", _PACKAGES, {"emptyDir": {}}))
    if spec.shared_memory:
        memory = {"medium": "Memory", "sizeLimit": spec.shared_memory}
        found.append(("shared-memory", "/dev/shm", {"emptyDir": memory}))
    for number, volume in enumerate(map(dict, spec.volumes)):
        claim = {"claimName": volume["name"], "readOnly": volume.get("read_only", False)}
        found.append((f"volume-{number}", volume["path"], {"persistentVolumeClaim": claim}))
    return [(_OWN + name, path, source) for name, path, source in found]
