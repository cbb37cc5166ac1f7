"""ONNX models, run by ONNX Runtime on the CPU."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.model_formats.model_errors import LOAD_ADVICE, RUN_ADVICE, model_errors
from kfp_distributed.storage.tensor_specs import STRING, Signature, TensorSpec

# The other types have the names of numpy: tensor(int64), tensor(string).
_DTYPES = {"float": "float32", "double": "float64"}


class OnnxModel:
    """The model of a folder with model.onnx.

    Attributes:
        signature: Inputs and outputs of the graph.

    Raises:
        ValueError: The model cannot be loaded, or has an output that is no tensor.
    """

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        file = folder / "model.onnx"
        with model_errors(f"{file} cannot be loaded", LOAD_ADVICE):
            self._session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        outputs = self._session.get_outputs()
        if maps := [f"{output.name!r} of the type {output.type}" for output in outputs if "map(" in output.type]:
            raise ValueError(
                f"{file} has the output {maps[0]}, which is no tensor: convert the model with skl2onnx and the options "
                "{'zipmap': False}"
            )
        self.signature = Signature(_specs(self._session.get_inputs()), _specs(outputs))

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return all outputs by name, see `Model`."""
        names = list(self.signature.outputs)
        specs = self.signature.inputs
        with model_errors("the model failed", RUN_ADVICE):
            feed = {name: _texts(values) if specs[name].dtype == STRING else values for name, values in inputs.items()}
            return dict(zip(names, self._session.run(names, feed), strict=True))


def _texts(values: NDArray[Any]) -> NDArray[Any]:
    """Return texts without bytes, for which ONNX Runtime would use their representation, such as "b'red'"."""
    return np.array([item.decode() if isinstance(item, bytes) else item for item in values.flat], object).reshape(
        values.shape
    )


def _specs(nodes: Sequence[Any]) -> dict[str, TensorSpec]:
    return {node.name: _spec(node.name, node.type, node.shape) for node in nodes}


def _spec(name: str, kind: str, shape: Sequence[int | str | None]) -> TensorSpec:
    dtype = kind.removeprefix("tensor(").removesuffix(")")
    # A dimension that is not fixed has a name instead of a size.
    sizes = tuple(size if isinstance(size, int) else None for size in shape)
    return TensorSpec(name, _DTYPES.get(dtype, dtype), sizes)
