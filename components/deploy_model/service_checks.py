"""Check the API server before an InferenceService is created or changed: KServe, permissions, owner and a dry run."""

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.objects import Object
from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest
from kfp_distributed.components.deploy_model.exported_version import ExportedVersion
from kfp_distributed.components.deploy_model.inference_service import (
    GROUP,
    KIND,
    PLURAL,
    RUN_ANNOTATION,
    URI_ANNOTATION,
    VERSION,
    is_ours,
    is_standard,
    mode_of,
    was_replaced,
)
from kfp_distributed.components.train.describe.manifests.pod import MANAGED
from kfp_distributed.components.train.run.runners.kubernetes.create.preflight import missing_permissions, served_kinds

PERMISSIONS = [
    *((verb, GROUP, PLURAL) for verb in ("create", "get", "list", "watch", "update", "delete")),
    *(("list", "", "pods"), ("watch", "", "pods")),
    ("get", "", "pods/log"),
    *(("list", "", "events"), ("watch", "", "events")),
]
"""The permissions that a deployment needs in its namespace, as (verb, API group, resource)."""


def service_path(namespace: str, name: str) -> str:
    """Return the path of an InferenceService."""
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}"


def check_kserve(api: ClusterApi) -> None:
    """Check that the cluster serves InferenceService, and that the account may do what a deployment needs.

    Raises:
        ValueError: KServe or a permission is missing.
        ClusterError: The API server does not answer.
    """
    if PLURAL not in served_kinds(api, GROUP, VERSION):
        raise ValueError(f"the cluster does not serve {KIND}: install KServe 0.11 or later")
    if missing := missing_permissions(api, PERMISSIONS):
        raise ValueError(
            f"the account of this step lacks permissions in namespace {api.namespace}: {', '.join(missing)}; "
            + _install_advice(api.namespace)
        )


def _install_advice(namespace: str) -> str:
    return (
        f"run kfp-distributed install --namespace {namespace} --deploy (and --service-account, if it is not "
        "pipeline-runner)"
    )


def check_owner(current: Object) -> None:
    """Check that an existing InferenceService may be changed.

    Raises:
        ValueError: It is of another tool, or is being deleted.
    """
    namespace, name = _names(current)
    shown = f"InferenceService {namespace}/{name}"
    if "deletionTimestamp" in current["metadata"]:
        raise ValueError(f"{shown} is being deleted: run the step again when it is gone")
    if not is_ours(current):
        label = "=".join(*MANAGED.items())
        raise ValueError(
            f"{shown} exists, and deploy_model has not created it: give another name. To let deploy_model replace its "
            f"predictor: kubectl label inferenceservice {name} -n {namespace} --overwrite {label}"
        )


def check_not_replaced(current: Object, version: ExportedVersion, task: str) -> None:
    """Check that a retried step does not replace what others have deployed since its earlier attempt.

    Raises:
        ValueError: An earlier attempt has deployed, and others have deployed since.
    """
    if not was_replaced(current, task):
        return
    annotations, (namespace, name) = current["metadata"]["annotations"], _names(current)
    run, uri = (annotations.get(key, "") for key in (RUN_ANNOTATION, URI_ANNOTATION))
    raise ValueError(
        f"an earlier attempt of this step has deployed to InferenceService {namespace}/{name}, which run {run} has "
        f"changed to {uri} since. It is left as it is. To replace it by {version.uri}, start a new run"
    )


def try_change(api: ClusterApi, path: str, body: Object, *, exists: bool) -> Object:
    """Return the InferenceService as the API server and KServe's webhooks would accept it.

    Raises:
        ValueError: They would refuse it.
        ClusterError: Somebody else has created or changed it, or the API server does not answer.
    """
    query = {"dryRun": "All"}
    try:
        if exists:
            return api.call("PUT", path, body, query)
        return api.call("POST", path.rpartition("/")[0], body, query)
    except ClusterError as error:
        if error.status in (400, 403, 404, 422) or "admission webhook" in str(error):
            text = refusal_text(api.namespace, error)
            raise ValueError(f"the API server would refuse the InferenceService: {text}") from None
        raise


def refusal_text(namespace: str, error: ClusterError) -> str:
    """Return the text of a refused request, and what to do if a permission is missing."""
    # A quota is 403, too.
    return f"{error}; {_install_advice(namespace)}" if "cannot" in str(error) and error.status == 403 else str(error)


def check_mode(accepted: Object, request: DeploymentRequest, *, exists: bool) -> None:
    """Check the request against the deployment mode that KServe would use.

    Args:
        accepted: The InferenceService, as a dry run has returned it.
        request: The request.
        exists: Whether the InferenceService exists.

    Raises:
        ValueError: The mode or the first deployment does not allow the request.
    """
    if request.canary_percent < 100 and is_standard(accepted):
        raise ValueError(
            f"canary_percent={request.canary_percent} needs KServe's mode Knative (Serverless): in the mode "
            f"{mode_of(accepted)} of this InferenceService, KServe ignores the percentage. Give 100"
        )
    if request.canary_percent < 100 and not exists:
        raise ValueError(
            f"canary_percent={request.canary_percent} needs a version that gets the other requests, but there is no "
            f"InferenceService {request.name} yet. Give 100 for the first deployment"
        )
    if request.min_replicas == 0 and is_standard(accepted):
        mode = mode_of(accepted)
        raise ValueError(f"min_replicas=0 needs KServe's mode Knative (Serverless), not {mode}. Give 1 or more")


def check_share(predictor: Object, request: DeploymentRequest, version: ExportedVersion) -> None:
    """Check a new share of the requests for the version that an InferenceService has already.

    KServe would give the other requests to the previous revision, whose model may have been deleted.

    Args:
        predictor: The predictor of the InferenceService.
        request: The request.
        version: The version.

    Raises:
        ValueError: The version has all requests.
    """
    if request.canary_percent < 100 and predictor.get("canaryTrafficPercent", 100) == 100:
        raise ValueError(
            f"canary_percent={request.canary_percent} is not allowed, because {version.uri} has all requests already: "
            "give 100, or deploy another version"
        )


def _names(current: Object) -> tuple[str, str]:
    return current["metadata"]["namespace"], current["metadata"]["name"]
