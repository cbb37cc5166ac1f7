"""Identify the training of a `train` step: the same for all attempts of one task, unique among tasks.

The name of the job and the folder of its checkpoints depend on it. Therefore a retried step adopts its own job and
resumes from its own checkpoints, never from those of another task, run or ParallelFor iteration.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.train.describe.task_path import TaskPath, parse_node_name, without_attempts
from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.runners.kubernetes.create.preflight import install_advice
from kfp_distributed.storage.kubeflow.kfp_backend import (
    NODE_NAME,
    NODE_NAME_ANNOTATION,
    POD_NAME_VARIABLE,
    RUN_ID_LABEL,
)
from kfp_distributed.storage.kubeflow.task_folder import TaskFolder, parse_task_folder

_POD_IS_NEEDED = (
    "Backends before KFP 2.4 use the same output folder for all iterations of a ParallelFor, so the step must read "
    "its own pod"
)
_NO_TASK_PATH = "the name of the job has no sub-pipelines and iterations"
_FINISHED_TRAININGS = "finished-trainings"
"""Name of a file in a task folder of `kfp.local`: digests of the trainings that have succeeded there, one per line."""


@dataclass(frozen=True)
class TrainingIdentity:
    """Identity of a training.

    Attributes:
        run_id: ID of the pipeline run.
        task_name: Name of the task in its pipeline.
        distinction: Values that together are unique to this training within the run.
    """

    run_id: str
    task_name: str
    distinction: tuple[str, ...]


def identify_training(
    model_uri: str, inputs: Mapping[str, object], log: Log, read_node_name: Callable[[], str] | None = None
) -> TrainingIdentity:
    """Identify the training by the URI of the step's model artifact and, if that is ambiguous, by the step's pod.

    `kfp.local` uses one folder for all tasks of a component and all iterations of a ParallelFor. There, a task with the
    same inputs is the same training until it has succeeded, because `kfp.local` only repeats failed tasks.

    Args:
        model_uri: URI of the output artifact `model`.
        inputs: Inputs of the training, such as parameters and dataset manifests. Only used under `kfp.local`.
        log: Receives a line of the step's log.
        read_node_name: Returns the name of the step's node in the Workflow. Default: `own_node_name`.

    Raises:
        ValueError: The step's pod is needed, because the URI contains no run ID or is ambiguous, and cannot be read.
    """
    try:
        folder = parse_task_folder(model_uri)
    except ValueError as error:
        return _identity_of_own_pod(model_uri, error, log)
    distinction: tuple[str, ...] = (folder.uri,)
    if folder.is_local:
        digest = _digest(inputs)
        distinction += (digest, str(_finished_trainings(folder).count(digest)))
    elif not folder.is_unique:
        distinction += (without_attempts((read_node_name or own_node_name)()),)
    return TrainingIdentity(folder.run_id, folder.task_name, distinction)


def _identity_of_own_pod(model_uri: str, no_run_id: ValueError, log: Log) -> TrainingIdentity:
    """Identify the training by the step's pod, because the URI of its output has an unknown form.

    Args:
        model_uri: The URI.
        no_run_id: The error of `parse_task_folder`.
        log: Receives a line of the step's log.

    Raises:
        ValueError: The pod cannot be read, or lacks the run ID or the node name.
    """
    try:
        pod_name = os.environ.get(POD_NAME_VARIABLE)
        if not pod_name:
            raise ValueError(f"{POD_NAME_VARIABLE} is not set in the step's environment either")
        api = connect()
        metadata = _pod_metadata(api, pod_name)
        run_id = metadata.get("labels", {}).get(RUN_ID_LABEL)
        node_name = without_attempts(metadata.get("annotations", {}).get(NODE_NAME_ANNOTATION, ""))
        if not run_id:
            raise ValueError(f"the pod {api.namespace}/{pod_name} has no label {RUN_ID_LABEL} either")
        if not NODE_NAME.fullmatch(node_name):
            raise ValueError(f"the pod {api.namespace}/{pod_name} has no annotation {NODE_NAME_ANNOTATION} of a task")
    except ClusterError as error:
        raise ValueError(f"{no_run_id}. {error}; {install_advice(api.namespace)}") from None
    except ValueError as error:
        raise ValueError(f"{no_run_id}. Its pod does not identify it: {error}") from None
    log(
        "WARNING",
        f"the output {model_uri} has no run ID in the form of Kubeflow Pipelines. The run ID {run_id} in the label "
        f"{RUN_ID_LABEL} of the pod {api.namespace}/{pod_name} is used instead",
    )
    return TrainingIdentity(run_id, node_name.split(".")[-2], (node_name,))


def record_success(model_uri: str, inputs: Mapping[str, object]) -> None:
    """Record a succeeded training, so that the next `kfp.local` task with the same inputs is a new one.

    Does nothing on a KFP backend.
    """
    if "://" in model_uri:
        return
    folder = parse_task_folder(model_uri)
    if folder.is_local:
        with Path(folder.uri, _FINISHED_TRAININGS).open("a", encoding="ascii") as file:
            file.write(f"{_digest(inputs)}\n")


def own_task_path(log: Log) -> TaskPath:
    """Read the position of this step's task in its pipeline from its pod. It becomes part of the job's name.

    Args:
        log: Receives a line of the step's log.

    Returns:
        An empty path outside of a backend's pod, if the pod has no node name of the known form, and if the step may not
        read its pod. All of these are the same for all attempts, so all have the same name. The latter two are logged.

    Raises:
        ClusterError: The API server does not answer.
    """
    pod_name = os.environ.get(POD_NAME_VARIABLE)
    if not pod_name:
        return TaskPath()
    api = connect()
    try:
        node_name = _node_name(api, pod_name)
    except ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        log("WARNING", f"{_NO_TASK_PATH}: {error}; {install_advice(api.namespace)} to allow `get pods`")
        return TaskPath()
    if NODE_NAME.fullmatch(without_attempts(node_name)):
        return parse_node_name(node_name)
    unknown = f"{NODE_NAME_ANNOTATION} = {node_name!r}, an unknown form"
    fault = unknown if node_name else f"no annotation {NODE_NAME_ANNOTATION}"
    log("WARNING", f"{_NO_TASK_PATH}: the pod {api.namespace}/{pod_name} has {fault}")
    return TaskPath()


def own_node_name() -> str:
    """Read the name of this step's node in the Workflow from its pod.

    Raises:
        ValueError: The step does not run in a pod, or its pod cannot be read or has no node name.
    """
    pod_name = os.environ.get(POD_NAME_VARIABLE)
    if not pod_name:
        raise ValueError(f"{POD_NAME_VARIABLE} is not set in the step's environment. {_POD_IS_NEEDED}")
    return read_node_name(connect(), pod_name)


def read_node_name(api: ClusterApi, pod_name: str) -> str:
    """Read the name of a pod's node in the Workflow.

    Raises:
        ValueError: The pod cannot be read, or has no node name annotation.
    """
    try:
        node_name = _node_name(api, pod_name)
    except ClusterError as error:
        advice = f"{install_advice(api.namespace)} to allow `get pods`"
        raise ValueError(f"{error}. {_POD_IS_NEEDED}: {advice}") from None
    if not node_name:
        raise ValueError(
            f"the pod {api.namespace}/{pod_name} has no annotation {NODE_NAME_ANNOTATION}. {_POD_IS_NEEDED}"
        )
    return node_name


def _node_name(api: ClusterApi, pod_name: str) -> str:
    return str(_pod_metadata(api, pod_name).get("annotations", {}).get(NODE_NAME_ANNOTATION, ""))


def _pod_metadata(api: ClusterApi, pod_name: str) -> dict[str, Any]:
    """Return the metadata of a pod, {} if it does not exist."""
    pod = api.read(f"/api/v1/namespaces/{api.namespace}/pods/{pod_name}") or {}
    metadata: dict[str, Any] = pod.get("metadata", {})
    return metadata


def _finished_trainings(folder: TaskFolder) -> list[str]:
    file = Path(folder.uri, _FINISHED_TRAININGS)
    return file.read_text(encoding="ascii").split() if file.exists() else []


def _digest(inputs: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
