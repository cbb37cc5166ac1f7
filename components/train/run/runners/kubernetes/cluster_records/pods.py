"""Read the state of a job and its replicas from Kubernetes objects. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from kfp_distributed.components.train.describe.manifests.pod import (
    CONTAINERS,
    FIRST_REPLICA_LABEL,
    INSTALLER,
    NODE_CONTAINER,
)
from kfp_distributed.components.train.run.facts import State
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.record_times import parse_time, seconds_of

_TYPE = "training.kubeflow.org/replica-type"
_ROLE = "training.kubeflow.org/job-role"
_INDEX = "training.kubeflow.org/replica-index"
_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

_TRAINERS = frozenset(CONTAINERS.values())
"""Names of the containers that run a training. All other containers of a pod, but the installer, are foreign: an
operator or an admission webhook has added them."""

_UNINFORMATIVE_REASONS = ("ContainerCreating", "PodInitializing", "Error", "Completed", None)
"""Reasons of a container that is starting normally, or that add nothing to its exit code."""

_LONGEST_REASON = 300
"""Maximum number of characters of a reason. The error of a failed image pull contains a long chain of causes."""

_PIP = "installing packages with pip"

INSTALLATION_FAILED = "package installation failed"
"""Reason of a replica that cannot start. With restartPolicy OnFailure the kubelet would retry forever."""

_PREEMPTIONS = frozenset({"Preempting", "NodeShutdown", "Shutdown", "Terminated", "NodeLost", "NodeAffinity"})
"""Reasons of a pod's status with which a kubelet or the control plane ends a pod for the sake of its node. "Evicted" is
not among them: without the condition DisruptionTarget it means that the pod exceeded a limit of its own."""

_SUCCESS_CONDITIONS = ("Succeeded", "Complete", "SuccessCriteriaMet")
_FAILURE_CONDITIONS = ("Failed", "FailureTarget")


class PodState(NamedTuple):
    """State of a pod. See `ReplicaChanged` for the other fields.

    Attributes:
        hidden_by: Foreign containers because of which the phase of the pod does not show this end. Operators go by the
            phase.
        preempted: Whether the cluster ended the pod.
        happened: Time at which its container has started or ended, in seconds since 1970; None if unknown.
    """

    state: State
    exit_code: int | None = None
    reason: str = ""
    peak_memory: int = 0
    install_seconds: float = 0.0
    hidden_by: tuple[str, ...] = ()
    preempted: bool = False
    happened: float | None = None


def replica_of(pod: Mapping[str, Any]) -> str:
    """Return the name of a pod's replica, from the labels of its operator. The pod of a Job is worker-0."""
    labels = pod["metadata"].get("labels", {})
    if first := labels.get(FIRST_REPLICA_LABEL):
        # Kubernetes before 1.28 sets the index as an annotation alone.
        indices = {**pod["metadata"].get("annotations", {}), **labels}
        role, index = first.rpartition("-")[0], int(indices.get(_COMPLETION_INDEX, 0))
        # The Job of a master may have the workers, too, and that of a scheduler has them.
        return first if not index else f"worker-{index - 1}" if role in ("master", "scheduler") else f"{role}-{index}"
    # The master of a PyTorchJob has both labels; pods of MPIJob v2beta1 only have the role.
    role = labels.get(_TYPE) or labels.get(_ROLE) or "worker"
    return f"{role.lower()}-{labels.get(_INDEX, 0)}"


def owners_of(pod: Mapping[str, Any], kind: str) -> list[str]:
    """Return the UIDs of the owners of a pod that have a kind."""
    return [owner["uid"] for owner in pod["metadata"].get("ownerReferences", ()) if owner["kind"] == kind]


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """Return the state of a pod, its reason, and how long the installation of packages took."""
    state = _end_state(pod) or _unfinished_state(pod)
    return state._replace(install_seconds=_install_seconds(pod), happened=_state_time(pod, state))


