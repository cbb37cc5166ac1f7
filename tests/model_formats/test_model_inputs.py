import re

import numpy as np
import pytest

from kfp_distributed.components.model_formats.model_inputs import fit_shape, plan_inputs
from kfp_distributed.storage.dataset import Column
from kfp_distributed.storage.tensor_specs import Signature, TensorSpec

COLUMNS = [
    Column("unit price", "number", "float32"),
    Column("colour", "category", "int32", vocabulary=("blue", "red")),
    Column("signal", "tensor", "float32", (2, 2)),
    Column("sold", "number", "float32", source_type="date"),
]
MATRIX = np.array([[1.5, 2, 1, 2, 3, 4, 10], [np.nan, 0, 5, 6, 7, 8, 10.25]], np.float32)
RAW = {
    "unit price": [1.5, None],
    "colour": ["red", None],
    "signal": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
    "sold": np.array(["1970-01-11T00:00", "1970-01-11T06:00"], "datetime64[s]"),
    "another": [1, 2],
}


def signature(**inputs):
    return Signature({name: TensorSpec(name, *spec) for name, spec in inputs.items()}, {})


def lists(inputs):
    """The values of inputs and their types, with the text "gap" for NaN."""

    def shown(value):
        return list(map(shown, value)) if isinstance(value, list) else "gap" if value != value else value

    return {name: (str(values.dtype), shown(values.tolist())) for name, values in inputs.items()}


BY_COLUMN = signature(
    **{
        "unit price": ("float64", (None, 1)),
        "colour": ("string", (None, 1)),
        "signal": ("float32", (None, 4)),
        "sold": ("int64", (None,)),
    }
)


def test_rows_are_given_by_column_in_the_declared_types_and_shapes():
    plan = plan_inputs(BY_COLUMN, COLUMNS)
    assert plan.by_column
    assert lists(plan.from_matrix(MATRIX)) == {
        "unit price": ("float64", [[1.5], ["gap"]]),
        "colour": ("object", [["red"], [""]]),
        "signal": ("float32", [[1, 2, 3, 4], [5, 6, 7, 8]]),
        "sold": ("int64", [10, 10]),
    }
    assert lists(plan.from_columns(RAW)) == lists(plan.from_matrix(MATRIX))


def test_an_unknown_text_is_given_as_it_is_by_column_and_as_a_missing_one_in_a_matrix():
    raw = {**RAW, "colour": ["purple", ""]}
    inputs = plan_inputs(BY_COLUMN, COLUMNS).from_columns(raw)
    assert inputs["colour"].tolist() == [["purple"], [""]]
    matrix = plan_inputs(signature(x=("float32", (None, 7))), COLUMNS).from_columns(raw)["x"]
    assert matrix[:, 1].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_category_by_column_may_be_its_index(dtype):
    plan = plan_inputs(signature(colour=(dtype, (None,))), COLUMNS[1:2])
    assert lists(plan.from_matrix(MATRIX[:, 1:2])) == {"colour": (dtype, [2, 0])}
    assert lists(plan.from_columns({"colour": ["red", ""]})) == {"colour": (dtype, [2, 0])}


@pytest.mark.parametrize("name", ["features", "x", "colour"])
def test_a_single_input_of_several_columns_takes_the_matrix(name):
    plan = plan_inputs(signature(**{name: ("float64", (None, None))}), COLUMNS)
    assert not plan.by_column
    for inputs in (plan.from_matrix(MATRIX), plan.from_columns(RAW)):
        assert lists(inputs) == lists({name: MATRIX.astype(np.float64)})


