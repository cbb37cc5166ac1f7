"""Checks the weights of a model for NaN. The outputs may hide it: TensorFlow's ReLU turns NaN into 0 on a CPU."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.evaluate.scoring.finite import NAN_ADVICE
from kfp_distributed.storage.model_format import find_format

# Keras also saves the state of the optimizer and of the metrics. It may stay NaN after the best weights were restored.
_TRAINING_STATE = re.compile(r"(.*/)?(optimizer|keras_api/metrics|\.OPTIMIZER_SLOT)/")


def check_weights(folder: Path) -> None:
    """Check that no weight of a model is NaN. Infinity is allowed: masks of attention layers use it.

    A single number is a constant and not a weight. It may be NaN to mark missing values.

    Args:
        folder: Folder of a model of a format of `FORMATS`.

    Raises:
        ValueError: Some are. The message has the number of tensors and what to do.
    """
    # As float32, because NumPy has no NaN check for bfloat16.
    with_nan = [bool(np.isnan(tensor.astype(np.float32)).any()) for tensor in _float_weights(folder) if tensor.ndim]
    if any(with_nan):
        raise ValueError(f"{sum(with_nan)} of {len(with_nan)} weight tensors of the model have NaN. {NAN_ADVICE}")


def _float_weights(folder: Path) -> Iterator[NDArray[Any]]:
    readers = {"onnx": _onnx_weights, "saved_model": _saved_model_weights, "keras": _keras_weights}
    tensors = readers.get(find_format(folder), _torch_weights)(folder)
    return (tensor for tensor in tensors if tensor.dtype.kind not in "biuOSU")


def _onnx_weights(folder: Path) -> Iterator[NDArray[Any]]:
    import onnx

    yield from map(onnx.numpy_helper.to_array, onnx.load(str(folder / "model.onnx")).graph.initializer)


def _saved_model_weights(folder: Path) -> Iterator[NDArray[Any]]:
    variables = folder / "variables" / "variables"
    if variables.with_suffix(".index").is_file():
        import tensorflow as tf

        checkpoint = tf.train.load_checkpoint(str(variables))
        for name, dtype in checkpoint.get_variable_to_dtype_map().items():
            if dtype.is_floating and not _TRAINING_STATE.match(name):
                yield checkpoint.get_tensor(name)


def _keras_weights(folder: Path) -> Iterator[NDArray[Any]]:
    import h5py

    with ZipFile(folder / "model.keras") as archive, archive.open("model.weights.h5") as file:
        names: list[str] = []
        with h5py.File(file) as weights:
            weights.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
            for name in names:
                if not _TRAINING_STATE.match(name):
                    yield weights[name][()]


def _torch_weights(folder: Path) -> Iterator[NDArray[Any]]:
    import torch

    exported = folder / "model.pt2"
    source = torch.export.load(str(exported)) if exported.is_file() else torch.jit.load(str(folder / "model.pt"), "cpu")
    state = source.state_dict() if callable(source.state_dict) else source.state_dict
    yield from (tensor.detach().float().numpy() for tensor in state.values() if tensor.is_floating_point())
