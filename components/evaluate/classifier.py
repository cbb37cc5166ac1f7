"""A SavedModel's serving signature as a classifier."""

import math
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def load_classifier(folder: Path, row: tuple[int, ...]) -> Callable[[NDArray[np.float32]], NDArray[np.floating]]:
    """Loads a SavedModel to ask its signature "serving_default" for class probabilities.

    Its one input may have any name, and so may its output; of several, "features" and "probabilities" count.

    Args:
        folder: The SavedModel.
        row: Shape of one row as the dataset has it.

    Returns:
        A function that turns rows, [n, width], into what the model answers, [n, classes] if the model is right.

    Raises:
        ValueError: The model has no such signature, or its input does not fit `row`.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else each start prints a screen of hardware remarks
    import tensorflow as tf

    model = tf.saved_model.load(str(folder))
    signature = model.signatures.get("serving_default")
    if signature is None:
        raise ValueError(f"the model has the signatures {list(model.signatures)}: save it with one 'serving_default'.")
    inputs = signature.structured_input_signature[1]
    given = pick(inputs, "features")
    answered = pick(signature.structured_outputs, "probabilities")
    shape = fit_shape(inputs[given].shape, row)

    def answer(features: NDArray[np.float32]) -> NDArray[np.floating]:
        rows = tf.cast(features.reshape(-1, *shape), inputs[given].dtype)
        # Asked through the model: its variables live only as long as it does.
        outputs = model.signatures["serving_default"](**{given: rows})
        probabilities: NDArray[np.floating] = outputs[answered].numpy()
        return probabilities

    return answer


def pick(names: Collection[str], usual: str) -> str:
    """Picks a signature's tensor: the usual name, else the only one there is.

    Raises:
        ValueError: There are several others, or none.
    """
    if usual not in names and len(names) != 1:
        raise ValueError(f"the model's signature has {sorted(names)}, where one is needed, or one named {usual!r}.")
    return usual if usual in names else min(names)


def fit_shape(wanted: Any, row: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ANN401  (a tf.TensorShape)
    """Says which shape a dataset's row must take for a model.

    A row is only reshaped where that cannot mix up its axes: flattened, or with one channel more or fewer.

    Args:
        wanted: Shape of the model's input with the batch, a tf.TensorShape.
        row: Shape of a row in the dataset.

    Returns:
        Shape of a row for the model.

    Raises:
        ValueError: They do not fit, or the model takes batches of one size only.
    """
    size = math.prod(row)
    for shape in (row, (size,), (*row, 1), row[:-1]):
        # An input that takes any number of rows takes none, too.
        if math.prod(shape) == size and wanted.is_compatible_with((0, *shape)):
            return shape
    raise ValueError(
        f"the model's input is of shape {wanted}, where {(None, *row)} is needed: evaluate it on the dataset it was "
        "trained with, and save it for any number of rows (None)."
    )
