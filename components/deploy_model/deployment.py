"""Deploy a version: create or change the InferenceService, wait until it is ready, and undo the change if it is not."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest
from kfp_distributed.components.deploy_model.exported_version import ExportedVersion
from kfp_distributed.components.deploy_model.inference_service import (
    TASK_ANNOTATION,
    URI_ANNOTATION,
    deployment_id,
    deployment_of,
    model_address,
    new_service,
    next_service,
    predictor_of,
    previous_address,
    previous_service,
    replaced_addresses,
    serves_request,
    with_predictor,
)
from kfp_distributed.components.deploy_model.readiness import address_of, judge
from kfp_distributed.components.deploy_model.served_copies import ServedCopies
from kfp_distributed.components.deploy_model.service_checks import (
    check_mode,
    check_not_replaced,
    check_owner,
    check_share,
    refusal_text,
    service_path,
    try_change,
)
from kfp_distributed.components.deploy_model.service_follower import SERVICE_LABEL, ServiceFollower
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.runners.kubernetes.watch.watcher import Watcher
from kfp_distributed.components.train.run.signals import ended_by_signals, signals_wait
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.store import Store

UNDO_SECONDS = 300.0
"""Seconds to wait until the version before is ready again."""

_ATTEMPTS = 5
"""Attempts to change an InferenceService that others change at the same time."""


class DeploymentFailed(Exception):
    """A version did not become ready. The message has the reason, and what serves now."""


class Deployed(NamedTuple):
    """A version that is ready.

    Attributes:
        url: Address within the cluster.
        version: Number of the version.
        service: The InferenceService.
    """

    url: str
    version: int
    service: Object


class Deployment:
    """The deployment of one version by one step."""

    def __init__(
        self,
        api: ClusterApi,
        store: Store,
        request: DeploymentRequest,
        version: ExportedVersion,
        source: Mapping[str, str],
        log: Log,
        undo_seconds: float = UNDO_SECONDS,
    ) -> None:
        """Create a deployment without sending a request.

        Args:
            api: The cluster, with the namespace of the InferenceService.
            store: Store of the folder for exports that has the version.
            request: What to deploy.
            version: The version.
            source: Annotations that tell the run and the task.
            log: Receives lines of the step's log.
            undo_seconds: Seconds to wait until the version before is ready again. Default: 300.
        """
        self._api, self._request, self._version = api, request, version
        self._source, self._log, self._undo_seconds = source, log, undo_seconds
        self._path = service_path(api.namespace, request.name)
        self._copies = ServedCopies(store, version, request.name)
        self._copy = ""  # Address of the copy that this step deletes if the deployment fails.
        self._applied: Object | None = None
        self._has_lost_previous = False  # Whether the copy of the previous version was deleted.
        self._old_traffic: Object | None = None
        self._shown = f"InferenceService {api.namespace}/{request.name}"

    def run(self) -> Deployed:
        """Deploy the version, and wait until it is ready.

        Raises:
            ValueError: The request is refused. Nothing was changed.
            ClusterError: The API server refused a request or did not answer.
            StorageError: The object store refused a request or did not answer.
            DeploymentFailed: The version did not become ready. If this step has deployed it, that was undone.
        """
        watcher = Watcher(self._api)
        follower = ServiceFollower(self._api, watcher, self._path, self._log)

        def clean_up() -> None:
            watcher.close()
            if self._applied:
                self._log("WARNING", f"the step ends before {self._version.uri} is ready. {self._undo()[1]}")
            self._delete_copies([self._copy])

        with ended_by_signals(clean_up):
            applied = self._apply()
            follower.begin()
            service, reason = follower.wait(applied, self._request.timeout_seconds)
            if service:
                self._applied = None
                if self._copy == model_address(service["spec"]["predictor"]):
                    self._copy = ""
                if self._request.canary_percent == 100:
                    self._delete_copies(replaced_addresses(service))
                return Deployed(address_of(service), self._version.number, service)
            undone, text = self._undo()
            if undone:
                _, still = follower.wait(undone, self._undo_seconds)
                text += f" It is not ready: {still}." if still else " It is ready."
                if still:
                    self._log("WARNING", f"left {self._copy}, which replicas may still load: delete it later")
                    self._copy = ""
            raise DeploymentFailed(f"{self._version.uri} is not ready: {reason.rstrip('.')}. {text}")

    def _apply(self) -> Object:
        """Create or change the InferenceService, unless it has this deployment already; return it."""
        for attempts_left in reversed(range(_ATTEMPTS)):
            current = self._api.read(self._path)
            if current:
                check_owner(current)
            try:
                deployment = deployment_id(current, self._request, self._version, self._source[TASK_ANNOTATION])
                predictor = predictor_of(self._request, self._version, deployment)
                if current and serves_request(current, predictor):
                    return self._adopt(current)
                return self._change(current, deployment)
            except ClusterError as error:
                # Somebody else has created or changed it, or the response to an own request was lost.
                if error.status != 409 or not attempts_left:
                    raise ClusterError(error.status, refusal_text(self._api.namespace, error)) from None
        raise AssertionError  # The last attempt returns or raises.

    def _adopt(self, current: Object) -> Object:
        if current["metadata"].get("annotations", {}).get(TASK_ANNOTATION) == self._source[TASK_ANNOTATION]:
            self._log("INFO", f"adopted the deployment of {self._version.uri}, which an earlier attempt has begun")
            self._applied, self._copy = current, model_address(current["spec"]["predictor"])
            # The earlier attempt deletes it when this version is ready.
            self._has_lost_previous = self._is_lost(previous_address(current))
        else:
            self._log("INFO", f"{self._shown} has {self._version.uri} already")
        self._fetch(model_address(current["spec"]["predictor"]))  # Somebody may have deleted objects of it.
        return current

    def _change(self, current: Object | None, deployment: str) -> Object:
        request, version = self._request, self._version
        if current:
            check_not_replaced(current, version, self._source[TASK_ANNOTATION])
            # A version that was ready once has made the one before it superfluous, and that was deleted.
            is_good = self._is_lost(previous_address(current)) or self._is_ready(current)
            body = next_service(current, request, version, deployment, self._source, is_good=is_good)
        else:
            body = new_service(request, version, deployment, self._api.namespace, self._source)
        accepted = try_change(self._api, self._path, body, exists=current is not None)
        check_mode(accepted, self._request, exists=current is not None)
        # The same pods with another share of the requests. The annotation tells of the deployment before.
        is_same = current is not None and deployment_of(current) == deployment_of(body)
        self._old_traffic = current["spec"]["predictor"] if current and is_same else None
        if self._old_traffic:
            check_share(self._old_traffic, request, version)
        uri = model_address(body["spec"]["predictor"])
        if not is_same:
            self._copy = uri
        self._fetch(uri)
        with signals_wait():
            if current:
                self._applied = self._api.call("PUT", self._path, body)
            else:
                self._applied = self._api.call("POST", self._path.rpartition("/")[0], body)
        self._log("INFO", f"{'changed' if current else 'created'} {self._shown}, which has {self._version.uri} now")
        return self._applied

    def _is_ready(self, current: Object) -> bool:
        """Return whether the current deployment is ready: the status may still be that of the one before."""
        query = {"labelSelector": f"{SERVICE_LABEL}={self._request.name}"}
        pods = self._api.list_objects(f"/api/v1/namespaces/{self._api.namespace}/pods", query).items
        # Knative may have stopped all pods for lack of requests.
        return judge(current, pods, deployment_of(current), was_ready=not pods, is_new=False).state == "ready"

    def _is_lost(self, uri: str) -> bool:
        return self._copies.is_own(uri) and not self._copies.is_complete(uri)

    def _fetch(self, uri: str) -> None:
        if count := self._copies.copy(uri):
            self._log("INFO", f"the object store has copied {count} objects of {self._version.uri} to {uri}")

    def _delete_copies(self, uris: Iterable[str]) -> None:
        """Delete copies that the InferenceService does not need. A failure is a line of the log."""
        for uri in filter(self._copies.is_own, uris):
            try:
                current = self._api.read(self._path)
                # A finalizer of KServe keeps a deleted InferenceService for some seconds.
                is_needed = current and "deletionTimestamp" not in current["metadata"] and uri in self._needed(current)
                if not is_needed and self._copies.delete(uri):
                    self._log("INFO", f"deleted {uri}")
            except (ClusterError, StorageError) as error:
                self._log("WARNING", f"left {uri}, which no server needs: {error}")

    def _needed(self, current: Object) -> set[str]:
        own = model_address(current["spec"]["predictor"])
        deployment = deployment_id(current, self._request, self._version, self._source[TASK_ANNOTATION])
        # Another step that has changed it since may restore what it has replaced.
        return {own} if deployment_of(current) == deployment else {own, previous_address(current)}

    def _undo(self) -> tuple[Object | None, str]:
        """Restore what this step has replaced, or delete what it has created, unless somebody has changed it since.

        Returns:
            The restored InferenceService, None if there is none, and what serves now, as a sentence.
        """
        applied, self._applied = self._applied, None
        if not applied:
            return None, f"{self._shown} is left as it is, because another step has deployed this version."
        for _ in range(_ATTEMPTS):
            try:
                return self._undo_once(applied)
            except ClusterError as error:
                if error.status != 409:
                    return None, f"{self._shown} is left as it is, because the undo failed: {error}."
        return None, f"{self._shown} is left as it is, because others keep changing it."

    def _undo_once(self, applied: Object) -> tuple[Object | None, str]:
        current = self._api.read(self._path)
        if current is None or current["metadata"]["uid"] != applied["metadata"]["uid"]:
            return None, f"{self._shown} was deleted meanwhile."
        is_same = deployment_of(current) == deployment_of(applied)
        if not is_same or current["metadata"].get("generation") != applied["metadata"].get("generation"):
            return None, f"{self._shown} is left as it is, because somebody has changed it meanwhile."
        if self._old_traffic:
            restored = self._api.call("PUT", self._path, with_predictor(current, self._old_traffic))
            return restored, f"{self._shown} has the previous share of the requests again."
        if body := previous_service(current):
            uri = body["metadata"]["annotations"].get(URI_ANNOTATION, "its previous model")
            if self._has_lost_previous:
                text = f"because the copy of {uri} was deleted when this version became ready. Deploy another version"
                return None, f"{self._shown} is left as it is, {text}."
            restored = self._api.call("PUT", self._path, body)
            return restored, f"{self._shown} has {uri} again."
        versions = {key: current["metadata"][key] for key in ("uid", "resourceVersion")}
        self._api.call("DELETE", self._path, {"propagationPolicy": "Background", "preconditions": versions})
        return None, f"{self._shown} was deleted, because it had no version before."
