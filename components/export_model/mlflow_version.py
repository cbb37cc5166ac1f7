"""Records an exported version in MLflow: tags of the training's run, and a version of a registered model."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from kfp_distributed.components.export_model.bounded_delay import run_bounded
from kfp_distributed.components.export_model.version_record import VersionRecord
from kfp_distributed.components.external_services.mlflow_client import MlflowClient, MlflowError, read_connection


def record_in_mlflow(variables: Mapping[str, str], training_run: str, record: VersionRecord) -> None:
    """Link a version to an MLflow run, and register it. A failure is a warning in the step's log.

    A version in a local folder is only linked, because MLflow refuses to register local folders.

    Args:
        variables: Environment variables of the step. MLFLOW_TRACKING_URI must be set.
        training_run: ID of the run that `train` logged to, from the metadata of the model. If it is "", the step's own
            run, MLFLOW_RUN_ID, is used.
        record: The version.
    """
    run_id = training_run or variables.get("MLFLOW_RUN_ID", "").strip()
    if error := run_bounded(lambda: _record(variables, run_id, record)):
        print(f"WARNING MLflow has no complete record of {record.uri}: {error}", flush=True)


def run_tags(record: VersionRecord) -> dict[str, str]:
    """Return the tags that link the run of the training to a version."""
    return {
        "kfp_distributed.exported_model": record.model_name,
        "kfp_distributed.exported_version": str(record.version),
        "kfp_distributed.exported_uri": record.uri,
    }


def version_body(record: VersionRecord, run_id: str) -> dict[str, Any]:
    """Return the body of the request that creates a version of a registered model.

    Args:
        record: The version.
        run_id: ID of the MLflow run of the training; "" if there is none.
    """
    tags = {"kfp_distributed.exported_version": str(record.version), "kfp_distributed.run": record.run}
    body = {
        "name": record.model_name,
        "source": record.uri,
        "tags": [{"key": key, "value": value} for key, value in tags.items()],
    }
    return {**body, "run_id": run_id} if run_id else body


def _record(variables: Mapping[str, str], run_id: str, record: VersionRecord) -> str:
    """Record a version; return the errors, or "" if there is none."""
    try:
        client = MlflowClient(read_connection(variables))
    except (ValueError, OSError) as error:
        return str(error)
    actions: dict[str, Callable[[], None]] = {}
    if run_id:
        actions[f"tags of the run {run_id}"] = lambda: client.set_tags(run_id, run_tags(record))
    if record.is_remote:
        actions[f"registered model {record.model_name}"] = lambda: _register(client, run_id, record)
    errors = []
    for name, action in actions.items():
        try:
            action()
        except (MlflowError, OSError) as error:
            errors.append(f"{name}: {error}")
            if isinstance(error, MlflowError) and error.is_temporary:
                break
    return "; ".join(errors)


def _register(client: MlflowClient, run_id: str, record: VersionRecord) -> None:
    """Register a version unless it is registered, and move its aliases.

    Raises:
        MlflowError: MLflow refuses a request or does not answer.
    """
    name = record.model_name
    number = _find_version(client, record)
    if not number:
        _ensure_model(client, name)
        body = version_body(record, run_id)
        number = client.post("model-versions/create", body, lambda answer: str(answer["model_version"]["version"]))
    for alias in record.aliases:
        client.post("registered-models/alias", {"name": name, "alias": alias, "version": number}, str)
    print(f"MLflow has {record.uri} as version {number} of the registered model {name}")


def _find_version(client: MlflowClient, record: VersionRecord) -> str:
    """Return MLflow's number of a version, which may differ from ours; "" if it is not registered."""
    # Not by its source: MLflow's filters have no notation for an address with quotation marks.
    tag = f"tags.`kfp_distributed.exported_version` = '{record.version}'"
    query = urlencode({"filter": f"name = '{record.model_name}' AND {tag}"})
    versions = client.call("GET", f"model-versions/search?{query}", lambda answer: answer.get("model_versions", []))
    return next((str(version["version"]) for version in versions if version["source"] == record.uri), "")


def _ensure_model(client: MlflowClient, name: str) -> None:
    try:
        client.post("registered-models/create", {"name": name}, str)
    except MlflowError as error:
        if "RESOURCE_ALREADY_EXISTS" not in str(error):
            raise
