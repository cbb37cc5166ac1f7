"""Between KFP's artifacts and the export: what an `export_model` step reads and writes."""

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
    """Export a model; the parameters are those of the component.

    Raises:
        SystemExit: The model cannot be exported. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    try:
        return run_export(
            model.path, model.uri, model_name, bucket, version, metrics.metadata if metrics else {}, manifest
        )
    except (ValueError, OSError, StorageError, ModelIncomplete) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
