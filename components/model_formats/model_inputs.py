"""Makes the inputs of a model from rows (pure).

A model takes its rows in one of two forms. By column: one input for each column, with the column's name. As a matrix:
one input for all columns, as `read_batches` yields them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfp_distributed.storage.dataset import Column
from kfp_distributed.storage.tensor_specs import STRING, Signature, TensorSpec

_MATRIX = "features"
_NAMED = 10


@dataclass(frozen=True)
class ModelInputs:
    """The form in which a model takes the rows of a dataset.

    Attributes:
        columns: Columns of the dataset.
        by_column: Whether there is one input for each column; else there is one for the matrix.
        specs: The inputs by name.
        shapes: Shape of one row of each input, by name.
    """

    columns: tuple[Column, ...]
    by_column: bool
    specs: Mapping[str, TensorSpec]
    shapes: Mapping[str, tuple[int, ...]]

    def from_matrix(self, matrix: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Return the inputs for a batch.

        Args:
            matrix: The rows as `read_batches` yields them, [n, width], with the columns in the order of `columns`.

        Raises:
            ValueError: A number is missing where the input takes whole numbers.
        """
        if not self.by_column:
            return self._matrix_input(matrix)
        inputs, begin = {}, 0
        for column in self.columns:
            end = begin + math.prod(column.shape)
            values: NDArray[Any] = matrix[:, begin:end]
            if column.kind == "category" and self.specs[column.name].dtype == STRING:
                values = _texts_of(column)[np.nan_to_num(values).astype(np.int64)]
            inputs[column.name] = self._shaped(column.name, values)
            begin = end
        return inputs

    def from_columns(self, values: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
        """Return the inputs for raw values, of which each array has one row for each row of the others.

        Args:
            values: Values by name of the column. Numbers, times (`datetime64`) for dates, texts for categories, and
                tensors, [n, *shape]. None, NaN and, of a text, "" stand for a missing value.

        Raises:
            ValueError: A column is missing, or has values of another kind or shape.
        """
        if missing := [column.name for column in self.columns if column.name not in values]:
            raise ValueError(f"the rows lack the columns {_named(missing)}: they have {_named(values)}")
        parts = {column.name: self._raw(column, values[column.name]) for column in self.columns}
        if not self.by_column:
            numbers = [np.asarray(part, np.float32).reshape(len(part), -1) for part in parts.values()]
            return self._matrix_input(np.hstack(numbers))
        return {name: self._shaped(name, part) for name, part in parts.items()}

    def _raw(self, column: Column, values: ArrayLike) -> NDArray[Any]:
        if column.kind == "kept":
            return np.array(["" if _is_missing(value) else value for value in np.asarray(values, object)], object)
        if column.kind == "category":
            texts = ["" if _is_missing(value) else value for value in np.asarray(values, object).tolist()]
            if others := [text for text in texts if not isinstance(text, str)]:
                raise ValueError(f"column {column.name!r} has the value {others[0]!r}: a category is a text")
            if self.by_column and self.specs[column.name].dtype == STRING:
                return np.array(texts, object)
            # As in a dataset: a text that is not in the vocabulary counts as missing.
            indices = {text: index for index, text in enumerate(column.vocabulary, 1)}
            return np.array([indices.get(text, 0) for text in texts], np.float32)
        numbers = np.asarray(values)
        if numbers.dtype.kind == "M":
            days = (numbers - np.datetime64(0, "D")) / np.timedelta64(1, "D")
            return np.asarray(days, np.float32)
        try:
            numbers = numbers.astype(np.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(f"column {column.name!r} takes numbers: {error}") from None
        if math.prod(numbers.shape[1:]) != math.prod(column.shape):
            raise ValueError(
                f"column {column.name!r} has rows of shape {numbers.shape[1:]}, where {column.shape} is needed"
            )
        return numbers

    def _matrix_input(self, matrix: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        (name,) = self.specs
        return {name: self._shaped(name, matrix)}

    def _shaped(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        spec = self.specs[name]
        rows = values.reshape(len(values), *self.shapes[name])
        if spec.dtype == STRING:
            return rows.astype(object)
        dtype = numpy_type(spec)
        if dtype.kind in "biu" and values.dtype.kind == "f" and (gaps := int(np.isnan(values).sum())):
            raise ValueError(
                f"the model's input {name!r} takes {spec.dtype}, which has no missing value, and {gaps} values of "
                "these rows are missing: save it with an input of float32, where NaN stands for a missing value"
            )
        return rows.astype(dtype)


def plan_inputs(signature: Signature, columns: Sequence[Column]) -> ModelInputs:
    """Return the form in which a model takes the rows of a dataset.

    A model takes them by column if the names of its inputs are those of the columns. Else, if it has a single input of
    any name, it takes the matrix.

    Args:
        signature: Inputs of the model.
        columns: Columns of the dataset, in the order of the matrix.

    Raises:
        ValueError: The model has other inputs, or an input of another shape or type.
    """
    specs = signature.inputs
    by_column = set(specs) == {column.name for column in columns}
    if by_column:
        shapes = {column.name: fit_shape(specs[column.name], column.shape or (1,)) for column in columns}
        texts = {column.name for column in columns if column.kind in ("category", "kept")}
    elif len(specs) == 1 and (kept := [column.name for column in columns if column.kind == "kept"]):
        raise ValueError(
            f"the columns {_named(kept)} have no form as numbers, and the model's inputs are {_named(specs)}: save the "
            "model with an input for each column, with the names of the columns"
        )
    elif len(specs) == 1:
        row = columns[0].shape if len(columns) == 1 else ()
        width = sum(math.prod(column.shape) for column in columns)
        shapes = {name: fit_shape(spec, row or (width,)) for name, spec in specs.items()}
        texts = set()
    else:
        raise ValueError(
            f"the model's inputs are {_named(specs)}, and the columns of the dataset are "
            f"{_named(column.name for column in columns)}: save the model with an input for each column, with the "
            f"names of the columns, or with one input such as {_MATRIX!r} for all of them"
        )
    for name, spec in specs.items():
        if spec.dtype != STRING:
            numpy_type(spec)
        elif name not in texts:
            raise ValueError(
                f"the model's input {name!r} takes texts, and the dataset has numbers for it: save the model with an "
                "input of float32, or with an input for each column, with the names of the columns"
            )
    return ModelInputs(tuple(columns), by_column, specs, shapes)


def fit_shape(spec: TensorSpec, row: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which a row is reshaped for an input of a model.

    Only changes that keep the order of the axes are made: the row is flattened, or gets or loses a channel axis of size
    1.

    Args:
        spec: The input.
        row: Shape of a row in the dataset.

    Returns:
        Shape of a row for the model.

    Raises:
        ValueError: The shapes do not match, or the model accepts batches of one size only.
    """
    size = math.prod(row)
    for shape in (row, (size,), (*row, 1), row[:-1]):
        if math.prod(shape) == size and (spec.shape is None or _accepts(spec.shape, (None, *shape))):
            return shape
    raise ValueError(
        f"the model's input {spec.name!r} is of shape {spec.shape}, where {(None, *row)} is needed: use the dataset "
        "that it was trained with, and save it for any number of rows (None)."
    )


def _accepts(spec: Sequence[int | None], shape: Sequence[int | None]) -> bool:
    if len(spec) != len(shape):
        return False
    return all(accepted in (None, size) for accepted, size in zip(spec, shape, strict=True))


def numpy_type(spec: TensorSpec) -> np.dtype[Any]:
    """Return the type of an input of numbers.

    Raises:
        ValueError: NumPy has no such type, as for bfloat16.
    """
    try:
        return np.dtype(spec.dtype)
    except TypeError:
        raise ValueError(
            f"the model's input {spec.name!r} is of the type {spec.dtype}: save it with an input of float32"
        ) from None


def _texts_of(column: Column) -> NDArray[Any]:
    """Return the text of each index of a category. That of a missing value, 0, is ""."""
    return np.array(["", *column.vocabulary], object)


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _named(names: Iterable[str]) -> str:
    names = sorted(names)
    return f"{names[:_NAMED]}{' and more' if len(names) > _NAMED else ''}"
