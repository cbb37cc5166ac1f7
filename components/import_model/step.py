"""Runs the step `import_model`."""

from kfp_distributed.components.import_model.model_copy import copy_model
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.placeholders import refuse_placeholders
from kfp_distributed.storage.model import ModelIncomplete


def run_step(*, source: str, target: str) -> str:
    """Import a model and return its address. The parameters are those of the component.

    Raises:
        SystemExit: The model cannot be imported. The message is the last line of the step's log, because KFP shows an
            error nowhere else.
    """
    try:
        refuse_placeholders({"source": source, "target": target})
        copy_model(source, target)
    except (ValueError, OSError, StorageError, ModelIncomplete) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
    return target
