"""Read the state of a job and its replicas from Kubernetes objects. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from kfp_distributed.components.train.job import State
from kfp_distributed.components.train.manifests.pod import INSTALLER

_TYPE = "training.kubeflow.org/replica-type"
_ROLE = "training.kubeflow.org/job-role"
_INDEX = "training.kubeflow.org/replica-index"

_UNINFORMATIVE_REASONS = ("ContainerCreating", "PodInitializing", "Error", "Completed", None)
"""Reasons of a container that is starting normally, or that add nothing to its exit code."""

_LONGEST_REASON = 300
"""Maximum number of characters of a reason. The error of a failed image pull contains a long chain of causes."""

INSTALLATION_FAILED = "package installation failed"
"""Reason of a replica that cannot start. With restartPolicy OnFailure the kubelet would retry forever."""

_SUCCESS_CONDITIONS = ("Succeeded", "Complete", "SuccessCriteriaMet")
_FAILURE_CONDITIONS = ("Failed", "FailureTarget")


class PodState(NamedTuple):
    """State of a pod. See `ReplicaChanged` for the fields."""

    state: State
    exit_code: int | None = None
    reason: str = ""
    peak_memory: int = 0
    install_seconds: float = 0.0


def replica_of(pod: Mapping[str, Any]) -> str:
    """Return the name of a pod's replica, from the labels of its operator. The pod of a Job is worker-0."""
    labels = pod["metadata"].get("labels", {})
    # The master of a PyTorchJob has both labels; pods of MPIJob v2beta1 only have the role.
    role = labels.get(_TYPE) or labels.get(_ROLE) or "worker"
    return f"{role.lower()}-{labels.get(_INDEX, 0)}"


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """Return the state of a pod, its reason, and how long the installation of packages took."""
    state = _end_state(pod) or _unfinished_state(pod)
    return state._replace(install_seconds=_install_seconds(pod))


def _end_state(pod: Mapping[str, Any]) -> PodState | None:
    """Return the state of a pod that has succeeded or failed; None if it has not ended."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    inits, containers = status.get("initContainerStatuses", ()), _containers(pod)
    # The kubelet retries init containers of the operator, so their exit codes only count when the pod has failed.
    counted = [
        container
        for container in containers
        if phase == "Failed" or container not in inits or container["name"] == INSTALLER
    ]
    ends = [container["state"]["terminated"] for container in counted if "terminated" in container.get("state", {})]
    # The entry program writes its peak memory as termination message. Another message is the cause of the end.
    peak = next((int(end["message"]) for end in ends if end.get("message", "").isdecimal()), 0)
    failure = next((end for end in ends if end["exitCode"]), None)
    main = [container.get("state", {}) for container in status.get("containerStatuses", ())]
    # The containers have ended some time before the phase of the pod changes.
    is_done = phase == "Running" and main and not failure and all("terminated" in state for state in main)
    if phase == "Succeeded" or is_done:
        return PodState("succeeded", 0, "", peak)
    if phase != "Failed" and not failure:
        return None
    # An evicted pod has the reason in its own status, and often no container with an exit code.
    end = {**(failure or {}), "message": None} if peak else dict(failure or {})
    if end.get("reason") == "OOMKilled":
        end["message"] = _memory_limit(pod)
    reason = _reason(status) or _reason(end)
    if failure and failure["exitCode"] < 128:
        installer_states = (container["state"] for container in containers if container["name"] == INSTALLER)
        reason = reason or (INSTALLATION_FAILED if any(failure in state.values() for state in installer_states) else "")
    return PodState("failed", failure["exitCode"] if failure else None, reason, peak)


def _unfinished_state(pod: Mapping[str, Any]) -> PodState:
    """Return the state of a pod that has not ended."""
    status = pod.get("status", {})
    if any("running" in container.get("state", {}) for container in status.get("containerStatuses", ())):
        return PodState("running")
    if "nodeName" not in pod.get("spec", {}):
        scheduled = [condition for condition in status.get("conditions", ()) if condition["type"] == "PodScheduled"]
        return PodState("waiting", None, next(map(_reason, scheduled), ""))
    for container in status.get("initContainerStatuses", ()):
        if "running" in container.get("state", {}):
            if container["name"] == INSTALLER:
                return PodState("installing", None, "installing packages with pip")
            return PodState("starting", None, f"init container {container['name']} is running")
    if restarts_in_place(pod):
        return PodState("starting", None, "container restarted")
    waiting = [
        container["state"]["waiting"] for container in _containers(pod) if "waiting" in container.get("state", {})
    ]
    return PodState("pulling", None, next(filter(None, map(_reason, waiting)), ""))


def _install_seconds(pod: Mapping[str, Any]) -> float:
    """Return the seconds that the init container needed to install all packages; 0 if it has not finished."""
    containers = pod.get("status", {}).get("initContainerStatuses", ())
    end: Mapping[str, Any] = next(
        (container["state"].get("terminated", {}) for container in containers if container["name"] == INSTALLER), {}
    )
    if end.get("exitCode") or not (end.get("startedAt") and end.get("finishedAt")):
        return 0.0
    started, finished = (datetime.strptime(end[key], "%Y-%m-%dT%H:%M:%S%z") for key in ("startedAt", "finishedAt"))
    return (finished - started).total_seconds()


def restarts_in_place(pod: Mapping[str, Any]) -> int:
    """Return how often the main container was restarted in the same pod, as in an MPIJob."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return max((container.get("restartCount", 0) for container in statuses), default=0)


def started_containers(pod: Mapping[str, Any]) -> dict[str, tuple[int, bool]]:
    """Return the containers of a pod that were started, by name: number of restarts, and whether it has ended."""
    return {
        container["name"]: (container.get("restartCount", 0), "terminated" in container["state"])
        for container in _containers(pod)
        if container.get("state", {}).keys() & {"running", "terminated"}
    }


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


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


def job_end_time(job: Mapping[str, Any]) -> datetime | None:
    """Return when a job ended, to the second, by the clock of its operator; None if it has not ended or if unknown."""
    status = job.get("status", {})
    end_types = (*_SUCCESS_CONDITIONS, *_FAILURE_CONDITIONS)
    ends = [condition for condition in status.get("conditions") or () if condition["type"] in end_types]
    times = [condition.get("lastTransitionTime") for condition in ends if condition["status"] == "True"]
    return min(map(_time, filter(None, times or [status.get("completionTime")])), default=None)


def deletion_time(pod: Mapping[str, Any]) -> datetime | None:
    """Return when a pod was deleted, to the second, by the clock of the API server; None if it was not deleted.

    `deletionTimestamp` is the end of the grace period, also after the grace period was shortened.
    """
    metadata = pod["metadata"]
    if not metadata.get("deletionTimestamp"):
        return None
    return _time(metadata["deletionTimestamp"]) - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)


def _time(text: str) -> datetime:
    # fromisoformat() of Python 3.10 does not accept "Z".
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Return whether a job is suspended, waiting for admission by its queue."""
    spec = job["spec"]
    return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))


def _memory_limit(pod: Mapping[str, Any]) -> str | None:
    limit = pod["spec"]["containers"][0].get("resources", {}).get("limits", {}).get("memory")
    return limit and f"the limit is {limit}"


def _reason(status: Mapping[str, Any]) -> str:
    """Return the reason and message of a status in one line of limited length."""
    reason, message = status.get("reason"), status.get("message")
    text = ": ".join(filter(None, (None if reason in _UNINFORMATIVE_REASONS else reason, message))).strip()
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."
