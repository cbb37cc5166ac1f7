"""Runs the step `deploy_model` on the parameters and the artifact of KFP."""

import json
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.deploy_model.deployment import Deployment, DeploymentFailed
from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest, parse_request
from kfp_distributed.components.deploy_model.exported_version import (
    ExportedVersion,
    VersionMissing,
    check_in_store,
    find_version,
)
from kfp_distributed.components.deploy_model.inference_service import RUN_ANNOTATION, TASK_ANNOTATION, is_standard
from kfp_distributed.components.deploy_model.local_deployment import NotServed, check_local, deploy_locally
from kfp_distributed.components.deploy_model.served_version import find_served_version
from kfp_distributed.components.deploy_model.service_checks import check_kserve
from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.model_versions.aliases import resolve
from kfp_distributed.components.model_versions.versions import LANGUAGE_MODEL
from kfp_distributed.components.train.run.runners.local.interpreter import find_python
from kfp_distributed.components.train.run.runners.runner_choice import kind_of_runner
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.placeholders import refuse_placeholders
from kfp_distributed.storage.kubeflow.task_folder import parse_task_folder
from kfp_distributed.storage.store import Store
from kfp_distributed.trainers.programs.program import LANGUAGE_MODEL as TRAINER


class DeployedModel(NamedTuple):
    """Address of the model server, and number of the version that it serves."""

    url: str
    version: int


def run_step(*, deployment: Artifact, model_uri: str, runner: str = "auto", **parameters: Any) -> DeployedModel:  # noqa: ANN401  (checked by parse_request)
    """Deploy a version. The parameters are those of the component.

    Raises:
        SystemExit: The version is not deployed. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    try:
        refuse_placeholders({"model_uri": model_uri, "runner": runner, **parameters})
        request = parse_request(**parameters)
        is_local = kind_of_runner(runner) == "local"
        if is_local:
            check_local(request)
        address = resolve(model_uri)  # Once, because an alias may move.
        if is_local:
            version, _ = find_version(address)
            is_language_model = version.model_format == LANGUAGE_MODEL
            python = find_python({"trainer": TRAINER}, "Job") if is_language_model else ""
            place = {"namespace": "", "url": deploy_locally(request, address, python), "mode": "local"}
        else:
            version, place = _deploy(request, address, _source(deployment.uri))
    except (ValueError, OSError, StorageError, ClusterError, DeploymentFailed, NotServed) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
    record = {
        "name": request.name,
        **place,
        "model_uri": version.uri,
        "version": version.number,
        "format": version.model_format,
        "canary_percent": request.canary_percent,
    }
    ready = f"{version.uri} is ready at {place['url']}"
    try:
        Path(deployment.path).write_text(json.dumps(record, indent=1), encoding="utf-8")
    except OSError as error:
        problem = f"{ready}, but the file of the output deployment cannot be written: {error}"
        raise SystemExit(f"\n{problem}. It stays deployed: run the step again to get its outputs") from None
    deployment.metadata.update(record)
    log("INFO", ready)
    return DeployedModel(place["url"], version.number)


def _deploy(
    request: DeploymentRequest, model_uri: str, source: dict[str, str]
) -> tuple[ExportedVersion, dict[str, str]]:
    """Deploy a version with KServe; return it, and where it is served."""
    check_in_store(model_uri)
    api = connect(request.namespace)
    check_kserve(api)
    version, store = _find(api, request.name, model_uri)
    deployed = Deployment(api, store, request, version, source, log).run()
    mode = "Standard" if is_standard(deployed.service) else "Knative"
    return version, {"namespace": api.namespace, "url": deployed.url, "mode": mode}


def _find(api: ClusterApi, name: str, model_uri: str) -> tuple[ExportedVersion, Store]:
    try:
        return find_version(model_uri)
    except VersionMissing:
        served = find_served_version(api, name, model_uri)
        if served is None:
            raise
        log("INFO", f"{served[0].uri} was deleted: its copy {served[0].folder} is deployed, which servers load already")
        return served


def _source(output_uri: str) -> dict[str, str]:
    """Return the annotations that tell the run and the task."""
    task = parse_task_folder(output_uri)
    # Another task may have the same folder, and must not undo this deployment.
    distinction = "" if task.is_unique else f"#{uuid.uuid4().hex}"
    return {RUN_ANNOTATION: task.run_id, TASK_ANNOTATION: task.uri + distinction}
