"""The JSON of requests for predictions, as TensorFlow Serving defines it (pure).

https://www.tensorflow.org/tfx/serving/api_rest#predict_api: a request has its values by row, in "instances", or by
input, in "inputs". The answer has "predictions" or "outputs".
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.model_formats.model_inputs import fit_shape, numpy_type
from kfp_distributed.components.model_formats.saved_model import SERVING_SIGNATURE
from kfp_distributed.storage.tensor_specs import STRING, Signature, TensorSpec

# NumPy 1 has no more. NumPy 2 has 64, but goes through the values of no more than 32.
_MOST_DIMENSIONS = 32


class WrongRequest(ValueError):
    """A request is not one that the model can answer. The message says what is needed."""


class PredictRequest(NamedTuple):
    """A parsed request.

    Attributes:
        inputs: Values of each input of the model, by name.
        form: The key of the request that has them.
    """

    inputs: dict[str, NDArray[Any]]
    form: Literal["instances", "inputs"]


def parse_predict_request(body: bytes, signature: Signature) -> PredictRequest:
    """Parse the body of a request.

    Args:
        body: JSON. NaN and Infinity are allowed, as TensorFlow Serving allows them.
        signature: Inputs of the model.

    Raises:
        WrongRequest: The body is not JSON, or has not the inputs of the model.
    """
    try:
        return _parse(body, signature)
    except RecursionError:
        raise WrongRequest("the body has too many levels of lists") from None


def _parse(body: bytes, signature: Signature) -> PredictRequest:
    try:
        content = json.loads(body)
    except ValueError as error:
        raise WrongRequest(f"the body is not JSON: {error}") from None
    if not isinstance(content, dict) or ("instances" in content) == ("inputs" in content):
        raise WrongRequest('the body needs "instances" (values by row) or "inputs" (values by input)')
    name = content.get("signature_name", "")
    if name not in ("", SERVING_SIGNATURE):
        raise WrongRequest(f"signature_name is {name!r}: this server answers with {SERVING_SIGNATURE!r} alone")
    form: Literal["instances", "inputs"] = "inputs" if "inputs" in content else "instances"
    values = (_by_input if form == "inputs" else _by_row)(content[form], signature)
    return PredictRequest({key: _tensor(signature.inputs[key], value) for key, value in values.items()}, form)


def predict_answer(outputs: Mapping[str, NDArray[Any]], form: Literal["instances", "inputs"]) -> bytes:
    """Return the body of the answer.

    Args:
        outputs: Outputs of the model, by name.
        form: The form of the request.

    Raises:
        WrongRequest: The answer is to be by row, and the outputs have different numbers of rows.
    """
    lists = {name: _json_values(np.asarray(values)) for name, values in outputs.items()}
    only = next(iter(lists.values())) if len(lists) == 1 else None
    if form == "inputs":
        return json.dumps({"outputs": lists if only is None else only}).encode()
    counts = {name: np.shape(values)[0] if np.ndim(values) else None for name, values in outputs.items()}
    if len(set(counts.values())) != 1 or None in counts.values():
        raise WrongRequest(f'the outputs have the numbers of rows {counts}, which differ: ask by "inputs"')
    rows = (
        only if only is not None else [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    )
    return json.dumps({"predictions": rows}).encode()


def _by_input(values: object, signature: Signature) -> Mapping[str, object]:
    """Return the values of each input, whose rows are together in the request."""
    names = list(signature.inputs)
    if len(names) == 1 and not (isinstance(values, dict) and set(values) == set(names)):
        return {names[0]: values}
    if not isinstance(values, dict):
        raise WrongRequest(f'"inputs" needs an object with a list for each of {names}')
    _check_names("inputs", values, names)
    return values


def _by_row(rows: object, signature: Signature) -> Mapping[str, object]:
    """Return the values of each input, whose values are in the rows of the request."""
    names = list(signature.inputs)
    if not isinstance(rows, list) or not rows:
        raise WrongRequest('"instances" needs a list of at least one row')
    if len(names) == 1 and not (isinstance(rows[0], dict) and set(rows[0]) == set(names)):
        return {names[0]: rows}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise WrongRequest(f'row {number} of "instances" is {row!r:.80}: it needs a value for each of {names}')
        _check_names(f'row {number} of "instances"', row, names)
    return {name: [row[name] for row in rows] for name in names}


def _check_names(what: str, values: Mapping[str, object], names: Sequence[str]) -> None:
    missing, unknown = [name for name in names if name not in values], [name for name in values if name not in names]
    if missing or unknown:
        raise WrongRequest(f"{what} lacks {missing} and has the unknown {unknown}: the model's inputs are {names}")


def _tensor(spec: TensorSpec, value: object) -> NDArray[Any]:
    """Return the values of an input, reshaped to the input where the number of values of a row fits."""
    if _levels(value) > _MOST_DIMENSIONS:
        raise WrongRequest(f"input {spec.name!r} has too many levels of lists: {_MOST_DIMENSIONS} are the most")
    if spec.dtype == STRING:
        array = _texts(spec, value)
    else:
        dtype = numpy_type(spec)
        try:
            array = np.array(value)
        except ValueError:  # NumPy's own message speaks of its arguments.
            raise WrongRequest(f"input {spec.name!r} has rows of different lengths") from None
        # JSON has no types: true is no number, and 1.5 is no int64.
        allowed = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}.get(dtype.kind, "")
        if array.size and array.dtype.kind not in allowed:
            raise WrongRequest(f"input {spec.name!r} takes {spec.dtype}, and has {_example(value)}")
        _check_range(spec, array, dtype)
        array = array.astype(dtype)
    if array.ndim and not len(array):
        raise WrongRequest(f"input {spec.name!r} has no rows: it needs at least one")
    if array.ndim:
        try:
            return array.reshape(len(array), *fit_shape(spec, array.shape[1:]))
        except ValueError:  # Its message speaks of datasets and of saving the model.
            taken = "anything" if spec.shape is None else f"the shape {[*spec.shape]}"
            text = f"input {spec.name!r} takes {taken}, None for any size, and has the shape {[*array.shape]}"
            raise WrongRequest(text) from None
    if spec.shape == ():
        return array
    raise WrongRequest(f"input {spec.name!r} has a single value: it needs a list with a value for each row")


def _levels(value: object) -> int:
    """Return the number of levels of lists down to the first value: an array has no more dimensions."""
    levels = 0
    while isinstance(value, list):
        levels, value = levels + 1, value[0] if value else None
    return levels


def _check_range(spec: TensorSpec, array: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Check that the type of the input has all numbers: NumPy would change 300 into 44 for uint8."""
    if dtype.kind == "b":
        return
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    outside = array[np.isfinite(array) & ((array < limits.min) | (array > limits.max))]
    if outside.size:
        allowed = f"{spec.dtype}, from {limits.min} to {limits.max}"
        raise WrongRequest(f"input {spec.name!r} takes {allowed}, and has {outside[0]}")


