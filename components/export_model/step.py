"""The `export_model` step, between the artifacts of KFP and the export."""

import os
from collections.abc import Sequence
from pathlib import Path

from kfp_distributed.components.export_model.export import Exported, run_export
from kfp_distributed.components.export_model.version_record import read_record
from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.placeholders import refuse_placeholders
from kfp_distributed.storage.model import ModelIncomplete


def run_step(
    *,
    model_name: str,
    manifest: Artifact,
    bucket: str = "",
    model: Artifact | None = None,
    model_uri: str = "",
    mlflow_run_id: str = "",
    version: int = 0,
    metrics: Artifact | None = None,
    aliases: Sequence[str] = (),
    keep: int = 0,
) -> Exported:
    """Export a model. The parameters are those of the component.

    Raises:
        SystemExit: The model cannot be exported. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    try:
        path, uri = _locate(model, model_uri)
        numbers = metrics.metadata if metrics else {}
        exported = run_export(path, uri, model_name, bucket, version, numbers, manifest, aliases, keep)
    except (ValueError, OSError, StorageError, ModelIncomplete) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
    record = read_record(Path(manifest.path).read_text("utf-8"), exported.uri, aliases)
    if os.environ.get("MLFLOW_TRACKING_URI"):
        from kfp_distributed.components.export_model.mlflow_version import record_in_mlflow

        training_run = mlflow_run_id or str(model.metadata.get("mlflow_run_id", "") if model else "")
        record_in_mlflow(os.environ, training_run, record)
    if os.environ.get("KFP_DISTRIBUTED_MODEL_REGISTRY"):
        from kfp_distributed.components.export_model.kubeflow_registry import register_in_kubeflow

        register_in_kubeflow(os.environ, record)
    return exported


def _locate(model: Artifact | None, model_uri: str) -> tuple[str, str]:
    """Return the local folder of the model, or "" if Kubeflow Pipelines has not downloaded it, and its address.

    Raises:
        ValueError: Not exactly one of the two is set.
    """
    if model and model_uri:
        raise ValueError(f"both model ({model.uri}) and model_uri={model_uri!r} are set: pass one of them.")
    if model:
        return model.path, model.uri
    if not model_uri:
        raise ValueError("neither model nor model_uri is set: pass one of these outputs of train.")
    refuse_placeholders({"model_uri": model_uri})
    return "", model_uri
