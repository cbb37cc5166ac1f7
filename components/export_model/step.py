"""The `export_model` step, between the artifacts of KFP and the export."""

import os

from kfp_distributed.components.artifacts import Artifact
from kfp_distributed.components.export_model.export import Exported, run_export
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import ModelIncomplete


def run_step(
    *,
    model: Artifact,
    model_name: str,
    bucket: str,
    manifest: Artifact,
    version: int,
    metrics: Artifact | None,
) -> Exported:
    """Export a model. The parameters are those of the component.

    Raises:
        SystemExit: The model cannot be exported. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    try:
        exported = run_export(
            model.path, model.uri, model_name, bucket, version, metrics.metadata if metrics else {}, manifest
        )
    except (ValueError, OSError, StorageError, ModelIncomplete) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
    if os.environ.get("MLFLOW_TRACKING_URI"):
        from kfp_distributed.components.export_model.mlflow_tags import link_version

        link_version(os.environ, str(model.metadata.get("mlflow_run_id", "")), model_name, exported)
    return exported
