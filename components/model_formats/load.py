"""Loads the model of a folder, whatever its format is."""

from pathlib import Path

from kfp_distributed.components.model_formats.model_signature import Model
from kfp_distributed.components.model_formats.onnx_model import OnnxModel
from kfp_distributed.components.model_formats.saved_model import SavedModel
from kfp_distributed.storage.files import list_files

_NAMED_FILES = 10


def load_model(folder: Path) -> Model:
    """Load model.onnx, or the signature "serving_default" of a SavedModel.

    Args:
        folder: Folder of the model.

    Raises:
        ValueError: There is no such model, it cannot be loaded, or it has no such signature.
    """
    if (folder / "model.onnx").is_file():
        return OnnxModel(folder)
    if (folder / "saved_model.pb").is_file():
        return SavedModel(folder)
    raise ValueError(
        f"the model in {folder} has no model.onnx or saved_model.pb, it has {list_files(folder)[:_NAMED_FILES]}: "
        "this step takes a SavedModel or an ONNX model. Save it directly into model_dir, not into a subfolder."
    )