def _state_time(pod: Mapping[str, Any], state: PodState) -> float | None:
    """Return when a pod came into a state, by the clock of its node; None if no record tells."""
    trainer, installer = (container.get("state", {}) for container in (_trainer(pod), _installer(pod)))
    if state.state in ("waiting", "pulling"):
        conditions = pod.get("status", {}).get("conditions", ())
        scheduled = (
            condition.get("lastTransitionTime") for condition in conditions if condition["type"] == "PodScheduled"
        )
        text = installer.get("terminated", {}).get("finishedAt") or next(scheduled, None)
    elif state.state == "installing":
        text = installer.get("running", {}).get("startedAt")
    elif state.state == "running":
        text = trainer.get("running", {}).get("startedAt")
    elif state.state in ("succeeded", "failed"):
        installation = installer.get("terminated", {})
        end = trainer.get("terminated") or (installation if installation.get("exitCode") else {})
        text = end.get("finishedAt")
    else:
        text = None
    return seconds_of(text)


def _end_state(pod: Mapping[str, Any]) -> PodState | None:
    """Return the state of a pod that has succeeded or failed; None if it has not ended.

    The container of the training decides. Foreign containers may have failed, or run for ever.
    """
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    end, installation = (container.get("state", {}).get("terminated") for container in (_trainer(pod), _installer(pod)))
    # The entry program writes its peak memory as termination message. Another message is the cause of the end.
    message = (end or {}).get("message") or ""
    peak = int(message) if message.isdecimal() else 0
    hidden_by = _hidden_by(pod)
    # A pod may also fail without a failed container, for example if the kubelet evicts it.
    is_failure_of_pod = phase == "Failed" and (bool(status.get("reason")) or not hidden_by)
    if phase == "Succeeded" or (end and not end["exitCode"] and not is_failure_of_pod):
        return PodState("succeeded", 0, "", peak, hidden_by=hidden_by)
    failure = next((ended for ended in (end, installation) if ended and ended["exitCode"]), None)
    if phase != "Failed" and not failure:
        return None
    # An evicted pod has the reason in its own status, and often no container with an exit code.
    shown = {**(failure or {}), "message": None} if peak else dict(failure or {})
    if shown.get("reason") == "OOMKilled":
        shown["message"] = _memory_limit(pod)
    preemption = preemption_of(pod)
    reason = preemption or _reason(status) or _reason(shown)
    if failure is None and not end:
        reason = reason or _failed_init_container(pod)
    if failure and failure is installation and failure["exitCode"] < 128:
        reason = reason or INSTALLATION_FAILED
    code = failure["exitCode"] if failure else None
    return PodState(
        "failed", code, reason, peak, hidden_by=() if phase == "Failed" else hidden_by, preempted=bool(preemption)
    )


def preemption_of(pod: Mapping[str, Any]) -> str:
    """Return why the cluster ends or has ended a pod, such as "preempted: EvictionByEvictionAPI"; "" if it does not.

    The reason includes the message of the condition or status.
    """
    status = pod.get("status", {})
    for condition in status.get("conditions", ()):
        # Kubernetes sets it to False if the pod was not deleted after all.
        if condition["type"] == "DisruptionTarget":
            return f"preempted: {_reason(condition) or 'unknown reason'}" if condition.get("status") == "True" else ""
    has_reason = status.get("phase") == "Failed" or "deletionTimestamp" in pod["metadata"]
    return f"preempted: {_reason(status)}" if has_reason and status.get("reason") in _PREEMPTIONS else ""


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether all containers of a pod run and its node responds."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition.get("status") == "True" for condition in conditions)


def has_own_reason(pod: Mapping[str, Any]) -> bool:
    """Return whether the status of a pod says why it waits: it has no node, or a container cannot start."""
    status = pod.get("status", {})
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    waiting = [container.get("state", {}).get("waiting", {}) for container in containers]
    if "nodeName" not in pod.get("spec", {}):
        waiting = [condition for condition in status.get("conditions", ()) if condition["type"] == "PodScheduled"]
    return any(state.get("reason", "") not in ("", *_UNINFORMATIVE_REASONS) for state in waiting)


