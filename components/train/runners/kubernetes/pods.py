"""Kubernetes objects -> what they say of a job and its replicas. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from kfp_distributed.components.train.job import State
from kfp_distributed.components.train.manifests.pod import INSTALLER

_TYPE = "training.kubeflow.org/replica-type"
_ROLE = "training.kubeflow.org/job-role"
_INDEX = "training.kubeflow.org/replica-index"

# Why a container waits while all goes well, and why one ended that says nothing beyond its exit code.
_ORDINARY = ("ContainerCreating", "PodInitializing", "Error", "Completed", None)

_LONGEST_REASON = 300
"""Characters. A container runtime tells the whole chain of errors of a pull."""

NOT_INSTALLED = "its packages cannot be installed"
"""Why a replica cannot start. A kubelet would try for ever, where the pods have restartPolicy OnFailure."""

_GOOD_ENDS, _BAD_ENDS = ("Succeeded", "Complete", "SuccessCriteriaMet"), ("Failed", "FailureTarget")


class PodState(NamedTuple):
    """Where a pod stands, in the terms of `ReplicaChanged`."""

    state: State
    exit_code: int | None = None
    reason: str = ""
    peak_memory: int = 0
    install_seconds: float = 0.0


def replica_of(pod: Mapping[str, Any]) -> str:
    """The name of the replica that a pod is, by the labels of its operator; the pod of a Job is worker-0."""
    labels = pod["metadata"].get("labels", {})
    # The master of a PyTorchJob has the job-role "master" beside its type; MPIJob v2beta1 has the role alone.
    role = labels.get(_TYPE) or labels.get(_ROLE) or "worker"
    return f"{role.lower()}-{labels.get(_INDEX, 0)}"


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """Reads where a pod stands, why it is not further, and how long its packages took to install."""
    return _stage(pod)._replace(install_seconds=_install_seconds(pod))


def _stage(pod: Mapping[str, Any]) -> PodState:
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    inits, containers = status.get("initContainerStatuses", ()), _containers(pod)
    # Init containers other than ours are their operator's, and tried again until the pod has failed.
    last = [each for each in containers if phase == "Failed" or each not in inits or each["name"] == INSTALLER]
    ends = [each["state"]["terminated"] for each in last if "terminated" in each.get("state", {})]
    # The entry program's last word; another message says why the container ended.
    peak = next((int(each["message"]) for each in ends if each.get("message", "").isdecimal()), 0)
    bad = next((end for end in ends if end["exitCode"]), None)
    main = [each.get("state", {}) for each in status.get("containerStatuses", ())]
    # The containers have ended well before their pod says so.
    if phase == "Succeeded" or (phase == "Running" and main and not bad and all("terminated" in each for each in main)):
        return PodState("succeeded", 0, "", peak)
    if phase == "Failed" or bad:
        # Of an evicted pod the pod itself says why, and often no container ended by itself.
        end = {**(bad or {}), "message": None} if peak else dict(bad or {})
        if end.get("reason") == "OOMKilled":
            end["message"] = _memory_limit(pod)
        why = _why(status) or _why(end)
        if bad and bad["exitCode"] < 128:
            installing = (each["state"] for each in containers if each["name"] == INSTALLER)
            why = why or (NOT_INSTALLED if any(bad in each.values() for each in installing) else "")
        return PodState("failed", bad["exitCode"] if bad else None, why, peak)
    if any("running" in each for each in main):
        return PodState("running")
    if "nodeName" not in pod.get("spec", {}):
        places = [each for each in status.get("conditions", ()) if each["type"] == "PodScheduled"]
        return PodState("waiting", None, next(map(_why, places), ""))
    for each in inits:
        if "running" in each.get("state", {}):
            if each["name"] == INSTALLER:
                return PodState("installing", None, "pip installs its packages")
            return PodState("starting", None, f"{each['name']} runs")  # An init container of the operator's.
    if restarts_in_place(pod):
        return PodState("starting", None, "its container is started again")
    waits = [each["state"]["waiting"] for each in containers if "waiting" in each.get("state", {})]
    return PodState("pulling", None, next(filter(None, map(_why, waits)), ""))


def _install_seconds(pod: Mapping[str, Any]) -> float:
    """Seconds that the init container took to install all packages; 0 where it has not done so."""
    containers = pod.get("status", {}).get("initContainerStatuses", ())
    end: Mapping[str, Any] = next(
        (each["state"].get("terminated", {}) for each in containers if each["name"] == INSTALLER), {}
    )
    if end.get("exitCode") or not (end.get("startedAt") and end.get("finishedAt")):
        return 0.0
    started, finished = (datetime.strptime(end[key], "%Y-%m-%dT%H:%M:%S%z") for key in ("startedAt", "finishedAt"))
    return (finished - started).total_seconds()


def restarts_in_place(pod: Mapping[str, Any]) -> int:
    """How often the main container was started again in the same pod, as under MPI."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return max((each.get("restartCount", 0) for each in statuses), default=0)


def started_containers(pod: Mapping[str, Any]) -> dict[str, tuple[int, bool]]:
    """The containers of a pod that have printed or may, by name: how often each was started again, whether it ended."""
    return {
        each["name"]: (each.get("restartCount", 0), "terminated" in each["state"])
        for each in _containers(pod)
        if each.get("state", {}).keys() & {"running", "terminated"}
    }


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def job_end(job: Mapping[str, Any]) -> tuple[bool, str] | None:
    """Whether a job succeeded and why not; None while it has not ended. Failed counts before Succeeded."""
    holding = {each["type"]: each for each in job.get("status", {}).get("conditions") or () if each["status"] == "True"}
    for name in _BAD_ENDS:
        if name in holding:
            return False, holding[name].get("message", "")
    return (True, "") if holding.keys() & set(_GOOD_ENDS) else None


def job_end_time(job: Mapping[str, Any]) -> datetime | None:
    """When a job ended, to the second, by its operator's clock; None while it has not, or where nothing says so."""
    status = job.get("status", {})
    ends = [each for each in status.get("conditions") or () if each["type"] in (*_GOOD_ENDS, *_BAD_ENDS)]
    times = [each.get("lastTransitionTime") for each in ends if each["status"] == "True"]
    return min(map(_time, filter(None, times or [status.get("completionTime")])), default=None)


def deletion_time(pod: Mapping[str, Any]) -> datetime | None:
    """When somebody deleted a pod, to the second, by the API server's clock; None where nothing says so.

    `deletionTimestamp` is the end of the grace period, however often that was shortened.
    """
    about = pod["metadata"]
    if not about.get("deletionTimestamp"):
        return None
    return _time(about["deletionTimestamp"]) - timedelta(seconds=about.get("deletionGracePeriodSeconds") or 0)


def _time(text: str) -> datetime:
    # fromisoformat() of Python 3.10 does not take "Z".
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Whether a job waits for its queue to admit it."""
    spec = job["spec"]
    return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))


def _memory_limit(pod: Mapping[str, Any]) -> str | None:
    limit = pod["spec"]["containers"][0].get("resources", {}).get("limits", {}).get("memory")
    return limit and f"the limit is {limit}"


def _why(status: Mapping[str, Any]) -> str:
    reason, message = status.get("reason"), status.get("message")
    text = ": ".join(filter(None, (None if reason in _ORDINARY else reason, message))).strip()
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."
