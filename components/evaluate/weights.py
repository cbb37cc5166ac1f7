"""Checks the weights of a model for NaN. The outputs may hide it: TensorFlow's ReLU turns NaN into 0 on a CPU."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.evaluate.finite import NAN_ADVICE

# Keras also saves the state of the optimizer and of the metrics. It may stay NaN after the best weights were restored.
_TRAINING_STATE = re.compile(r"(.*/)?(optimizer|keras_api/metrics|\.OPTIMIZER_SLOT)/")


def check_weights(folder: Path) -> None:
    """Check that no weight of a model is NaN. Infinity is allowed: masks of attention layers use it.

    A single number is a constant and not a weight. It may be NaN to mark missing values.

    Args:
        folder: A SavedModel, or a folder with model.onnx.

    Raises:
        ValueError: Some are. The message has the number of tensors and what to do.
    """
    # As float32, because NumPy has no NaN check for bfloat16.
    with_nan = [bool(np.isnan(tensor.astype(np.float32)).any()) for tensor in _float_weights(folder) if tensor.ndim]
    if any(with_nan):
        raise ValueError(f"{sum(with_nan)} of {len(with_nan)} weight tensors of the model have NaN. {NAN_ADVICE}")


def _float_weights(folder: Path) -> Iterator[NDArray[Any]]:
    onnx_file, variables = folder / "model.onnx", folder / "variables" / "variables"
    if onnx_file.is_file():
        import onnx

        tensors = map(onnx.numpy_helper.to_array, onnx.load(str(onnx_file)).graph.initializer)
        yield from (tensor for tensor in tensors if tensor.dtype.kind not in "biuOSU")
    elif variables.with_suffix(".index").is_file():
        import tensorflow as tf

        checkpoint = tf.train.load_checkpoint(str(variables))
        for name, dtype in checkpoint.get_variable_to_dtype_map().items():
            if dtype.is_floating and not _TRAINING_STATE.match(name):
                yield checkpoint.get_tensor(name)
