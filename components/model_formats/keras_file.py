"""Files of Keras, model.keras, run by the version of Keras that has saved them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.model_formats.model_errors import LOAD_ADVICE, RUN_ADVICE, model_errors
from kfp_distributed.components.model_formats.needed_package import provide_package
from kfp_distributed.components.model_formats.quiet_import import quiet_tensorflow
from kfp_distributed.trainers.runtime.outputs.keras_signature import keras_signature, named_outputs, saved_version

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
        with model_errors(f"{file} cannot be loaded", LOAD_ADVICE):
            version = saved_version(file)
        if version.startswith("2."):
            provide_package("tf_keras", "tf_keras==2.21.0", f"{file} of Keras {version}")
        with quiet_tensorflow():
            if version.startswith("2."):
                import tf_keras as keras
            else:
                import keras
        with model_errors(f"{file} cannot be loaded", LOAD_ADVICE):
            self._model = keras.models.load_model(str(file), compile=False, safe_mode=True)
        self.signature = keras_signature(keras, self._model, str(file))

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return all outputs by name, see `Model`."""
        import tensorflow as tf

        with model_errors("the model failed", RUN_ADVICE):
            tensors = {name: tf.convert_to_tensor(values) for name, values in inputs.items()}
            (first, *others) = tensors.values()
            outputs = self._model(tensors if others else first, training=False)
            return {name: np.asarray(values) for name, values in named_outputs(self._model, outputs).items()}
