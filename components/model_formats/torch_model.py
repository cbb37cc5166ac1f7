"""Models of PyTorch on the CPU: model.pt of `torch.jit.save`, and model.pt2 of `torch.export.save`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.model_formats.model_errors import LOAD_ADVICE, RUN_ADVICE, model_errors
from kfp_distributed.components.model_formats.model_signature import Signature, TensorSpec
from kfp_distributed.components.model_formats.needed_package import provide_package

TORCHSCRIPT_FILE, EXPORT_FILE = "model.pt", "model.pt2"

# NumPy 2 needs PyTorch 2.3, and model.pt2 is of PyTorch 2.
_TORCH = "torch>=2.4,<3"
_OUTPUT = "output"


class TorchScriptModel:
    """The model of a folder with model.pt, in the mode for inference.

    The file has the names of the arguments of forward, but neither types nor shapes: all inputs are float32.

    Attributes:
        signature: The arguments of forward without a default, and the output "output", or "output_0" and so on of a
            tuple.

    Raises:
        ValueError: The model cannot be loaded, or forward takes or returns other things than tensors.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / TORCHSCRIPT_FILE
        provide_package("torch", _TORCH, str(file))
        import torch

        with model_errors(f"{file} cannot be loaded", LOAD_ADVICE):
            self._module: Any = torch.jit.load(str(file), map_location="cpu").eval()
            schema = self._module.forward.schema
        arguments = [argument for argument in schema.arguments[1:] if not argument.has_default_value()]
        if others := [f"{argument.name}: {argument.type}" for argument in arguments if str(argument.type) != "Tensor"]:
            raise ValueError(f"{file} takes the arguments {others}: save a model whose forward takes tensors")
        returned = str(schema.returns[0].type)
        if returned != "Tensor" and not returned.startswith(("Tuple[", "(")):
            raise ValueError(f"{file} returns {returned}: save a model whose forward returns a tensor")
        count = 1 if returned == "Tensor" else returned.count("Tensor")
        names = [_OUTPUT] if returned == "Tensor" else [f"{_OUTPUT}_{number}" for number in range(count)]
        self.signature = Signature(
            {argument.name: TensorSpec(argument.name, "float32", None) for argument in arguments},
            {name: TensorSpec(name, "float32", None) for name in names},
        )

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return all outputs by name, see `Model`."""
        return _run(self._module, self.signature, inputs, ())


class ExportedModel:
    """The model of a folder with model.pt2.

    Attributes:
        signature: The arguments that the model was exported with. The outputs have the keys of a model that returns a
            dictionary, else the name "output", or "output_0" and so on of several.

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
            program = torch.export.load(str(file))
            self._module: Any = program.module()
        values = {node.name: node.meta.get("val") for node in program.graph.nodes}
        signature, (_, keywords) = program.graph_signature, program.call_spec.in_spec.children_specs
        names = [str(name) for name in signature.user_inputs]
        if not all(isinstance(values.get(name), torch.Tensor) for name in names):
            raise ValueError(f"{file} takes the arguments {names}: export a model whose forward takes tensors")
        self._keywords = tuple(keywords.context or ())
        outputs, nodes = program.call_spec.out_spec, signature.user_outputs
        if outputs.type is dict:
            keys = [str(key) for key in outputs.context]
        else:
            keys = [f"{_OUTPUT}_{number}" for number in range(len(nodes))] if len(nodes) > 1 else [_OUTPUT]
        if len(keys) != len(nodes) or not all(isinstance(values.get(node), torch.Tensor) for node in nodes):
            raise ValueError(
                f"{file} returns {[*nodes]}: export a model whose forward returns a tensor, or a dictionary of tensors"
            )
        self.signature = Signature(
            {name: _spec(name, values[name]) for name in names},
            {key: _spec(key, values[node]) for key, node in zip(keys, nodes, strict=True)},
        )

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


def _spec(name: str, tensor: Any) -> TensorSpec:  # noqa: ANN401
    # A dynamic size is a symbol instead of an int.
    sizes = tuple(size if isinstance(size, int) else None for size in tensor.shape)
    return TensorSpec(name, str(tensor.dtype).removeprefix("torch."), sizes)
