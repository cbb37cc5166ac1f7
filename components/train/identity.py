"""Which training a `train` step runs: equal for all attempts of one task, different for any other task.

The job's name and the folder of its checkpoints follow from it. So a step that is started again adopts its job and
resumes from its checkpoints, and never those of another task, run or iteration of a ParallelFor.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi, connect, install_advice
from kfp_distributed.components.train.runners.protocol import ClusterError
from kfp_distributed.storage.task_folder import TaskFolder, parse_task_folder

_NODE_ANNOTATION = "workflows.argoproj.io/node-name"
_WHY_POD = (
    "A backend before KFP 2.4 gives all iterations of a ParallelFor the same output folder, so the step has to read "
    "its own pod"
)
_FINISHED_TRAININGS = "finished-trainings"
"""File in a task folder of `kfp.local`: the digests of the trainings there that have succeeded, one a line."""


@dataclass(frozen=True)
class TrainingIdentity:
    """Identity of a training.

    Attributes:
        run_id: ID of the pipeline run.
        task_name: Name of the task in its pipeline.
        distinction: What tells this training from all others.
    """

    run_id: str
    task_name: str
    distinction: tuple[str, ...]


def identify_training(
    model_uri: str, inputs: Mapping[str, object], read_node_name: Callable[[], str] | None = None
) -> TrainingIdentity:
    """Reads from the step's model artifact, and only where that is not enough from its pod, which training it runs.

    Under `kfp.local`, which gives all tasks of a component and all iterations of a ParallelFor one folder, equal
    inputs make a training the same until it has succeeded: `kfp.local` repeats only what failed.

    Args:
        model_uri: URI of the output artifact `model`.
        inputs: What the training is made from, such as parameters and dataset manifests; used under `kfp.local` alone.
        read_node_name: Returns the name of the step's node in its Workflow; by default `own_node_name`.

    Raises:
        ValueError: The URI does not tell the run, or the pod that has to be read cannot be.
    """
    folder = parse_task_folder(model_uri)
    distinction: tuple[str, ...] = (folder.uri,)
    if folder.is_local:
        digest = _digest(inputs)
        distinction += (digest, str(_finished_trainings(folder).count(digest)))
    elif not folder.is_unique:
        distinction += (without_attempts((read_node_name or own_node_name)()),)
    return TrainingIdentity(folder.run_id, folder.task_name, distinction)


def record_success(model_uri: str, inputs: Mapping[str, object]) -> None:
    """Has the next task of `kfp.local` with equal inputs be another training; does nothing on a backend."""
    folder = parse_task_folder(model_uri)
    if folder.is_local:
        with Path(folder.uri, _FINISHED_TRAININGS).open("a", encoding="ascii") as file:
            file.write(f"{_digest(inputs)}\n")


def without_attempts(node_name: str) -> str:
    """Removes the numbers of attempts from a node's name: "train(0).executor(1)" becomes "train.executor".

    The index of an iteration has a colon and stays: "iteration-iterations(1:item)".
    """
    return re.sub(r"\(\d+\)", "", node_name)


def own_node_name() -> str:
    """Reads from the API server the name of this step's node in its Workflow.

    Raises:
        ValueError: The step has no pod, or its pod does not tell.
    """
    pod_name = os.environ.get("KFP_POD_NAME")
    if not pod_name:
        raise ValueError(f"KFP_POD_NAME is not set in the step's environment. {_WHY_POD}")
    return read_node_name(connect(), pod_name)


def read_node_name(api: ClusterApi, pod_name: str) -> str:
    """Reads the name of a pod's node in its Workflow.

    Raises:
        ValueError: The pod may not be read, or has no such annotation.
    """
    try:
        pod = api.read(f"/api/v1/namespaces/{api.namespace}/pods/{pod_name}") or {}
    except ClusterError as error:
        advice = f"{install_advice(api.namespace)}, which allows `get pods`"
        raise ValueError(f"{error}. {_WHY_POD}: {advice}") from None
    node_name = pod.get("metadata", {}).get("annotations", {}).get(_NODE_ANNOTATION)
    if not node_name:
        raise ValueError(f"the pod {api.namespace}/{pod_name} has no annotation {_NODE_ANNOTATION}. {_WHY_POD}")
    return str(node_name)


def _finished_trainings(folder: TaskFolder) -> list[str]:
    file = Path(folder.uri, _FINISHED_TRAININGS)
    return file.read_text(encoding="ascii").split() if file.exists() else []


def _digest(inputs: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
