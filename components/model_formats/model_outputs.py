"""Checks the outputs of a model, and brings them into one shape (pure)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.tensor_specs import TensorSpec


def count_classes(spec: TensorSpec) -> int:
    """Return the number of classes of which an output has the probabilities; 0 if its shape does not say it."""
    if spec.shape is None or len(spec.shape) not in (1, 2):
        return 0
    size = spec.shape[1] if len(spec.shape) == 2 else 1
    return 2 if size == 1 else size or 0


def class_matrix(output: NDArray[Any], rows: int, classes: int) -> NDArray[np.float64]:
    """Return the output of a classifier for a batch in the shape [rows, classes].

    Args:
        output: The output, [rows, classes]. Of two classes it may be [rows, 1] or [rows], the probability of the second
            class.
        rows: Number of rows of the batch.
        classes: Number of classes; 0 if it is unknown.

    Raises:
        ValueError: The output has another shape or type.
    """
    values = _numbers(output)
    if classes in (0, 2) and values.shape in ((rows,), (rows, 1)):
        values = values.reshape(rows)
        return np.column_stack([1 - values, values])
    if values.ndim != 2 or len(values) != rows or (classes and values.shape[1] != classes):
        raise _wrong_shape(values, rows, f"[{rows}, {classes or 'classes'}], one probability for each class,")
    return values


def number_vector(output: NDArray[Any], rows: int) -> NDArray[np.float64]:
    """Return the output of a model that predicts a number, [rows] or [rows, 1], for a batch in the shape [rows].

    Raises:
        ValueError: The output has another shape or type.
    """
    values = _numbers(output)
    if values.shape not in ((rows,), (rows, 1)):
        raise _wrong_shape(values, rows, f"[{rows}] or [{rows}, 1], one number for each row,")
    return values.reshape(rows)


def _numbers(output: NDArray[Any]) -> NDArray[np.float64]:
    values = np.asarray(output)
    if values.dtype.kind in "OSUcmM":  # Not "V", the kind of bfloat16.
        raise ValueError(f"the model's output is of the type {values.dtype}: save it with numbers, such as float32")
    return values.astype(np.float64)


def _wrong_shape(values: NDArray[Any], rows: int, needed: str) -> ValueError:
    return ValueError(
        f"the model's output has the shape {list(values.shape)} for a batch of {rows} rows, where {needed} is needed: "
        "use the dataset that the model was trained with, or save the model with such an output"
    )
