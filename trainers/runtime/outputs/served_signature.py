"""Reads the inputs and outputs of a saved model from its file."""

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kfp_distributed.storage.errors import one_line
from kfp_distributed.storage.model_format import FORMATS
from kfp_distributed.storage.tensor_specs import Signature, TensorSpec
from kfp_distributed.trainers.runtime.outputs.keras_signature import read_keras_signature
from kfp_distributed.trainers.runtime.outputs.torch_signature import read_program_signature, read_torchscript_signature

_SERVING = "serving_default"
# TensorFlow Serving loads the graph with exactly these tags.
_SERVED_TAGS = {"serve"}
_REASON_LENGTH = 300


def served_signature(folder: Path, format_name: str) -> dict[str, Any]:
    """Return the inputs and outputs of a model, as `Signature.to_dict` does.

    A library is not imported for this alone, because that takes seconds. A function that saved a SavedModel, a Keras
    file or a TorchScript file has imported it. The program of torch.export is read without a library.

    Returns:
        {} for another format, if the library that reads the file is not imported (of ONNX: is missing), or if the file
        cannot be read or has no such signature. The model is then saved without.
    """
    if format_name not in _READERS:
        return {}
    file = folder / next(name for name, kind in FORMATS.items() if kind == format_name)
    try:
        signature = _READERS[format_name](file)
    except Exception as error:  # noqa: BLE001  (a program may write any bytes: that fails no training)
        reason = one_line(error)[:_REASON_LENGTH]
        print(f"{file.name} cannot be read, so model.json has no signature: {type(error).__name__}: {reason}")
        return {}
    return signature.to_dict() if signature else {}


def _of_onnx(file: Path) -> Signature | None:
    if not find_spec("onnx"):
        return None
    import onnx

    graph = onnx.load(str(file), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}

    def describe(value: Any) -> TensorSpec:  # noqa: ANN401
        if not value.type.HasField("tensor_type"):  # Such as the sequence of maps of skl2onnx.
            return TensorSpec(value.name, str(value.type.WhichOneof("value")).removesuffix("_type"), None)
        tensor = value.type.tensor_type
        sizes = tuple(size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        return TensorSpec(
            value.name,
            "string" if dtype.startswith(("object", "str")) else dtype,
            sizes if tensor.HasField("shape") else None,
        )

    inputs = [value for value in graph.input if value.name not in weights]
    return Signature.of([describe(value) for value in inputs], [describe(value) for value in graph.output])


def _of_saved_model(file: Path) -> Signature | None:
    if "tensorflow" not in sys.modules:
        return None
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    graphs = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs
    served = next((graph for graph in graphs if {*graph.meta_info_def.tags} == _SERVED_TAGS), None)
    if not served or _SERVING not in served.signature_def:
        return None

    def describe(name: str, info: Any) -> TensorSpec:  # noqa: ANN401
        dtype, shape = tf.as_dtype(info.dtype), tf.TensorShape(info.tensor_shape)
        return TensorSpec(name, dtype.name, None if shape.rank is None else tuple(shape.as_list()))

    definition = served.signature_def[_SERVING]
    ends = definition.inputs, definition.outputs
    return Signature.of(*([describe(name, infos[name]) for name in sorted(infos)] for infos in ends))


_READERS: Mapping[str, Callable[[Path], Signature | None]] = {
    "onnx": _of_onnx,
    "saved_model": _of_saved_model,
    "keras": read_keras_signature,
    "torchscript": read_torchscript_signature,
    "torch_export": lambda file: read_program_signature(file).signature,
}
"""Each returns None if the library that reads the file is not available."""
