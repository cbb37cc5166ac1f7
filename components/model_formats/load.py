"""Loads the model of a folder, whatever its format is."""

from collections.abc import Callable, Mapping
from pathlib import Path

from kfp_distributed.components.model_formats.keras_file import KerasFile
from kfp_distributed.components.model_formats.model_signature import Model
from kfp_distributed.components.model_formats.onnx_model import OnnxModel
from kfp_distributed.components.model_formats.saved_model import SavedModel
from kfp_distributed.components.model_formats.torch_model import ExportedModel, TorchScriptModel
from kfp_distributed.storage.files import list_files
from kfp_distributed.storage.model_format import FORMATS, find_format, refuse_language_model

_NAMED_FILES = 10

_LOADERS: Mapping[str, Callable[[Path], Model]] = {
    "onnx": OnnxModel,
    "saved_model": SavedModel,
    "keras": KerasFile,
    "torch_export": ExportedModel,
    "torchscript": TorchScriptModel,
}


def load_model(folder: Path) -> Model:
    """Load the model of a folder, by the first of its formats (see `find_format`).

    Args:
        folder: Folder of the model.

    Raises:
        ValueError: It has no format of `FORMATS`, cannot be loaded, or, of a SavedModel, has no signature
            "serving_default".
        SystemExit: pip cannot install the library that loads it.
    """
    model_format = find_format(folder)
    refuse_language_model(model_format)
    loader = _LOADERS.get(model_format)
    if loader is None:
        raise ValueError(
            f"the model in {folder} has none of the files {', '.join(FORMATS)}, it has "
            f"{list_files(folder)[:_NAMED_FILES]}: save one of them directly into model_dir, not into a subfolder. "
            "A model.pt must be of torch.jit.save, because torch.save writes no model but weights."
        )
    return loader(folder)
