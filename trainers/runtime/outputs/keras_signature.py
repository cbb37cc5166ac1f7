"""Names the inputs and outputs of a model of Keras 3 or Keras 2."""

import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

from kfp_distributed.storage.tensor_specs import STRING, Signature, TensorSpec


def saved_version(file: Path) -> str:
    """Return the version of Keras that saved a file, such as "3.5.0"."""
    with ZipFile(file) as archive:
        return str(json.loads(archive.read("metadata.json"))["keras_version"])


def read_keras_signature(file: Path) -> Signature | None:
    """Return the signature of a file by the Keras that this process has imported, without loading its weights.

    Returns:
        None if the process has not imported the version of Keras that saved the file.

    Raises:
        ValueError: The model has no fixed inputs. Keras may raise other errors.
    """
    major = saved_version(file).partition(".")[0]
    modules = [sys.modules.get(name) for name in ("keras", "tf_keras")]
    keras = next((module for module in modules if module and module.__version__.partition(".")[0] == major), None)
    if not keras:
        return None
    with ZipFile(file) as archive:
        config = json.loads(archive.read("config.json"), object_hook=_without_compilation)
    with _without_weights(keras):
        return keras_signature(keras, keras.models.model_from_json(json.dumps(config)), str(file))


def _without_compilation(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a model or layer that is not compiled: an optimizer would create its variables."""
    return {key: value for key, value in config.items() if key != "compile_config"}


def _without_weights(keras: ModuleType) -> AbstractContextManager[Any]:
    """Return a context in which a new model gets no memory for its weights."""
    if hasattr(keras, "StatelessScope"):
        return keras.StatelessScope(initialize_variables=False)  # type: ignore[no-any-return]
    import tensorflow as tf

    return tf.Graph().as_default()  # type: ignore[no-any-return]


def keras_signature(keras: ModuleType, model: Any, where: str) -> Signature:  # noqa: ANN401
    """Return the signature of a model.

    Args:
        keras: The version of Keras of the model.
        model: The model.
        where: Where the model is from, for errors.

    Raises:
        ValueError: The model has no fixed inputs, or several outputs of one name.
    """
    if not getattr(model, "inputs", None):
        raise ValueError(f"{where} has no fixed inputs: save a functional model, or a Sequential one with an Input")
    is_sequential = isinstance(model, keras.Sequential)  # It has no `output` in Keras 3.
    outputs = named_outputs(model, model.outputs if is_sequential else model.output)
    # The names of the Input layers, in the order of the inputs.
    names = getattr(model, "input_names", None) or [tensor.name for tensor in model.inputs]
    return Signature.of(
        [_spec(str(name), tensor) for name, tensor in zip(names, model.inputs, strict=True)],
        [_spec(name, tensor) for name, tensor in outputs.items()],
    )


def named_outputs(model: Any, outputs: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return what a model returns by name: its own keys, else the names of the output layers, or "output".

    Raises:
        ValueError: Several outputs have one name.
    """
    if isinstance(outputs, dict):
        return outputs
    values = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    names = getattr(model, "output_names", None) or ["output"]
    # Keras 3 repeats the name of a layer that makes several outputs.
    if len({*names}) < len(names):
        raise ValueError(f"the model has several outputs of one name, {names}: save a model that returns a dictionary")
    return dict(zip(names, values, strict=True))


def _spec(name: str, tensor: Any) -> TensorSpec:  # noqa: ANN401
    dtype = str(getattr(tensor.dtype, "name", tensor.dtype))
    return TensorSpec(name, STRING if dtype == "string" else dtype, tuple(tensor.shape))
