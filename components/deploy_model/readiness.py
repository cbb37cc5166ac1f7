"""Whether an InferenceService serves a deployment, and if not, why. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.deploy_model.inference_service import deployment_of, is_standard

INITIALIZER, SERVER = "storage-initializer", "kserve-container"
"""Names of KServe's containers: the first fetches the model, the second serves it."""

_REVISION_LABEL = "serving.knative.dev/revision"

_FOR_GOOD = ("InvalidImageName", "ErrImageNeverPull")
"""Reasons of a waiting container that do not go away by themselves."""

_STARTING = ("ContainerCreating", "PodInitializing")

_FAILED_STARTS = 2
"""Number of failed starts of a container after which a deployment has failed. The first may be due to a short outage
of the object store."""

_LONGEST_REASON = 1000

_CREDENTIALS = ("Unable to locate credentials", "NoCredentialsError", "InvalidAccessKeyId", "AccessDenied", "Forbidden")


class Readiness(NamedTuple):
    """What is known of a deployment.

    Attributes:
        state: "ready", "failed" or "waiting". A failed one does not become ready by itself.
        reason: Why it is not ready, as a clause; "" if unknown.
        crashed: Name of the pod and of the container whose last lines tell more; None if there is none.
    """

    state: Literal["ready", "failed", "waiting"]
    reason: str = ""
    crashed: tuple[str, str] | None = None


def judge(
    service: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], deployment: str, was_ready: bool, is_new: bool
) -> Readiness:
    """Return what is known of a deployment.

    In both modes of KServe, the InferenceService may be Ready by the pods of the version before. So at least one pod of
    this deployment must have been ready. In Standard mode there must also be no other pods: Knative keeps some for a
    canary, and removes the others when their requests are done.

    Args:
        service: The InferenceService.
        pods: Its pods.
        deployment: The deployment, as `deployment_of` returns it.
        was_ready: Whether one of its pods was ready. Knative may have stopped it since for lack of requests.
        is_new: Whether the status may still be that of the version before.
    """
    living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    own = [pod for pod in living if deployment_of(dict(pod)) == deployment]
    ready = [pod for pod in own if is_ready(pod)]
    if (ready or was_ready) and _serves(service, ready, others=len(living) - len(own)):
        if not address_of(dict(service)):
            return Readiness("waiting", "its status has no address yet")
        return Readiness("ready")
    for finding in sorted(filter(None, map(_judge_pod, own)), key=lambda finding: finding.state != "failed"):
        return finding
    status = service.get("status", {})
    failure = status.get("modelStatus", {}).get("lastFailureInfo") or {}
    if status.get("modelStatus", {}).get("transitionStatus") == "InvalidSpec" and not is_new:
        return Readiness("failed", _invalid(failure))
    return Readiness("waiting", "" if is_new else _condition_reason(service))


def is_ready(item: Mapping[str, Any]) -> bool:
    """Return whether a pod serves requests, or an InferenceService: the version of its spec, or one before it."""
    return _is_true(item.get("status", {}), "Ready")


def _serves(service: Mapping[str, Any], ready: list[Mapping[str, Any]], others: int) -> bool:
    status = service.get("status", {})
    # A service without the status of a model is of a server with a container of its own.
    states = status.get("modelStatus", {}).get("states", {"targetModelState": "Loaded"})
    if not is_ready(service) or states.get("targetModelState") != "Loaded":
        return False
    if is_standard(dict(service)):
        return not others
    predictor = status.get("components", {}).get("predictor", {})
    newest = predictor.get("latestReadyRevision", "")
    revisions = {pod["metadata"].get("labels", {}).get(_REVISION_LABEL) for pod in ready}
    return newest == predictor.get("latestCreatedRevision", "") and (not revisions or newest in revisions)


