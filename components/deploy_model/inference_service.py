"""Describe an InferenceService: a new one, its next version, and the undo of that version. Pure.

KServe copies the annotations of an InferenceService to its pods, so every change of an annotation starts new pods. That
is why they are written together with the model, and never again.
"""

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy

from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest
from kfp_distributed.components.deploy_model.exported_version import ExportedVersion
from kfp_distributed.components.deploy_model.served_copies import copy_uri
from kfp_distributed.components.model_versions.versions import LANGUAGE_MODEL
from kfp_distributed.components.train.describe.manifests.pod import MANAGED

GROUP, VERSION, PLURAL, KIND = "serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService"

DEPLOYMENT_LABEL = "kfp-distributed/deployment"
"""Label of the pods: ID of the deployment. It is the hash of what a replica serves and how, and that of the task. The
status of an InferenceService does not tell to which of its specs it belongs: in Standard mode its observedGeneration is
that of the Deployment."""

URI_ANNOTATION = "kfp-distributed/model-uri"
VERSION_ANNOTATION = "kfp-distributed/model-version"
RUN_ANNOTATION = "kfp-distributed/run"
TASK_ANNOTATION = "kfp-distributed/task"
PREVIOUS_ANNOTATION = "kfp-distributed/previous"
"""Annotation with the predictor and the annotations that this deployment has replaced, and with the addresses of the
models that no server needs once it is ready, as JSON. A retried step undoes or finishes the deployment by it."""

EARLIER_ANNOTATION = "kfp-distributed/earlier"
"""Annotation with the IDs of the deployments before this one, the latest first, by which a retried step recognizes that
others have replaced its deployment."""

_EARLIER_COUNT = 30
"""Number of IDs in this annotation, which then has 1 KiB. All annotations of an object have 256 KiB at most."""

_OWN_ANNOTATIONS = (
    URI_ANNOTATION,
    VERSION_ANNOTATION,
    RUN_ANNOTATION,
    TASK_ANNOTATION,
    PREVIOUS_ANNOTATION,
    EARLIER_ANNOTATION,
)

MODE_ANNOTATION = "serving.kserve.io/deploymentMode"
_STANDARD_MODES = ("Standard", "RawDeployment")
"""Names of the mode without Knative: since KServe 0.16, and before."""

_PROTOCOLS = {"tensorflow": "v1", "onnx": "v2", LANGUAGE_MODEL: "v2"}
"""Protocol of KServe's runtime of each format: TensorFlow Serving speaks v1, Triton v2. The runtime of language models
has both, and serves chats at /openai/v1 besides."""


def deployment_id(current: Object | None, request: DeploymentRequest, version: ExportedVersion, task: str) -> str:
    """Return the ID of a deployment: that of the current one if it serves the same, with any share of the requests.

    Clusters and namespaces that share a bucket have other tasks, and so never the same ID.

    Args:
        current: The InferenceService; None if there is none.
        request: What to deploy.
        version: The version.
        task: Unique address of the task.
    """
    content = _digest(version.uri + json.dumps(_replica(request, version), sort_keys=True))
    if current:
        deployment = deployment_of(current)
        uri = copy_uri(version, request.name, deployment)
        if deployment.startswith(f"{content}-") and model_address(current["spec"]["predictor"]) == uri:
            return deployment
    return f"{content}-{_digest(task)}"


def predictor_of(request: DeploymentRequest, version: ExportedVersion, deployment: str) -> Object:
    """Return the predictor that serves a version.

    Args:
        request: What to deploy.
        version: The version.
        deployment: ID of the deployment.
    """
    predictor = _replica(request, version)
    predictor["model"]["storageUri"] = copy_uri(version, request.name, deployment)
    predictor["labels"] = {DEPLOYMENT_LABEL: deployment}
    if request.canary_percent < 100:
        predictor["canaryTrafficPercent"] = request.canary_percent
    return predictor


def _replica(request: DeploymentRequest, version: ExportedVersion) -> Object:
    """Return the part of a predictor that two deployments of the same have in common."""
    model: Object = {
        "modelFormat": {"name": version.model_format},
        "protocolVersion": _PROTOCOLS[version.model_format],
    }
    if limits := _limits(request):
        model["resources"] = {"limits": limits, "requests": limits}
    predictor: Object = {
        "model": model,
        "minReplicas": request.min_replicas,
    }
    if request.max_replicas:
        predictor["maxReplicas"] = request.max_replicas
    if request.service_account:
        predictor["serviceAccountName"] = request.service_account
    return predictor


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _limits(request: DeploymentRequest) -> dict[str, str]:
    limits = {"cpu": request.cpus, "memory": request.memory, "nvidia.com/gpu": str(request.gpus or "")}
    return {name: limit for name, limit in limits.items() if limit}


def new_service(
    request: DeploymentRequest, version: ExportedVersion, deployment: str, namespace: str, source: Mapping[str, str]
) -> Object:
    """Return the InferenceService of a first deployment.

    Args:
        request: What to deploy.
        version: The version.
        deployment: ID of the deployment.
        namespace: Namespace of the InferenceService.
        source: Annotations that tell the run and the task.
    """
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {
            "name": request.name,
            "namespace": namespace,
            "labels": dict(MANAGED),
            "annotations": {**_annotations(version), **source},
        },
        "spec": {"predictor": predictor_of(request, version, deployment)},
    }


