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
from kfp_distributed.components.train.describe.manifests.pod import MANAGED

GROUP, VERSION, PLURAL, KIND = "serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService"

DEPLOYMENT_LABEL = "kfp-distributed/deployment"
"""Label of the pods: hash of what their replica serves and how. The status of an InferenceService does not tell to
which of its specs it belongs: in Standard mode its observedGeneration is that of the Deployment."""

URI_ANNOTATION = "kfp-distributed/model-uri"
VERSION_ANNOTATION = "kfp-distributed/model-version"
RUN_ANNOTATION = "kfp-distributed/run"
TASK_ANNOTATION = "kfp-distributed/task"
PREVIOUS_ANNOTATION = "kfp-distributed/previous"
"""Annotation with the predictor and the annotations that this deployment has replaced, as JSON. A retried step undoes
the deployment by it."""

_OWN_ANNOTATIONS = (URI_ANNOTATION, VERSION_ANNOTATION, RUN_ANNOTATION, TASK_ANNOTATION, PREVIOUS_ANNOTATION)

MODE_ANNOTATION = "serving.kserve.io/deploymentMode"
_STANDARD_MODES = ("Standard", "RawDeployment")
"""Names of the mode without Knative: since KServe 0.16, and before."""

_PROTOCOLS = {"tensorflow": "v1", "onnx": "v2"}
"""Protocol of KServe's runtime of each format: TensorFlow Serving speaks v1, Triton v2."""

_MODELS = "/mnt/models"
"""Folder from which KServe's runtimes load models."""


def predictor_of(request: DeploymentRequest, version: ExportedVersion) -> Object:
    """Return the predictor that serves a version.

    Model servers look for MODELS/NUMBER/saved_model.pb (TensorFlow Serving) or MODELS/NAME/NUMBER/model.onnx (Triton).
    So the version is mounted in a folder of its number, without the other versions. KServe fetches all objects whose
    keys begin with the address. The slash at its end keeps version 30 out of version 3.
    """
    parent = _MODELS if version.model_format == "tensorflow" else f"{_MODELS}/{request.name}"
    model = {
        "modelFormat": {"name": version.model_format},
        "protocolVersion": _PROTOCOLS[version.model_format],
    }
    if limits := _limits(request):
        model["resources"] = {"limits": limits, "requests": limits}
    predictor: Object = {
        "model": model,
        "storageUris": [{"uri": f"{version.uri}/", "mountPath": f"{parent}/{version.number}"}],
        "minReplicas": request.min_replicas,
    }
    if request.max_replicas:
        predictor["maxReplicas"] = request.max_replicas
    if request.service_account:
        predictor["serviceAccountName"] = request.service_account
    digest = hashlib.sha256(json.dumps(predictor, sort_keys=True).encode()).hexdigest()[:32]
    predictor["labels"] = {DEPLOYMENT_LABEL: digest}
    # Not part of the hash: with another percentage, the same pods serve.
    if request.canary_percent < 100:
        predictor["canaryTrafficPercent"] = request.canary_percent
    return predictor


def _limits(request: DeploymentRequest) -> dict[str, str]:
    limits = {"cpu": request.cpus, "memory": request.memory, "nvidia.com/gpu": str(request.gpus or "")}
    return {name: limit for name, limit in limits.items() if limit}


def new_service(
    request: DeploymentRequest, version: ExportedVersion, namespace: str, source: Mapping[str, str]
) -> Object:
    """Return the InferenceService of a first deployment.

    Args:
        request: What to deploy.
        version: The version.
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
        "spec": {"predictor": predictor_of(request, version)},
    }


def next_service(
    current: Object, request: DeploymentRequest, version: ExportedVersion, source: Mapping[str, str], *, is_good: bool
) -> Object:
    """Return an existing InferenceService with another version. Its transformer, explainer and labels stay.

    Args:
        current: The InferenceService.
        request: What to deploy.
        version: The version.
        source: Annotations that tell the run and the task.
        is_good: Whether the current version is ready. If not, an undo restores the version before it.
    """
    changed = _writable(current)
    predictor = predictor_of(request, version)
    if deployment_of(current) != predictor["labels"][DEPLOYMENT_LABEL]:
        annotations = current["metadata"].get("annotations", {})
        previous = "" if is_good else annotations.get(PREVIOUS_ANNOTATION, "")
        changed["metadata"]["annotations"] = {
            **_foreign_annotations(current),
            **_annotations(version),
            **source,
            PREVIOUS_ANNOTATION: previous or _record(current),
        }
    changed["spec"]["predictor"] = predictor
    return changed


def serves_request(current: Object, request: DeploymentRequest, version: ExportedVersion) -> bool:
    """Return whether an InferenceService has the predictor of a request already.

    KServe adds defaults to a predictor, so only what a deployment differs in is compared.
    """
    predictor, own = current["spec"].get("predictor", {}), predictor_of(request, version)
    return all(predictor.get(key) == own.get(key) for key in ("labels", "storageUris", "canaryTrafficPercent"))


def with_predictor(current: Object, predictor: Object) -> Object:
    """Return an existing InferenceService with another predictor."""
    changed = _writable(current)
    changed["spec"]["predictor"] = predictor
    return changed


def previous_service(current: Object) -> Object | None:
    """Return an existing InferenceService with what its deployment has replaced; None for a first deployment."""
    text = current["metadata"].get("annotations", {}).get(PREVIOUS_ANNOTATION)
    if not text:
        return None
    record = json.loads(text)
    changed = _writable(current)
    changed["metadata"]["annotations"] = {**_foreign_annotations(current), **record["annotations"]}
    changed["spec"]["predictor"] = record["predictor"]
    return changed


def _record(current: Object) -> str:
    annotations = current["metadata"].get("annotations", {})
    # Without what it has itself replaced: the chain would grow with every deployment.
    kept = {key: annotations[key] for key in _OWN_ANNOTATIONS if key in annotations and key != PREVIOUS_ANNOTATION}
    return json.dumps({"predictor": current["spec"]["predictor"], "annotations": kept}, sort_keys=True)


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