def is_being_deleted(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod has failed, or is being deleted."""
    return "deletionTimestamp" in pod["metadata"] or pod_state(pod).state == "failed"


def _hidden_by(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the foreign containers because of which the phase of a pod does not show how its training ended.

    Returns:
        If the training succeeded: those that have not ended, and those that failed. If it failed and the kubelet does
        not restart it: those that have not ended. (), if the pod is being deleted, because then all of them end.
    """
    status, end = pod.get("status", {}), _trainer(pod).get("state", {}).get("terminated")
    if not end or pod["metadata"].get("deletionTimestamp") or status.get("phase") == "Succeeded":
        return ()
    if end["exitCode"] and (status.get("phase") == "Failed" or pod.get("spec", {}).get("restartPolicy") != "Never"):
        return ()
    foreign = {container["name"]: container.get("state", {}).get("terminated") for container in _sidecars(pod)}
    return tuple(name for name, ended in foreign.items() if not ended or (ended["exitCode"] and not end["exitCode"]))


def failed_sidecars(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return how foreign containers have failed beside a training that has not ended, by name."""
    trainer_ended = "terminated" in _trainer(pod).get("state", {})
    if trainer_ended or pod["metadata"].get("deletionTimestamp") or pod.get("status", {}).get("phase") == "Failed":
        return {}
    ends = {container["name"]: container.get("state", {}).get("terminated") for container in _sidecars(pod)}
    return {
        name: ", ".join(filter(None, (f"exit code {end['exitCode']}", _reason(end))))
        for name, end in ends.items()
        if end and end["exitCode"]
    }


def _unfinished_state(pod: Mapping[str, Any]) -> PodState:
    """Return the state of a pod that has not ended."""
    status, trainer = pod.get("status", {}), _trainer(pod).get("state", {})
    if "running" in trainer:
        return PodState("running")
    if "nodeName" not in pod.get("spec", {}):
        scheduled = [condition for condition in status.get("conditions", ()) if condition["type"] == "PodScheduled"]
        return PodState("waiting", None, next(map(_reason, scheduled), ""))
    if init_container := _blocking_init_container(pod):
        return _initializing_state(init_container)
    if restarts_in_place(pod):
        return PodState("starting", None, "container restarted")
    return PodState("pulling", None, _reason(trainer.get("waiting", {})))


def _initializing_state(container: Mapping[str, Any]) -> PodState:
    """Return the state of a pod that waits for an init container."""
    name, state = container["name"], container.get("state", {})
    failed = state.get("terminated") or container.get("lastState", {}).get("terminated") or {}
    waiting = state.get("waiting", {})
    if name == INSTALLER:
        is_running = "running" in state
        return PodState("installing" if is_running else "pulling", None, _PIP if is_running else _reason(waiting))
    text = f"waiting for the init container {name}"
    if failed.get("exitCode"):
        # The kubelet retries it. Its message is left out, because it changes with each attempt.
        return PodState("starting", None, f"{text}, which failed with exit code {failed['exitCode']}")
    if waiting:
        reason = _reason(waiting)
        return PodState("pulling", None, f"{text}: {reason}" if reason else "")  # Each reason is a warning.
    return PodState("starting", None, text)


def _blocking_init_container(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the status of the init container that a pod waits for; None if all have finished.

    The next container starts when an init container has succeeded, or a native sidecar has started.
    """
    native = _native_sidecars(pod)
    for container in pod.get("status", {}).get("initContainerStatuses", ()):
        end = container.get("state", {}).get("terminated")
        has_finished = container.get("started") if container["name"] in native else end and not end["exitCode"]
        if not has_finished:
            return container  # type: ignore[no-any-return]
    return None


def _failed_init_container(pod: Mapping[str, Any]) -> str:
    """Return which init container made a pod fail before its training began; "" if none did."""
    native, texts = _native_sidecars(pod), []
    for container in pod.get("status", {}).get("initContainerStatuses", ()):
        code = container.get("state", {}).get("terminated", {}).get("exitCode")
        if code and container["name"] not in native:
            texts.append(f"init container {container['name']} failed with exit code {code}")
    return next(iter(texts), "")


def _native_sidecars(pod: Mapping[str, Any]) -> set[str]:
    """Return the names of the init containers that run as long as the pod."""
    containers = pod.get("spec", {}).get("initContainers", ())
    return {container["name"] for container in containers if container.get("restartPolicy") == "Always"}


def _install_seconds(pod: Mapping[str, Any]) -> float:
    """Return the seconds that the init container needed to install all packages; 0 if it has not finished."""
    end = _installer(pod).get("state", {}).get("terminated", {})
    if end.get("exitCode") or not (end.get("startedAt") and end.get("finishedAt")):
        return 0.0
    return (parse_time(end["finishedAt"]) - parse_time(end["startedAt"])).total_seconds()


def restarts_in_place(pod: Mapping[str, Any]) -> int:
    """Return how often the container of the training was restarted in the same pod, as in an MPIJob."""
    return int(_trainer(pod).get("restartCount", 0))


def started_containers(pod: Mapping[str, Any]) -> dict[str, tuple[int, bool]]:
    """Return the containers of a pod that belong to the training and were started.

    Returns:
        Number of restarts, and whether it has ended, by name of the container.
    """
    return {
        container["name"]: (container.get("restartCount", 0), "terminated" in container["state"])
        for container in (_installer(pod), _trainer(pod))
        if container.get("state", {}).keys() & {"running", "terminated"}
    }


def _trainer(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the container that runs the training; {} if it is not known yet."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return next((container for container in statuses if container["name"] in _trainers(pod)), {})


def _trainers(pod: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that the container of the training may have."""
    first = pod["metadata"].get("labels", {}).get(FIRST_REPLICA_LABEL, "")
    is_of_train_job = first and not first.startswith("scheduler-")
    return frozenset({NODE_CONTAINER}) if is_of_train_job else _TRAINERS


def _installer(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the init container that installs packages; {} if there is none."""
    statuses = pod.get("status", {}).get("initContainerStatuses", ())
    return next((container for container in statuses if container["name"] == INSTALLER), {})


def _sidecars(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the status of each foreign container that the pod's phase depends on. Native sidecars are not."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return [container for container in statuses if container["name"] not in _trainers(pod)]


def job_end(job: Mapping[str, Any]) -> tuple[bool, str] | None:
    """Return whether a job succeeded, and its message if it failed; None if it has not ended.

    If both Failed and Succeeded are true, the job has failed.
    """
    conditions = job.get("status", {}).get("conditions") or ()
    true_conditions = {condition["type"]: condition for condition in conditions if condition["status"] == "True"}
    for name in _FAILURE_CONDITIONS:
        if name in true_conditions:
            return False, true_conditions[name].get("message", "")
    return (True, "") if true_conditions.keys() & set(_SUCCESS_CONDITIONS) else None


def failure_sentence(kind: str, message: str) -> str:
    """Return that a job of a kind has failed, with the message of its operator, as a sentence."""
    text = ": ".join(filter(None, (f"{kind} failed", message)))
    return text if text.endswith(".") else f"{text}."


def job_end_time(job: Mapping[str, Any]) -> datetime | None:
    """Return when a job ended, to the second, by the clock of its operator; None if it has not ended or if unknown."""
    status = job.get("status", {})
    end_types = (*_SUCCESS_CONDITIONS, *_FAILURE_CONDITIONS)
    ends = [condition for condition in status.get("conditions") or () if condition["type"] in end_types]
    times = [condition.get("lastTransitionTime") for condition in ends if condition["status"] == "True"]
    return min(map(parse_time, filter(None, times or [status.get("completionTime")])), default=None)


def deletion_time(pod: Mapping[str, Any]) -> datetime | None:
    """Return when a pod was deleted, to the second, by the clock of the API server; None if it was not deleted.

    `deletionTimestamp` is the end of the grace period, also after the grace period was shortened.
    """
    metadata = pod["metadata"]
    if not metadata.get("deletionTimestamp"):
        return None
    return parse_time(metadata["deletionTimestamp"]) - timedelta(
        seconds=metadata.get("deletionGracePeriodSeconds") or 0
    )


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Return whether a job is suspended, waiting for admission by its queue."""
    spec = job["spec"]
    return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))


def _memory_limit(pod: Mapping[str, Any]) -> str | None:
    container = next(container for container in pod["spec"]["containers"] if container["name"] in _trainers(pod))
    limit = container.get("resources", {}).get("limits", {}).get("memory")
    return limit and f"the limit is {limit}"


def _reason(status: Mapping[str, Any]) -> str:
    """Return the reason and message of a status in one line of limited length."""
    reason, message = status.get("reason"), status.get("message")
    text = ": ".join(filter(None, (None if reason in _UNINFORMATIVE_REASONS else reason, message))).strip()
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."
