"""What the URI of an output artifact tells a step about itself.

Kubeflow Pipelines gives every step the URIs of its outputs, without an argument that would end caching. Placeholders
such as `dsl.PIPELINE_JOB_ID_PLACEHOLDER` do not serve here: the backend replaces them only in arguments that a task
passes, never in the defaults of a component.
"""

import re
from dataclasses import dataclass

_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")


@dataclass(frozen=True)
class TaskFolder:
    """The folder of one task's outputs in a pipeline root.

    Attributes:
        uri: The folder, without a slash at its end and without the settings of a store ("?...").
        run_id: ID of the pipeline run; under `kfp.local`, where runs have none, the folder of the run.
        task_name: Name of the task; under `kfp.local` the name of its component.
        is_unique: Whether no other task has this folder. A backend before KFP 2.4 gives one folder to all iterations
            of a ParallelFor, and `kfp.local` to all tasks of a component.
        is_local: Whether `kfp.local` made it.
    """

    uri: str
    run_id: str
    task_name: str
    is_unique: bool
    is_local: bool


def parse_task_folder(output_uri: str) -> TaskFolder:
    """Reads the URI or path of an output artifact.

    These forms are known, after a pipeline root of any length:

    - PIPELINE/RUN/TASK/UUID/OUTPUT since KFP 2.4 (kubeflow/pipelines#11243), RUN being a UUID too;
    - PIPELINE/RUN/TASK/OUTPUT before;
    - PIPELINE-TIMESTAMP/TASK/OUTPUT, as a path, from `kfp.local`.

    Args:
        output_uri: The artifact's `uri`.

    Raises:
        ValueError: The URI has none of these forms.
    """
    folder = output_uri.partition("?")[0].rstrip("/").rpartition("/")[0]
    _, mark, path = folder.rpartition("://")
    parts = path.split("/")
    is_unique = bool(_UUID.fullmatch(parts[-1]))
    if not mark and not is_unique and len(parts) > 1:
        return TaskFolder(folder, parts[-2], parts[-1], is_unique=False, is_local=True)
    if is_unique:
        parts.pop()
    # Older backends take the name that a user gives a task, which may have slashes.
    for position in range(len(parts) - 2, 0, -1):
        if _UUID.fullmatch(parts[position]):
            return TaskFolder(folder, parts[position], "/".join(parts[position + 1 :]), is_unique, is_local=False)
    raise ValueError(
        f"the output {folder} has no run ID: a backend of Kubeflow Pipelines names outputs "
        "PIPELINE/RUN/TASK/UUID/OUTPUT or PIPELINE/RUN/TASK/OUTPUT, RUN being a UUID"
    )
