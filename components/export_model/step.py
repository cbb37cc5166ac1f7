"""Between KFP's artifacts and the export: what an `export_model` step reads and writes."""

from typing import Any

from kfp_distributed.components.export_model.export import Exported, run_export
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import ModelIncomplete


def run_step(
    *,
    model: Any,  # noqa: ANN401  (kfp's artifacts, which this module must not import)
    model_name: str,
    bucket: str,
    manifest: Any,  # noqa: ANN401
    version: int,
    metrics: Any,  # noqa: ANN401
) -> Exported:
    """Export a model; the parameters are those of the component.

    Raises:
        SystemExit: The model cannot be exported. The text ends the step's log, which is all that KFP shows of a
            failure.
    """
    try:
        return run_export(
            model.path, model.uri, model_name, bucket, version, metrics.metadata if metrics else {}, manifest
        )
    except (ValueError, OSError, StorageError, ModelIncomplete) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
