"""Parse the run ID and the task name from the URI of an output artifact.

Kubeflow Pipelines passes every step the URIs of its outputs, and these do not disable caching. Placeholders such as
`dsl.PIPELINE_JOB_ID_PLACEHOLDER` are no alternative: the backend replaces them only in arguments that a task passes,
never in the defaults of a component.
"""

from dataclasses import dataclass

from kfp_distributed.storage.kubeflow.kfp_backend import OUTPUT_FORMS, RUN_ID


@dataclass(frozen=True)
class TaskFolder:
    """The folder of a task's outputs in a pipeline root.

    Attributes:
        uri: The folder, without a trailing slash and without the settings of a store ("?...").
        run_id: ID of the pipeline run. `kfp.local` has no run IDs: there it is the name of the run's folder.
        task_name: Name of the task. Under `kfp.local` it is the name of the component.
        is_unique: Whether no other task uses this folder. Backends before KFP 2.4 use one folder for all iterations of
            a ParallelFor, and `kfp.local` uses one for all tasks of a component.
        is_local: Whether `kfp.local` created the folder.
    """

    uri: str
    run_id: str
    task_name: str
    is_unique: bool
    is_local: bool


def parse_task_folder(output_uri: str) -> TaskFolder:
    """Parse the URI or path of an output artifact.

    Supported forms, after a pipeline root of any length (RUN is a UUID):

    - PIPELINE/RUN/TASK/UUID/OUTPUT since KFP 2.4 (kubeflow/pipelines#11243);
    - PIPELINE/RUN/TASK/OUTPUT before KFP 2.4;
    - PIPELINE-TIMESTAMP/TASK/OUTPUT, as a local path, from `kfp.local`.

    Args:
        output_uri: The artifact's `uri`.

    Raises:
        ValueError: The URI has none of these forms.
    """
    folder = output_uri.partition("?")[0].rstrip("/").rpartition("/")[0]
    _, scheme_separator, path = folder.rpartition("://")
    parts = path.split("/")
    is_unique = bool(RUN_ID.fullmatch(parts[-1]))
    if not scheme_separator and not is_unique and len(parts) > 1:
        return TaskFolder(folder, parts[-2], parts[-1], is_unique=False, is_local=True)
    if is_unique:
        parts.pop()
    # Older backends use the display name of the task, which may contain slashes.
    for position in range(len(parts) - 2, 0, -1):
        if RUN_ID.fullmatch(parts[position]):
            return TaskFolder(folder, parts[position], "/".join(parts[position + 1 :]), is_unique, is_local=False)
    raise ValueError(
        f"the output {folder} has no run ID: Kubeflow Pipelines names outputs {OUTPUT_FORMS}, where RUN is a UUID. "
        "Run the step by Kubeflow Pipelines or kfp.local"
    )


def pipeline_root(output_uri: str) -> str:
    """Return the pipeline root of an output artifact: a URI with the settings of its store, or a local path.

    Args:
        output_uri: The artifact's `uri`.

    Returns:
        "" for a URI that Kubeflow Pipelines has not created.
    """
    try:
        folder = parse_task_folder(output_uri)
    except ValueError:
        return ""
    root = folder.uri.rpartition(f"/{folder.run_id}/")[0]
    if not folder.is_local:
        root = root.rpartition("/")[0]
    if root.endswith("/"):  # There is no pipeline between the bucket and the run.
        return ""
    _, question_mark, settings = output_uri.partition("?")
    return root + question_mark + settings
