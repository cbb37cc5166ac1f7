"""The formats of models, and the files that identify them."""

from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile, is_zipfile

FORMATS: Mapping[str, str] = {
    "model.onnx": "onnx",
    "saved_model.pb": "saved_model",
    "model.keras": "keras",
    "model.pt2": "torch_export",
    "model.pt": "torchscript",
}
"""The formats that steps can run, by the file that identifies each. A model with several of them has the first one."""

SAFETENSORS, CUSTOM = "safetensors", "custom"

SERVED_FILES = ("model.onnx", "model.pt", "saved_model.pb")
"""Files that a model server loads from the folder of a version: ONNX and TorchScript by Triton, SavedModels by
TensorFlow Serving and KServe."""

# torch.save writes a zip file too, without this member.
_TORCHSCRIPT_MEMBER = "/constants.pkl"


def find_format(folder: Path) -> str:
    """Return the format of the model in a folder.

    Returns:
        The first format of `FORMATS` whose file is in the folder, else "safetensors" if it has a file *.safetensors,
        else "custom". Files in subfolders do not count, nor does a model.pt of `torch.save`, which has weights only.
    """
    for file, name in FORMATS.items():
        if (folder / file).is_file() and (name != "torchscript" or is_torchscript(folder / file)):
            return name
    return SAFETENSORS if any(folder.glob("*.safetensors")) else CUSTOM


def is_torchscript(file: Path) -> bool:
    """Return whether a file was saved by `torch.jit.save`."""
    if not is_zipfile(file):
        return False
    with ZipFile(file) as archive:
        return any(name.endswith(_TORCHSCRIPT_MEMBER) for name in archive.namelist())
