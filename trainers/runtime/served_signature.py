"""Reads the inputs and outputs of a saved model from its file, without loading the weights into a framework."""

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SERVING = "serving_default"

TensorDescription = Mapping[str, Any]
"""`dtype`, the name of the type as NumPy has it, or "string"; and `shape`, a list with the axis of the rows. None
stands for a free size, and instead of the shape for a free number of axes."""

_Signature = dict[str, dict[str, TensorDescription]]
_REASON_LENGTH = 300


def served_signature(folder: Path, format_name: str) -> _Signature:
    """Return the inputs and outputs of a model by name, under "inputs" and "outputs".

    Returns:
        {} for a format other than ONNX and SavedModel, if the library that reads the file is missing, or if the file
        has no such signature. The model is then saved without.
    """
    if format_name == "onnx" and find_spec("onnx"):
        return _read(_of_onnx, folder / "model.onnx")
    # A process that saved a SavedModel has imported TensorFlow. To import it for this alone would take seconds.
    if format_name == "saved_model" and "tensorflow" in sys.modules:
        return _read(_of_saved_model, folder / "saved_model.pb")
    return {}


def _read(read: Callable[[Path], _Signature], file: Path) -> _Signature:
    """Return the signature of a file. A program may write any bytes: that fails no training that has succeeded."""
    from google.protobuf.message import DecodeError

    try:
        return read(file)
    except (DecodeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:_REASON_LENGTH]
        print(f"{file.name} cannot be read, so model.json has no signature: {type(error).__name__}: {reason}")
        return {}


def _of_onnx(file: Path) -> _Signature:
    import onnx

    graph = onnx.load(str(file), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}

    def describe(value: Any) -> TensorDescription:  # noqa: ANN401
        if not value.type.HasField("tensor_type"):  # Such as the sequence of maps of skl2onnx.
            return {"dtype": str(value.type.WhichOneof("value")).removesuffix("_type"), "shape": None}
        tensor = value.type.tensor_type
        sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        return {
            "dtype": "string" if dtype.startswith(("object", "str")) else dtype,
            "shape": sizes if tensor.HasField("shape") else None,
        }

    inputs = [value for value in graph.input if value.name not in weights]
    return {
        "inputs": {value.name: describe(value) for value in inputs},
        "outputs": {value.name: describe(value) for value in graph.output},
    }


def _of_saved_model(file: Path) -> _Signature:
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    signatures = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs[0].signature_def
    if _SERVING not in signatures:
        return {}

    def describe(info: Any) -> TensorDescription:  # noqa: ANN401
        dtype, shape = tf.as_dtype(info.dtype), tf.TensorShape(info.tensor_shape)
        return {"dtype": dtype.name, "shape": None if shape.rank is None else shape.as_list()}

    ends: Mapping[str, Any] = {"inputs": signatures[_SERVING].inputs, "outputs": signatures[_SERVING].outputs}
    return {end: {name: describe(infos[name]) for name in sorted(infos)} for end, infos in ends.items()}