def next_service(
    current: Object,
    request: DeploymentRequest,
    version: ExportedVersion,
    deployment: str,
    source: Mapping[str, str],
    *,
    is_good: bool,
) -> Object:
    """Return an existing InferenceService with another version. Its transformer, explainer and labels stay.

    Args:
        current: The InferenceService.
        request: What to deploy.
        version: The version.
        deployment: ID of the deployment.
        source: Annotations that tell the run and the task.
        is_good: Whether the current version is ready. If not, an undo restores the version before it.
    """
    changed = _writable(current)
    if deployment_of(current) != deployment:
        changed["metadata"]["annotations"] = {
            **_foreign_annotations(current),
            **_annotations(version),
            **source,
            EARLIER_ANNOTATION: ",".join([deployment_of(current), *_earlier(current)][:_EARLIER_COUNT]),
            PREVIOUS_ANNOTATION: json.dumps(_record(current, is_good=is_good), sort_keys=True),
        }
    changed["spec"]["predictor"] = predictor_of(request, version, deployment)
    return changed


def serves_request(current: Object, predictor: Object) -> bool:
    """Return whether an InferenceService has a predictor already.

    KServe adds defaults to a predictor, so only what deployments differ in is compared.
    """
    own = current["spec"].get("predictor", {})
    return model_address(own) == model_address(predictor) and all(
        own.get(key) == predictor.get(key) for key in ("labels", "canaryTrafficPercent")
    )


def was_replaced(current: Object, task: str) -> bool:
    """Return whether a task has deployed to an InferenceService, and others have replaced that since.

    Args:
        current: The InferenceService.
        task: Unique address of the task.
    """
    own = f"-{_digest(task)}"
    return not deployment_of(current).endswith(own) and any(entry.endswith(own) for entry in _earlier(current))


def model_address(predictor: Object) -> str:
    """Return the address that KServe fetches the model from; "" for a predictor of another tool without one."""
    return str((predictor.get("model") or {}).get("storageUri", ""))


def previous_address(current: Object) -> str:
    """Return the address of the model that an undo restores; "" if there is none."""
    return model_address(_previous(current).get("predictor", {}))


def replaced_addresses(current: Object) -> list[str]:
    """Return the addresses of the models that no server needs once the deployment has all requests."""
    return list(_previous(current).get("replaced", ()))


def with_predictor(current: Object, predictor: Object) -> Object:
    """Return an existing InferenceService with another predictor."""
    changed = _writable(current)
    changed["spec"]["predictor"] = predictor
    return changed


def previous_service(current: Object) -> Object | None:
    """Return an existing InferenceService with what its deployment has replaced; None for a first deployment."""
    record = _previous(current)
    if not record:
        return None
    changed = _writable(current)
    changed["metadata"]["annotations"] = {**_foreign_annotations(current), **record["annotations"]}
    changed["spec"]["predictor"] = record["predictor"]
    return changed


def _previous(current: Object) -> Object:
    return dict(json.loads(current["metadata"].get("annotations", {}).get(PREVIOUS_ANNOTATION) or "{}"))


def _earlier(current: Object) -> list[str]:
    text = current["metadata"].get("annotations", {}).get(EARLIER_ANNOTATION, "")
    return [*filter(None, text.split(","))]


def _record(current: Object, *, is_good: bool) -> Object:
    annotations, predictor, before = current["metadata"].get("annotations", {}), current["spec"]["predictor"], {}
    # Otherwise the current version has all requests, and the chain would grow with every deployment.
    if not is_good or "canaryTrafficPercent" in predictor:
        before = _previous(current)
    replaced = {*before.get("replaced", ()), model_address(predictor)} - {""}
    if is_good or not before:
        kept = {key: annotations[key] for key in _OWN_ANNOTATIONS if key in annotations and key != PREVIOUS_ANNOTATION}
        before = {"predictor": predictor, "annotations": kept}
    return {**before, "replaced": sorted(replaced)}


def _annotations(version: ExportedVersion) -> dict[str, str]:
    return {URI_ANNOTATION: version.uri, VERSION_ANNOTATION: str(version.number)}


def _foreign_annotations(current: Object) -> dict[str, str]:
    annotations = current["metadata"].get("annotations", {})
    return {key: value for key, value in annotations.items() if key not in _OWN_ANNOTATIONS}


def _writable(current: Object) -> Object:
    """Return a copy of an object for an update, which fails if somebody else has changed the object since."""
    return deepcopy({key: value for key, value in current.items() if key != "status"})


def deployment_of(item: Object) -> str:
    """Return the deployment that an InferenceService or a pod is of; "" for one of another tool."""
    labels = item.get("spec", {}).get("predictor", {}).get("labels") or item["metadata"].get("labels") or {}
    return str(labels.get(DEPLOYMENT_LABEL, ""))


def is_ours(current: Object) -> bool:
    """Return whether this library has created an InferenceService, or somebody has handed it over by its label."""
    return MANAGED.items() <= (current["metadata"].get("labels") or {}).items()


def mode_of(service: Object) -> str:
    """Return the mode in which KServe runs an InferenceService, such as "Standard" or "Knative".

    Args:
        service: The InferenceService as the API server returns it: KServe's webhook sets the annotation if the mode is
            not that of Knative, also in a dry run.
    """
    annotations, status = service["metadata"].get("annotations", {}), service.get("status", {})
    return str(annotations.get(MODE_ANNOTATION) or status.get("deploymentMode") or "Knative")


def is_standard(service: Object) -> bool:
    """Return whether KServe runs an InferenceService without Knative."""
    return mode_of(service) in _STANDARD_MODES