def test_the_only_column_may_be_called_features():
    image = np.arange(12, dtype=np.float32).reshape(3, 4)
    plan = plan_inputs(signature(features=("uint8", (None, 2, 2, 1))), [Column("features", "tensor", "uint8", (2, 2))])
    assert lists(plan.from_matrix(image)) == {"features": ("uint8", image.reshape(3, 2, 2, 1).tolist())}
    texts = plan_inputs(signature(features=("string", (None, 1))), [Column("features", "category", "int32")])
    assert lists(texts.from_columns({"features": ["a"]})) == {"features": ("object", [["a"]])}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"size": ("float32", (None,)), "colour": ("string", (None,))},
            "inputs are ['colour', 'size'], and the columns of the dataset are ['colour', 'signal', 'sold', 'unit "
            "price']: save the model with an input for each column",
        ),
        ({}, "the model's inputs are [], and the columns"),
        ({"x": ("string", (None, 7))}, "the model's input 'x' takes texts, and the dataset has numbers for it"),
        ({"x": ("float32", (None, 8))}, "the model's input 'x' is of shape (None, 8), where (None, 7) is needed"),
        ({"x": ("strange", (None, 7))}, "the model's input 'x' is of the type strange"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plan_inputs(signature(**inputs), COLUMNS)


def test_columns_without_a_form_as_numbers_need_an_input_each():
    columns = [*COLUMNS[:1], Column("notes", "kept", "string")]
    with pytest.raises(ValueError, match=r"the columns \['notes'\] have no form as numbers"):
        plan_inputs(signature(x=("float32", (None, 2))), columns)
    inputs = signature(**{"unit price": ("float32", (None,)), "notes": ("string", (None, 1))})
    assert lists(plan_inputs(inputs, columns).from_columns({**RAW, "notes": ["a", None]})) == {
        "unit price": ("float32", [1.5, "gap"]),
        "notes": ("object", [["a"], [""]]),
    }


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"colour": [1, 2]}, "column 'colour' has the value 1: a category is a text"),
        ({"unit price": ["1.5", "cheap"]}, "column 'unit price' takes numbers: could not convert string"),
        ({"signal": np.zeros((2, 3))}, "column 'signal' has rows of shape (3,), where (2, 2) is needed"),
        ({"sold": [np.nan, 1.0]}, "input 'sold' takes int64, which has no missing value, and 1 values of these rows"),
    ],
)
def test_values_that_do_not_fit_are_refused(raw, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plan_inputs(BY_COLUMN, COLUMNS).from_columns({**RAW, **raw})


def test_missing_columns_are_named():
    message = r"the rows lack the columns \['colour', 'signal'\]: they have \['sold', 'unit price'\]"
    with pytest.raises(ValueError, match=message):
        plan_inputs(BY_COLUMN, COLUMNS).from_columns({name: RAW[name] for name in ("sold", "unit price")})


@pytest.mark.parametrize(
    ("input_shape", "row", "expected"),
    [
        ([None, 8, 8], (8, 8), (8, 8)),
        ([None, None, None], (8, 8), (8, 8)),
        (None, (8, 8), (8, 8)),
        ([None, 64], (8, 8), (64,)),
        ([None, None], (8, 8), (64,)),
        ([None, 8, 8, 1], (8, 8), (8, 8, 1)),
        ([None, None, None, 1], (8, 8), (8, 8, 1)),
        ([None, 8, 8], (8, 8, 1), (8, 8)),
        ([None, 13], (13,), (13,)),
        ([None], (1,), ()),
    ],
)
def test_fit_shape(input_shape, row, expected):
    assert fit_shape(spec_of(input_shape), row) == expected


@pytest.mark.parametrize(
    ("input_shape", "row"),
    [
        ([None, 28, 28], (8, 8)),
        ([None, 3, 8, 8], (8, 8, 3)),  # The same size with other axes.
        ([None, 8, 8], (64,)),
        ([None, 8], (8, 8)),
        ([None, 12], (13,)),
        ([32, 8, 8], (8, 8)),
        ([], (8, 8)),
    ],
)
def test_shapes_that_do_not_match_are_refused(input_shape, row):
    message = f"is of shape {tuple(input_shape)}, where {(None, *row)} is needed: use the dataset"
    with pytest.raises(ValueError, match=re.escape(message)):
        fit_shape(spec_of(input_shape), row)


def spec_of(shape):
    return TensorSpec("x", "float32", None if shape is None else tuple(shape))
