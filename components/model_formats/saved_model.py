"""SavedModels of TensorFlow, run by the names of the signature that servers answer with."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.model_formats.model_errors import LOAD_ADVICE, RUN_ADVICE, model_errors
from kfp_distributed.components.model_formats.quiet_import import quiet_tensorflow
from kfp_distributed.storage.tensor_specs import STRING, Signature, TensorSpec

SERVING_SIGNATURE = "serving_default"
"""The signature with which TensorFlow Serving and KServe answer requests that name none."""


class SavedModel:
    """The signature `SERVING_SIGNATURE` of a SavedModel.

    TensorFlow Serving loads a model in the same way. `tf.saved_model.load` would limit the names of inputs: a signature
    is a Python function there, so that "self" is refused, and "unit price" and "unit.price" are one name.

    Attributes:
        signature: Inputs and outputs of the signature.

    Raises:
        ValueError: The model cannot be loaded, or has no such signature.
    """

    def __init__(self, folder: Path, name: str = SERVING_SIGNATURE) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Otherwise each start logs a screen of remarks.
        with quiet_tensorflow():
            import tensorflow as tf

        logger = tf.get_logger()
        level = logger.level
        logger.setLevel("ERROR")  # It would recommend tf.saved_model.load.
        try:
            with model_errors(f"the SavedModel in {folder} cannot be loaded", LOAD_ADVICE), tf.Graph().as_default():
                self._session = tf.compat.v1.Session()
                loaded = tf.compat.v1.saved_model.load(self._session, [tf.saved_model.SERVING], str(folder))
        finally:
            logger.setLevel(level)
        if name not in loaded.signature_def:
            names = sorted(key for key in loaded.signature_def if not key.startswith("__"))
            raise ValueError(f"the model has the signatures {names}: save it with one {name!r}.")
        definition = loaded.signature_def[name]
        self._inputs, self._outputs = (
            {key: info.name for key, info in sorted(ends.items())} for ends in (definition.inputs, definition.outputs)
        )
        self.signature = Signature(
            *(
                {key: _spec(key, info.dtype, info.tensor_shape) for key, info in sorted(ends.items())}
                for ends in (definition.inputs, definition.outputs)
            )
        )

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return all outputs by name, see `Model`."""
        with model_errors("the model failed", RUN_ADVICE):
            feed = {self._inputs[name]: values for name, values in inputs.items()}
            outputs: Mapping[str, NDArray[Any]] = self._session.run(self._outputs, feed)
        return {name: np.asarray(values) for name, values in outputs.items()}


def _spec(name: str, number: int, size_message: object) -> TensorSpec:
    import tensorflow as tf

    dtype, shape = tf.as_dtype(number), tf.TensorShape(size_message)
    return TensorSpec(
        name, STRING if dtype == tf.string else dtype.name, None if shape.rank is None else tuple(shape.as_list())
    )
