"""Models of PyTorch on the CPU: model.pt of `torch.jit.save`, and model.pt2 of `torch.export.save`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.model_formats.model_errors import LOAD_ADVICE, RUN_ADVICE, model_errors
from kfp_distributed.components.model_formats.needed_package import provide_package
from kfp_distributed.storage.tensor_specs import Signature
from kfp_distributed.trainers.runtime.outputs.torch_signature import read_program_signature, torchscript_signature

TORCHSCRIPT_FILE, EXPORT_FILE = "model.pt", "model.pt2"

# NumPy 2 needs PyTorch 2.3, and model.pt2 is of PyTorch 2.
_TORCH = "torch>=2.4,<3"


class TorchScriptModel:
    """The model of a folder with model.pt, in the mode for inference.

    Attributes:
        signature: Inputs and outputs, see `torchscript_signature`.

    Raises:
        ValueError: The model cannot be loaded, or forward takes or returns other things than tensors.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / TORCHSCRIPT_FILE
        provide_package("torch", _TORCH, str(file))
        import torch

        with model_errors(f"{file} cannot be loaded", LOAD_ADVICE):
            self._module: Any = torch.jit.load(str(file), map_location="cpu").eval()
        self.signature = torchscript_signature(self._module, str(file))

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return all outputs by name, see `Model`."""
        return _run(self._module, self.signature, inputs, ())


class ExportedModel:
    """The model of a folder with model.pt2.

    Attributes:
        signature: Inputs and outputs, see `ProgramSignature`.

    Raises:
        ValueError: The model cannot be loaded, or takes or returns other things than tensors.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / EXPORT_FILE
        provide_package("torch", _TORCH, str(file))
        import torch

        if not hasattr(torch, "export"):
            raise ValueError(f"{file} needs PyTorch 2.1 or newer, and this is {torch.__version__}")
        with model_errors(f"{file} cannot be loaded", LOAD_ADVICE):
            self._module: Any = torch.export.load(str(file)).module()
        self.signature, self._keywords = read_program_signature(file)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return all outputs by name, see `Model`."""
        return _run(self._module, self.signature, inputs, self._keywords)


def _run(
    module: Any,  # noqa: ANN401
    signature: Signature,
    inputs: Mapping[str, NDArray[Any]],
    keywords: Sequence[str],
) -> dict[str, NDArray[Any]]:
    import torch

    with model_errors("the model failed", RUN_ADVICE), torch.no_grad():
        tensors = {name: torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in signature.inputs}
        named = {name: tensors.pop(name) for name in keywords}
        outputs = module(*tensors.values(), **named)
        if not isinstance(outputs, dict):
            values = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            outputs = dict(zip(signature.outputs, values, strict=True))
        return {name: values.numpy() for name, values in outputs.items()}
