"""The formats of models, and the files that identify them."""

import re
from collections.abc import Iterable, Mapping
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

HUGGING_FACE, SAFETENSORS, CUSTOM = "hugging_face", "safetensors", "custom"

_CONFIGURATIONS = {"config.json", "adapter_config.json"}

SERVED_FILES = ("model.onnx", "model.pt", "saved_model.pb")
"""Files that a model server loads from the folder of a version: ONNX and TorchScript by Triton, SavedModels by
TensorFlow Serving and KServe."""

# torch.save writes a zip file too, without this member.
_TORCHSCRIPT_MEMBER = "/constants.pkl"


def format_of(paths: Iterable[str]) -> str:
    """Return the format of a model by the names of its files, see `find_format`. Any model.pt counts as TorchScript."""
    names = {*paths}
    if found := next((name for file, name in FORMATS.items() if file in names), ""):
        return found
    if not any(re.fullmatch(r"[^/]*\.safetensors", name) for name in names):
        return CUSTOM
    return HUGGING_FACE if names & _CONFIGURATIONS else SAFETENSORS


def find_format(folder: Path) -> str:
    """Return the format of the model in a folder.

    Returns:
        The first format of `FORMATS` whose file is in the folder. Else, if it has a file *.safetensors, "hugging_face"
        beside config.json or adapter_config.json, and "safetensors" otherwise. Else "custom". Files in subfolders do
        not count, nor does a model.pt of `torch.save`, which has weights only.
    """
    names = {path.name for path in folder.iterdir() if path.is_file()}
    if "model.pt" in names and not is_torchscript(folder / "model.pt"):
        names.remove("model.pt")
    return format_of(names)


def refuse_language_model(model_format: str) -> None:
    """Refuse a model that the steps cannot run, although `train` makes it.

    Raises:
        ValueError: The format is "hugging_face".
    """
    if model_format == HUGGING_FACE:
        raise ValueError(
            f'the model has the format "{HUGGING_FACE}"; evaluate and predict take no such model: score it with '
            "evaluate_language_model, and ask it with transformers, kfp-distributed serve or deploy_model"
        )


def is_torchscript(file: Path) -> bool:
    """Return whether a file was saved by `torch.jit.save`."""
    if not is_zipfile(file):
        return False
    with ZipFile(file) as archive:
        return any(name.endswith(_TORCHSCRIPT_MEMBER) for name in archive.namelist())
