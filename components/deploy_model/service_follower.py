"""Follow an InferenceService: watch it, its pods and their warnings until a deployment is ready or has failed."""

import time
from collections.abc import Callable
from contextlib import suppress

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.deploy_model.inference_service import RUN_ANNOTATION, deployment_of
from kfp_distributed.components.deploy_model.readiness import Readiness, is_ready, judge
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.runners.kubernetes.watch.pod_events import PodEvents
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import (
    Changed,
    Listed,
    News,
    RequestFailed,
    ThreadFailed,
    Watcher,
)

SERVICE_LABEL = "serving.kserve.io/inferenceservice"
"""Label with which KServe marks the pods of an InferenceService."""

_STATUS_SECONDS = 30.0
"""Seconds after a change within which an unchanged status counts as that of the version before. KServe's controller
reacts within a second, but its status has no generation of the InferenceService."""

_LAST_LINES = 10
"""Number of lines of the log of a container that has failed."""

_EVENTS, _PODS, _SERVICE = "events", "pods", "the InferenceService"


class ServiceFollower:
    """Follows one InferenceService. It only reads from the cluster."""

    def __init__(self, api: ClusterApi, watcher: Watcher, path: str, log: Log) -> None:
        """Create a follower without sending a request.

        Args:
            api: The cluster.
            watcher: Source of news. The caller closes it.
            path: Path of the InferenceService.
            log: Receives lines of the step's log.
        """
        self._api, self._watcher, self._log = api, watcher, log
        self._collection, _, self._name = path.rpartition("/")
        self._core = f"/api/v1/namespaces/{api.namespace}"
        self._service: Object | None = None
        self._pods: dict[str, Object] = {}
        self._pod_events = PodEvents()
        self._were_ready: set[str] = set()
        self._warnings: list[str] = []
        self._is_listed = False

    def begin(self) -> None:
        """Start to watch the InferenceService, its pods, and the warnings about both."""
        self._watcher.watch(_SERVICE, self._collection, {"fieldSelector": f"metadata.name={self._name}"})
        self._watcher.watch(_PODS, f"{self._core}/pods", {"labelSelector": f"{SERVICE_LABEL}={self._name}"})
        selector = f"type=Warning,involvedObject.name={self._name}"
        self._watcher.watch(_EVENTS, f"{self._core}/events", {"fieldSelector": selector})
        self._watcher.ask(_EVENTS, f"{self._core}/events", lambda: self._pod_events.next_query(time.monotonic()))

    def wait(self, applied: Object, seconds: float) -> tuple[Object | None, str]:
        """Wait until a deployment is ready.

        Args:
            applied: The InferenceService of the deployment, as the API server has returned it: with the status of
                before.
            seconds: Maximum seconds to wait.

        Returns:
            The InferenceService and "" if it is ready; None and the reason if not.

        Raises:
            Exception: A thread of the watcher has failed.
        """
        begun, logged = time.monotonic(), ""
        while time.monotonic() - begun < seconds:
            if news := self._watcher.take(min(1.0, max(0.0, begun + seconds - time.monotonic()))):
                self._read(news)
            readiness = self._judge(applied, time.monotonic() - begun)
            if readiness.state == "ready":
                return self._service, ""
            if readiness.state == "failed":
                return None, readiness.reason + self._last_lines(readiness)
            if readiness.reason and readiness.reason != logged:
                logged = readiness.reason
                self._log("WARNING", f"not ready yet: {logged}")
        readiness = self._judge(applied, seconds)
        reason = readiness.reason or next(reversed(self._warnings), "KServe gives no reason")
        return None, f"it was not ready after {seconds / 60:g} minutes: {reason}{self._last_lines(readiness)}"

    def _judge(self, applied: Object, elapsed: float) -> Readiness:
        if not self._is_listed:
            return Readiness("waiting")
        service = self._service
        if service is None or service["metadata"]["uid"] != applied["metadata"]["uid"]:
            return Readiness("failed", "somebody has deleted the InferenceService")
        # News from before the change may still arrive.
        if service["metadata"].get("generation", 0) < applied["metadata"].get("generation", 0):
            return Readiness("waiting")
        deployment = deployment_of(applied)
        if deployment_of(service) != deployment:
            run = service["metadata"].get("annotations", {}).get(RUN_ANNOTATION, "")
            return Readiness("failed", "somebody else has deployed another version" + (f" (run {run})" if run else ""))
        is_new = service.get("status") == applied.get("status") and elapsed < _STATUS_SECONDS
        return judge(service, self._pods.values(), deployment, deployment in self._were_ready, is_new)

    def _read(self, news: News) -> None:
        if isinstance(news, ThreadFailed):
            raise news.error
        if isinstance(news, RequestFailed):
            self._log("WARNING", news.text)
        elif isinstance(news, Listed):
            lists = {_SERVICE: self._list_service, _PODS: self._list_pods, _EVENTS: self._list_events}
            lists[news.source](news.objects)
        elif isinstance(news, Changed):
            changes: dict[str, Callable[[Object, bool], None]] = {
                _SERVICE: self._change_service,
                _PODS: self._change_pod,
                _EVENTS: lambda event, _: self._add_event(event),
            }
            changes[news.source](news.object, news.change == "DELETED")

    def _list_service(self, services: list[Object]) -> None:
        self._service, self._is_listed = next(iter(services), None), True

    def _change_service(self, service: Object, is_deleted: bool) -> None:
        self._service = None if is_deleted else service

    def _list_pods(self, pods: list[Object]) -> None:
        self._pods = {}
        self._pod_events.update_all(pods, time.monotonic())
        for pod in pods:
            self._add_pod(pod)

    def _change_pod(self, pod: Object, is_deleted: bool) -> None:
        self._pod_events.update(pod, deleted=is_deleted, now=time.monotonic())
        if is_deleted:
            self._pods.pop(pod["metadata"]["uid"], None)
        else:
            self._add_pod(pod)

    def _add_pod(self, pod: Object) -> None:
        self._pods[pod["metadata"]["uid"]] = pod
        if is_ready(pod):
            self._were_ready.add(deployment_of(pod))

    def _list_events(self, events: list[Object]) -> None:
        for event in events:
            self._add_event(event)

    def _add_event(self, event: Object) -> None:
        involved = event.get("involvedObject", {})
        # Events of an earlier InferenceService of the name stay for an hour.
        if involved.get("uid") not in {self._uid_of_service, *self._pods}:
            return
        text = f"{involved.get('kind')} {involved.get('name')}: {event.get('reason')}: {event.get('message')}"
        if text not in self._warnings:
            self._warnings.append(text)
            self._log("WARNING", text)

    @property
    def _uid_of_service(self) -> str:
        return str(self._service["metadata"]["uid"]) if self._service else ""

    def _last_lines(self, readiness: Readiness) -> str:
        """Return the last lines of the container that has failed, after a colon; "" if there are none."""
        if not readiness.crashed:
            return ""
        pod, container = readiness.crashed
        # Its current start has no lines yet, or the kubelet has not started it again.
        for previous in ("true", "false"):
            query = {"container": container, "tailLines": str(_LAST_LINES), "previous": previous}
            with suppress(ClusterError):
                lines = [*self._api.lines(f"{self._core}/pods/{pod}/log", query, idle_seconds=10)]
                if any(lines):
                    return ". Its last lines:\n" + "\n".join(lines)
        return ""
