import json

import numpy as np
import pytest

from kfp_distributed.components.model_server.predict_protocol import parse_predict_request, predict_answer
from kfp_distributed.storage.tensor_specs import Signature, TensorSpec


def signature(**inputs):
    return Signature({name: TensorSpec(name, *spec) for name, spec in inputs.items()}, {})


FLOWERS = signature(size=("float32", (None,)), colour=("string", (None, 1)), petals=("int64", (None,)))
MATRIX = signature(features=("float32", (None, 2)))
ROWS = {
    "instances": [
        {"size": 1.5, "colour": "red", "petals": 3},
        {"size": float("nan"), "colour": {"b64": "/w=="}, "petals": 2},
    ]
}
COLUMNS = {"inputs": {"size": [1.5, float("nan")], "colour": [["red"], [{"b64": "/w=="}]], "petals": [3, 2]}}


def shown(request):
    """The form, and the type, shape and values of each input."""
    inputs = {
        name: (str(values.dtype), values.shape, str(values.ravel().tolist())) for name, values in request.inputs.items()
    }
    return request.form, inputs


@pytest.mark.parametrize(("body", "form"), [(ROWS, "instances"), (COLUMNS, "inputs")])
def test_rows_and_columns_give_the_same_inputs(body, form):
    assert shown(parse_predict_request(json.dumps(body).encode(), FLOWERS)) == (
        form,
        {
            "size": ("float32", (2,), "[1.5, nan]"),
            "colour": ("object", (2, 1), "['red', b'\\xff']"),
            "petals": ("int64", (2,), "[3, 2]"),
        },
    )


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [[1, 2], [3, 4]]},
        {"instances": [{"features": [1, 2]}, {"features": [3, 4]}]},
        {"inputs": [[1, 2], [3, 4]], "signature_name": "serving_default"},
        {"inputs": {"features": [[1, 2], [3, 4]]}},
    ],
)
def test_a_single_input_needs_no_name(body):
    request = parse_predict_request(json.dumps(body).encode(), MATRIX)
    assert request.inputs["features"].tolist() == [[1, 2], [3, 4]]
    assert request.inputs["features"].dtype == np.float32


@pytest.mark.parametrize(
    ("body", "model", "words"),
    [
        (b"{", FLOWERS, "not JSON"),
        (b"\xff", FLOWERS, "not JSON"),
        (b"[]", FLOWERS, "needs"),
        (b"{}", FLOWERS, "needs"),
        ({"instances": [], "inputs": []}, FLOWERS, "needs"),
        ({"instances": []}, FLOWERS, "at least one row"),
        ({"instances": [[1, 2]], "signature_name": "features"}, MATRIX, "'features'"),
        (
            {"instances": [{"size": 1, "color": "red", "petals": 1}]},
            FLOWERS,
            r"lacks \['colour'\].*unknown \['color'\]",
        ),
        ({"instances": [1]}, FLOWERS, "row 0"),
        ({"inputs": [1]}, FLOWERS, "an object"),
        ({"instances": [[1, 2], [3]]}, MATRIX, "different lengths"),
        (
            {"instances": [[1, 2, 3]]},
            MATRIX,
            r"takes the shape \[None, 2\], None for any size, and has the shape \[1, 3\]$",
        ),
        ({"instances": [[1, None]]}, MATRIX, "null: write NaN"),
        ({"instances": [[True, True]]}, MATRIX, "true"),
        ({"instances": [["1", 2]]}, MATRIX, '"1"'),
        ({"instances": [{"size": 1, "colour": "red", "petals": 1.5}]}, FLOWERS, "'petals' takes int64, and has 1.5"),
        ({"instances": [{"size": 1, "colour": None, "petals": 1}]}, FLOWERS, 'write ""'),
        ({"instances": [{"size": 1, "colour": {"b64": "?"}, "petals": 1}]}, FLOWERS, "base64"),
        ({"inputs": {"size": 1, "colour": ["a"], "petals": [1]}}, FLOWERS, "single value"),
        ({"inputs": {"size": [], "colour": [], "petals": []}}, FLOWERS, "'size' has no rows"),
        (b"[" * 100_000, FLOWERS, "too many levels"),
        *(
            (b'{"inputs": %s"1"%s}' % (b"[" * levels, b"]" * levels), signature(x=(dtype, None)), "too many levels")
            for dtype in ("string", "float32")
            for levels in (33, 65, 900)
        ),
        (
            {"instances": [[300, 1]]},
            signature(bytes=("uint8", (None, 2))),
            "'bytes' takes uint8, from 0 to 255, and has 300",
        ),
        ({"instances": [[-1, 1]]}, signature(bytes=("uint8", (None, 2))), "has -1"),
        ({"inputs": [1]}, signature(half=("bfloat 16", (None,))), "'half' is of the type bfloat 16"),
        ({"inputs": [2**63]}, signature(count=("int64", (None,))), "has 9223372036854775808"),
        ({"instances": [[1e39, 1]]}, MATRIX, r"float32, from -3\.4\S+ to 3\.4\S+, and has 1e\+39"),
    ],
)
def test_a_wrong_request_is_refused_with_what_is_needed(body, model, words):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ValueError, match=words):
        parse_predict_request(content, model)


def test_answers_have_the_form_of_the_request():
    probabilities = np.array([[0.1, 0.9], [np.nan, 1]], np.float32)
    names = np.array(["a", b"\xff"], object)
    one, two = {"probabilities": probabilities}, {"probabilities": probabilities, "name": names}
    assert predict_answer(one, "instances") == b'{"predictions": [[0.1, 0.9], [NaN, 1.0]]}'
    assert predict_answer(one, "inputs") == b'{"outputs": [[0.1, 0.9], [NaN, 1.0]]}'
    assert predict_answer(two, "instances") == (
        b'{"predictions": [{"probabilities": [0.1, 0.9], "name": "a"}, '
        b'{"probabilities": [NaN, 1.0], "name": {"b64": "/w=="}}]}'
    )
    assert predict_answer(two, "inputs") == (
        b'{"outputs": {"probabilities": [[0.1, 0.9], [NaN, 1.0]], "name": ["a", {"b64": "/w=="}]}}'
    )
    with pytest.raises(ValueError, match="'total': None"):
        predict_answer({"total": np.float32(3), **one}, "instances")
    assert predict_answer({"total": np.float32(3)}, "inputs") == b'{"outputs": 3.0}'