def _texts(spec: TensorSpec, value: object) -> NDArray[Any]:
    def text(item: object) -> object:
        if isinstance(item, list):
            return [text(entry) for entry in item]
        if isinstance(item, dict) and set(item) == {"b64"} and isinstance(item["b64"], str):
            try:
                return base64.b64decode(item["b64"], validate=True)
            except binascii.Error as error:
                raise WrongRequest(f"input {spec.name!r} has a value that is not base64: {error}") from None
        if not isinstance(item, str):
            raise WrongRequest(f'input {spec.name!r} takes texts, and has {item!r:.80}: write "" for a missing text')
        return item

    array = np.array(text(value), object)
    if any(isinstance(item, list) for item in array.flat):
        raise WrongRequest(f"input {spec.name!r} has rows of different lengths")
    return array


def _example(value: object) -> str:
    """Return what the first value that is no number looks like, for errors."""
    found = value
    while isinstance(found, list) and found:
        found = next((item for item in found if not isinstance(item, int | float) or isinstance(item, bool)), found[0])
    advice = ": write NaN for a missing number" if found is None else ""
    return f"{json.dumps(found):.80}{advice}"


def _json_values(values: NDArray[Any]) -> Any:  # noqa: ANN401  (nested lists)
    """Return nested lists. Numbers have the shortest decimals that are read as the same number of their type."""
    if values.dtype.kind == "O" or values.dtype.kind in "SU":
        return _map(values.tolist(), _json_text)
    if values.dtype.kind == "f" and values.dtype.itemsize < np.dtype(np.float64).itemsize:
        return _map(values.tolist(), lambda number: _shortest(number, values.dtype))
    return values.tolist()


def _map(values: Any, change: Any) -> Any:  # noqa: ANN401  (nested lists)
    return [_map(item, change) for item in values] if isinstance(values, list) else change(values)


def _shortest(number: float, dtype: np.dtype[Any]) -> float:
    return float(str(dtype.type(number))) if math.isfinite(number) else number


def _json_text(item: object) -> object:
    if not isinstance(item, bytes):
        return item
    try:
        return item.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(item).decode()}
