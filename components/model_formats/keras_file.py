"""Files of Keras, model.keras, run by the version of Keras that has saved them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.model_formats.model_errors import LOAD_ADVICE, RUN_ADVICE, model_errors
from kfp_distributed.components.model_formats.model_signature import STRING, Signature, TensorSpec
from kfp_distributed.components.model_formats.needed_package import provide_package
from kfp_distributed.components.model_formats.quiet_import import quiet_tensorflow

KERAS_FILE = "model.keras"


class KerasFile:
    """The model of a folder with model.keras.

    The inputs have the names of the Input layers. The outputs have the keys of a model that returns a dictionary, else
    the names of the output layers, or "output" for a Sequential model. Code in the file, such as that of a Lambda
    layer, is not run.

    Attributes:
        signature: Inputs and outputs of the model.

    Raises:
        ValueError: The model cannot be loaded, or has no fixed inputs.
    """

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Otherwise each start logs a screen of remarks.
        file = folder / KERAS_FILE
        with model_errors(f"{file} cannot be loaded", LOAD_ADVICE), ZipFile(file) as archive:
            version = str(json.loads(archive.read("metadata.json"))["keras_version"])
        if version.startswith("2."):
            provide_package("tf_keras", "tf_keras==2.21.0", f"{file} of Keras {version}")
        with quiet_tensorflow():
            if version.startswith("2."):
                import tf_keras as keras
            else:
                import keras
        with model_errors(f"{file} cannot be loaded", LOAD_ADVICE):
            self._model = keras.models.load_model(str(file), compile=False, safe_mode=True)
        if not getattr(self._model, "inputs", None):
            raise ValueError(f"{file} has no fixed inputs: save a functional model, or a Sequential one with an Input")
        is_sequential = isinstance(self._model, keras.Sequential)  # It has no `output` in Keras 3.
        outputs = _named(self._model, self._model.outputs if is_sequential else self._model.output)
        self.signature = Signature(
            {name: _spec(name, tensor) for name, tensor in zip(_names(self._model), self._model.inputs, strict=True)},
            {name: _spec(name, tensor) for name, tensor in outputs.items()},
        )

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return all outputs by name, see `Model`."""
        import tensorflow as tf

        with model_errors("the model failed", RUN_ADVICE):
            tensors = {name: tf.convert_to_tensor(values) for name, values in inputs.items()}
            (first, *others) = tensors.values()
            outputs = self._model(tensors if others else first, training=False)
            return {name: np.asarray(values) for name, values in _named(self._model, outputs).items()}


def _names(model: Any) -> list[str]:  # noqa: ANN401
    """Return the names of the Input layers, in the order of the inputs."""
    return [str(name) for name in getattr(model, "input_names", None) or [tensor.name for tensor in model.inputs]]


def _named(model: Any, outputs: Any) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(outputs, dict):
        return outputs
    values = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return dict(zip(getattr(model, "output_names", None) or ["output"], values, strict=True))


def _spec(name: str, tensor: Any) -> TensorSpec:  # noqa: ANN401
    dtype = str(getattr(tensor.dtype, "name", tensor.dtype))
    return TensorSpec(name, STRING if dtype == "string" else dtype, tuple(tensor.shape))
