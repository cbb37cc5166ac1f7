"""Loads a SavedModel or an ONNX model as a function of rows."""

import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.evaluate.quiet_import import quiet_tensorflow
from kfp_distributed.storage.files import list_files
from kfp_distributed.storage.model import FORMATS

ModelFunction = Callable[[NDArray[np.float32]], NDArray[np.floating]]
"""Returns the output of a model for rows, [n, width]. A suitable classifier returns [n, classes], a suitable regression
model [n] or [n, 1]."""

_NAMED_FILES = 10
# TensorFlow's errors may contain a complete graph. Their first two or three lines name the cause.
_REASON_LENGTH = 300
_LOAD_ADVICE = "save it with the library versions of this step, without custom classes and operations"
_PREDICT_ADVICE = "save it with a signature that takes float32 rows in the form of the dataset"


def load_model_function(folder: Path, row: tuple[int, ...], output: str) -> ModelFunction:
    """Load model.onnx, or the signature "serving_default" of a SavedModel.

    A single input or output may have any name. If there are several, "features" and `output` are used.

    Args:
        folder: Folder of the model.
        row: Shape of one row of the dataset.
        output: Name of the output: "probabilities" or "prediction".

    Returns:
        The model as a function. It raises ValueError if the model fails.

    Raises:
        ValueError: There is no such model, it cannot be loaded, it has no such signature, or its input does not
            accept `row`.
    """
    load = {"model.onnx": _load_onnx, "saved_model.pb": _load_saved_model}
    for name, load_format in load.items():
        if (folder / name).is_file():
            return load_format(folder, row, output)
    raise ValueError(
        f"the model in {folder} has no {' or '.join(FORMATS)}, it has {list_files(folder)[:_NAMED_FILES]}: evaluate "
        "takes a SavedModel or an ONNX model. Save it directly into model_dir, not into a subfolder."
    )


@contextmanager
def _model_errors(action: str, advice: str) -> Iterator[None]:
    """Turn every exception of a model's library into a ValueError of one line."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:_REASON_LENGTH]
        raise ValueError(f"{action}: {advice} ({type(error).__name__}: {reason})") from error


def _load_onnx(folder: Path, row: tuple[int, ...], output: str) -> ModelFunction:
    import onnxruntime

    file = folder / "model.onnx"
    with _model_errors(f"{file} cannot be loaded", _LOAD_ADVICE):
        model = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    inputs = {tensor.name: tensor for tensor in model.get_inputs()}
    features_tensor = inputs[pick(inputs, "features")]
    output_name = pick([tensor.name for tensor in model.get_outputs()], output)
    # A dimension that is not fixed has a name instead of a size.
    shape = fit_shape([size if isinstance(size, int) else None for size in features_tensor.shape], row)
    onnx_type = features_tensor.type[len("tensor(") : -1]
    dtype = np.dtype({"float": "float32", "double": "float64"}.get(onnx_type, onnx_type))

    def predict(features: NDArray[np.float32]) -> NDArray[np.floating]:
        with _model_errors("the model failed", _PREDICT_ADVICE):
            rows = features.reshape(-1, *shape).astype(dtype)
            outputs: NDArray[np.floating] = model.run([output_name], {features_tensor.name: rows})[0]
        return outputs

    return predict


def _load_saved_model(folder: Path, row: tuple[int, ...], output: str) -> ModelFunction:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Otherwise each start logs a screen of remarks on the hardware.
    with quiet_tensorflow():
        import tensorflow as tf

    with _model_errors(f"the SavedModel in {folder} cannot be loaded", _LOAD_ADVICE):
        model = tf.saved_model.load(str(folder))
    signature = model.signatures.get("serving_default")
    if signature is None:
        raise ValueError(f"the model has the signatures {list(model.signatures)}: save it with one 'serving_default'.")
    inputs = signature.structured_input_signature[1]
    input_name = pick(inputs, "features")
    output_name = pick(signature.structured_outputs, output)
    input_shape = inputs[input_name].shape
    shape = fit_shape(None if input_shape.rank is None else input_shape.as_list(), row)

    def predict(features: NDArray[np.float32]) -> NDArray[np.floating]:
        with _model_errors("the model failed", _PREDICT_ADVICE):
            rows = tf.cast(features.reshape(-1, *shape), inputs[input_name].dtype)
            # Called through the model, because its variables live only as long as the model does.
            outputs = model.signatures["serving_default"](**{input_name: rows})
            values: NDArray[np.floating] = outputs[output_name].numpy()
        return values

    return predict


def pick(names: Collection[str], preferred: str) -> str:
    """Return the name of a tensor of a signature: the preferred name, else the only one.

    Raises:
        ValueError: There are several other names, or none.
    """
    if preferred not in names and len(names) != 1:
        raise ValueError(f"the model's signature has {sorted(names)}, where one is needed, or one named {preferred!r}.")
    return preferred if preferred in names else min(names)


def fit_shape(input_shape: Sequence[int | None] | None, row: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which a row of the dataset is reshaped for the model.

    Only changes that keep the order of the axes are made: the row is flattened, or gets or loses a channel axis of size
    1.

    Args:
        input_shape: Shape of the model's input with the batch axis. None stands for a free size or a free shape.
        row: Shape of a row in the dataset.

    Returns:
        Shape of a row for the model.

    Raises:
        ValueError: The shapes do not match, or the model accepts batches of one size only.
    """
    size = math.prod(row)
    for shape in (row, (size,), (*row, 1), row[:-1]):
        if math.prod(shape) == size and (input_shape is None or _accepts(input_shape, (None, *shape))):
            return shape
    raise ValueError(
        f"the model's input is of shape {tuple(input_shape or ())}, where {(None, *row)} is needed: evaluate it on the "
        "dataset it was trained with, and save it for any number of rows (None)."
    )


def _accepts(input_shape: Sequence[int | None], shape: Sequence[int | None]) -> bool:
    if len(input_shape) != len(shape):
        return False
    return all(accepted in (None, size) for accepted, size in zip(input_shape, shape, strict=True))