def _judge_pod(pod: Mapping[str, Any]) -> Readiness | None:
    """Return why a pod is not ready; None if it is ready, or just starting."""
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    if "nodeName" not in pod.get("spec", {}):
        for condition in status.get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition.get("status") == "False":
                return Readiness("waiting", f"no node has room for pod {name}: {_text(condition)}")
        return None
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    findings = [_judge_container(name, container) for container in containers]
    # The first container that is not ready blocks the others.
    return next(filter(None, findings), None)


def _judge_container(pod: str, container: Mapping[str, Any]) -> Readiness | None:
    name, state = container["name"], container.get("state", {})
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated") or {}
    waiting = state.get("waiting", {})
    reason = waiting.get("reason", "")
    if ended.get("exitCode") and not container.get("ready"):
        starts = container.get("restartCount", 0) + ("running" not in state)
        # CrashLoopBackOff follows each end, before the kubelet has counted the next start.
        return _judge_end(pod, name, ended, has_failed=starts >= _FAILED_STARTS)
    if not reason or reason in _STARTING:
        return None
    what = "its image cannot be pulled" if "Image" in reason or "Pull" in reason else "it cannot start"
    text = f"container {name} of pod {pod} waits, {what}: {_text(waiting)}"
    return Readiness("failed" if reason in _FOR_GOOD else "waiting", text)


def _judge_end(pod: str, container: str, ended: Mapping[str, Any], *, has_failed: bool) -> Readiness:
    if ended.get("reason") == "OOMKilled":
        text = f"container {container} of pod {pod} needs more memory than its limit (OOMKilled): set memory"
    else:
        what = "could not fetch the model" if container == INITIALIZER else "ended"
        text = f"container {container} of pod {pod} {what} (exit code {ended['exitCode']})"
    message = _shortened(ended.get("message") or "")
    text += f": {message}" if message else ""
    if container == INITIALIZER and any(word in message for word in _CREDENTIALS):
        text += f". {credentials_advice()}"
    crashed = None if message else (pod, container)
    return Readiness("failed" if has_failed else "waiting", text, crashed)


def credentials_advice() -> str:
    """Return what KServe needs to read the object store."""
    return (
        "KServe reads the keys of the object store from a Secret that the ServiceAccount of the server lists. Pass a "
        "service_account that lists such a Secret, which has AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and the "
        "annotation serving.kserve.io/s3-endpoint"
    )


def _invalid(failure: Mapping[str, Any]) -> str:
    text = ": ".join(filter(None, (failure.get("reason"), failure.get("message")))) or "KServe gives no reason"
    if failure.get("reason") == "NoSupportingRuntime":
        text += ". Install a ServingRuntime or ClusterServingRuntime for this format and protocol"
    return f"KServe refuses the predictor ({text})"


def _condition_reason(service: Mapping[str, Any]) -> str:
    conditions = service.get("status", {}).get("conditions", ())
    by_type = {condition["type"]: condition for condition in conditions if condition.get("status") != "True"}
    # "Ready" repeats the first of the others.
    for name in ("PredictorReady", "IngressReady", "Ready"):
        if text := _text(by_type.get(name, {})):
            return f"{name} is {by_type[name].get('status')}: {text}"
    return ""


def _is_true(status: Mapping[str, Any], name: str) -> bool:
    conditions = status.get("conditions", ())
    return any(condition["type"] == name and condition.get("status") == "True" for condition in conditions)


def _text(status: Mapping[str, Any]) -> str:
    return _shortened(": ".join(filter(None, (status.get("reason"), status.get("message")))))


def _shortened(text: str) -> str:
    """Return the end of a text of many lines in one line: the last ones tell the cause."""
    line = " | ".join(part.strip() for part in text.splitlines() if part.strip())
    return line if len(line) <= _LONGEST_REASON else f"...{line[-_LONGEST_REASON:]}"


def address_of(service: Object) -> str:
    """Return the address of an InferenceService within the cluster, else its external one; "" if it has none."""
    status = service.get("status", {})
    return str(status.get("address", {}).get("url") or status.get("url") or "")
