"""Adds the exported version to the MLflow run of its training."""

from collections.abc import Mapping
from threading import Thread

from kfp_distributed.components.export_model.export import Exported
from kfp_distributed.components.mlflow_client import MlflowClient, MlflowError, read_connection

LINK_SECONDS = 10.0
"""Longest time for which MLflow may delay the end of the step."""


def link_version(variables: Mapping[str, str], training_run: str, model_name: str, exported: Exported) -> None:
    """Set tags with the exported version on an MLflow run. A failure is a warning in the step's log.

    Args:
        variables: Environment variables of the step. MLFLOW_TRACKING_URI must be set.
        training_run: ID of the run that `train` logged to, from the metadata of the model. If it is "", the step's own
            run, MLFLOW_RUN_ID, gets the tags.
        model_name: Name of the exported model.
        exported: Address and number of the version.
    """
    run_id = training_run or variables.get("MLFLOW_RUN_ID", "").strip()
    if not run_id:
        return
    tags = {
        "kfp_distributed.exported_model": model_name,
        "kfp_distributed.exported_version": str(exported.version),
        "kfp_distributed.exported_uri": exported.uri,
    }
    errors: list[str] = []
    # In a thread: urllib3's timeouts do not limit the time of a name lookup or of an answer that comes byte by byte.
    thread = Thread(target=lambda: errors.append(_set_tags(variables, run_id, tags)), daemon=True)
    thread.start()
    thread.join(LINK_SECONDS)
    error = errors[0] if errors else f"no answer within {LINK_SECONDS:g} s"
    if error:
        print(f"WARNING The MLflow run {run_id} has no link to the exported version: {error}", flush=True)


def _set_tags(variables: Mapping[str, str], run_id: str, tags: Mapping[str, str]) -> str:
    """Set tags on a run; return the error, or "" if it succeeded."""
    try:
        MlflowClient(read_connection(variables)).set_tags(run_id, tags)
    except (MlflowError, ValueError, OSError) as error:
        return str(error)
    return ""
