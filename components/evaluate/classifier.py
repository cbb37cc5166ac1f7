"""A model as a classifier: a SavedModel's serving signature, or an ONNX model."""

import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.files import list_files
from kfp_distributed.storage.model import FORMATS

Classifier = Callable[[NDArray[np.float32]], NDArray[np.floating]]
"""Turns rows, [n, width], into what a model answers, [n, classes] if the model is right."""


_NAMED_FILES = 10
# TensorFlow's errors can hold a whole graph; the first two or three lines name the cause.
_REASON_LENGTH = 300
_LOAD_ADVICE = "save it with the library versions of this step, without custom classes and operations"
_ANSWER_ADVICE = "save it with a signature that takes float32 rows in the form of the dataset"


def load_classifier(folder: Path, row: tuple[int, ...]) -> Classifier:
    """Loads model.onnx or a SavedModel, whose signature "serving_default" counts, to ask it for class probabilities.

    Its one input may have any name, and so may its output; of several, "features" and "probabilities" count.

    Args:
        folder: The model.
        row: Shape of one row as the dataset has it.

    Raises:
        ValueError: There is no such model, it cannot be loaded, it has no such signature, or its input does not fit
            `row`. What it returns raises it too, where the model fails.
    """
    load = {"model.onnx": _load_onnx, "saved_model.pb": _load_saved_model}
    for name, load_format in load.items():
        if (folder / name).is_file():
            return load_format(folder, row)
    raise ValueError(
        f"the model in {folder} has no {' or '.join(FORMATS)}, it has {list_files(folder)[:_NAMED_FILES]}: evaluate "
        "takes a SavedModel or an ONNX model. Save one into model_dir itself, not into a folder below it."
    )


@contextmanager
def _failing(what: str, advice: str) -> Iterator[None]:
    """Turn whatever a model's library raises into a ValueError of one line."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:_REASON_LENGTH]
        raise ValueError(f"{what}: {advice} ({type(error).__name__}: {reason})") from error


def _load_onnx(folder: Path, row: tuple[int, ...]) -> Classifier:
    import onnxruntime

    file = folder / "model.onnx"
    with _failing(f"{file} cannot be loaded", _LOAD_ADVICE):
        model = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    inputs = {each.name: each for each in model.get_inputs()}
    given = inputs[pick(inputs, "features")]
    answered = pick([each.name for each in model.get_outputs()], "probabilities")
    # A dimension that is not fixed has a name.
    shape = fit_shape([size if isinstance(size, int) else None for size in given.shape], row)
    kind = given.type[len("tensor(") : -1]
    dtype = np.dtype({"float": "float32", "double": "float64"}.get(kind, kind))

    def answer(features: NDArray[np.float32]) -> NDArray[np.floating]:
        with _failing("the model cannot answer", _ANSWER_ADVICE):
            rows = features.reshape(-1, *shape).astype(dtype)
            probabilities: NDArray[np.floating] = model.run([answered], {given.name: rows})[0]
        return probabilities

    return answer


def _load_saved_model(folder: Path, row: tuple[int, ...]) -> Classifier:
    from kfp_distributed.components.evaluate.quiet_import import quiet_tensorflow

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else each start prints a screen of hardware remarks
    with quiet_tensorflow():
        import tensorflow as tf

    with _failing(f"the SavedModel in {folder} cannot be loaded", _LOAD_ADVICE):
        model = tf.saved_model.load(str(folder))
    signature = model.signatures.get("serving_default")
    if signature is None:
        raise ValueError(f"the model has the signatures {list(model.signatures)}: save it with one 'serving_default'.")
    inputs = signature.structured_input_signature[1]
    given = pick(inputs, "features")
    answered = pick(signature.structured_outputs, "probabilities")
    wanted = inputs[given].shape
    shape = fit_shape(None if wanted.rank is None else wanted.as_list(), row)

    def answer(features: NDArray[np.float32]) -> NDArray[np.floating]:
        with _failing("the model cannot answer", _ANSWER_ADVICE):
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


def fit_shape(wanted: Sequence[int | None] | None, row: tuple[int, ...]) -> tuple[int, ...]:
    """Says which shape a dataset's row must take for a model.

    A row is only reshaped where that cannot mix up its axes: flattened, or with one channel more or fewer.

    Args:
        wanted: Shape of the model's input with the batch; None for what may be any.
        row: Shape of a row in the dataset.

    Returns:
        Shape of a row for the model.

    Raises:
        ValueError: They do not fit, or the model takes batches of one size only.
    """
    size = math.prod(row)
    for shape in (row, (size,), (*row, 1), row[:-1]):
        if math.prod(shape) == size and (wanted is None or _takes(wanted, (None, *shape))):
            return shape
    raise ValueError(
        f"the model's input is of shape {tuple(wanted or ())}, where {(None, *row)} is needed: evaluate it on the "
        "dataset it was trained with, and save it for any number of rows (None)."
    )


def _takes(wanted: Sequence[int | None], shape: Sequence[int | None]) -> bool:
    return len(wanted) == len(shape) and all(each in (None, given) for each, given in zip(wanted, shape, strict=True))
