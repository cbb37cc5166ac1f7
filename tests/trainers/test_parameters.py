"""Values of train_parameters in the types of a function's signature."""

import ast
import json
import re
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_distributed.trainers.programs.program import Program, check_parameters, function_arguments, parse_program


def function_of(signature: str) -> Program:
    return parse_program({"function": "fit", "source": textwrap.dedent(f"def fit(model_dir, {signature}): pass")})


@pytest.mark.parametrize(
    ("signature", "value", "expected"),
    [
        ("x: int", 5.0, 5),
        ("x: int", "5", 5),
        ("x: int", "5.0", 5),
        ("x: int", 2**70, 2**70),
        ("x: int", str(2**70), 2**70),
        ("x: int", -9007199254740993, -9007199254740993),
        ("x: int", "-9007199254740993", -9007199254740993),
        ("x: int", 10**400, 10**400),
        ("x=5", -9007199254740993, -9007199254740993),
        ("x: float", 1, 1.0),
        ("x: float", "1e-3", 0.001),
        ("x: bool", "true", True),
        ("x: bool", "False", False),
        ("x: str", "5", "5"),
        ("x: list", "[1, 2]", [1, 2]),
        ("x: list[int]", [64.0, "32"], [64, 32]),
        ("x: List[float]", [1, "2"], [1.0, 2.0]),
        ("x: dict", '{"a": 1}', {"a": 1}),
        ("x: dict[str, int]", {"a": 1.0}, {"a": 1}),
        ("x: Optional[int]", None, None),
        ("x: typing.Optional[int]", "3", 3),
        ("x: int | None", "3.0", 3),
        ("x: 'int | None'", None, None),
        ("x: list[int] | None", ["64"], [64]),
        ("x: Optional[List[int]]", None, None),
        ("x: Union[float, str]", "adam", "adam"),
        ("x=[1]", "[2]", [2]),
        ("x: int = None", None, None),
        ("x", {"any": [1]}, {"any": [1]}),
        ("x: 'np.ndarray'", [1], [1]),
        ("x=5", "7.0", 7),
        ("x=5", 0.5, 0.5),
        ("x=True", "false", False),
        ("x", 8.0, 8),
        (
            "x",
            {"layers": [8.0, 4.0], "rate": 0.5, "deep": [{"n": 2.0}]},
            {"layers": [8, 4], "rate": 0.5, "deep": [{"n": 2}]},
        ),
        ("x: Any", [8.0], [8]),
        ("x", {"limit": 1e30}, {"limit": 1e30}),
        ("x=5", 1e30, 10**30 + 19884624838656),
        ("x=None", [8.0], [8]),
        ("x=[8]", [8.0, 4.0], [8, 4]),
        ("x: list", [8.0, "4.0"], [8, "4.0"]),
        ("x: dict", {"8": 4.0}, {"8": 4}),
        ("x: dict[str, Any]", {"8": [4.0]}, {"8": [4]}),
        ("x: dict[str, list]", {"8": [4.0]}, {"8": [4]}),
        ("x: list | None", [8.0], [8]),
        ("x: int | str", 8.0, 8),
        ("x: dict[str, list[float]]", {"rates": [1, 2.0]}, {"rates": [1.0, 2.0]}),
        ("x: Union[float, str]", 2.0, 2.0),
        ("**options", 5.0, 5),
        ("**options", [5.0, {"n": 2.0}], [5, {"n": 2}]),
        ("**options: float", 5, 5.0),
    ],
)
def test_parameters_get_the_types_of_the_signature(signature, value, expected):
    checked = check_parameters(function_of(signature), {"x": value})
    # As text, for 8 == 8.0.
    assert repr(checked) == repr({"x": expected})


@pytest.mark.parametrize(
    ("signature", "value", "checked", "argument"),
    [
        ("x: tuple[int, int]", [28.0, "28"], [28, 28], (28, 28)),
        ("x: tuple[int, ...]", "[1, 2, 3]", [1, 2, 3], (1, 2, 3)),
        ("x: Tuple[int, str]", [1.0, "1"], [1, "1"], (1, "1")),
        ("x: tuple", [8.0, "a"], [8, "a"], (8, "a")),
        ("x: tuple[()]", [], [], ()),
        ("x=(28, 28)", [8.0, 8.0], [8, 8], (8, 8)),
        ("x: list[tuple[str, float]]", [["a", 1]], [["a", 1.0]], [("a", 1.0)]),
        ("x: tuple[int, int] | None", [1, 2], [1, 2], (1, 2)),
        ("x: tuple[int, int] | None", None, None, None),
        ("x: set[int]", [1.0, 2.0, 1.0], [1, 2, 1], {1, 2}),
        ("x: frozenset", ["a"], ["a"], frozenset("a")),
        ("x: Sequence[int]", [1.0], [1], [1]),
        ("x: collections.abc.Sequence[int]", [1.0], [1], [1]),
        ("x: Path", "a/b", "a/b", Path("a/b")),
        ("x: pathlib.Path", "/a", "/a", Path("/a")),
        ("x: Optional[Path]", None, None, None),
        ("x: 'Path | None'", "a", "a", Path("a")),
        ("x: list['Path']", ["a"], ["a"], [Path("a")]),
        ("x: str | Path", "a", "a", "a"),
        ("x: click.Path", "a", "a", "a"),
        ("x: dict[str, Path]", {"a": "b"}, {"a": "b"}, {"a": Path("b")}),
        ("x: dict[int, float]", {"8": 1}, {"8": 1.0}, {8: 1.0}),
        ("x: Mapping[str, int]", {"a": 1.0}, {"a": 1}, {"a": 1}),
        ("x: Literal['adam', 'sgd']", "sgd", "sgd", "sgd"),
        ("x: typing.Literal[1, 2]", "2", 2, 2),
        ("x: Literal[1, 2]", 2.0, 2, 2),
        ("x: Literal[-1, 'auto']", -1.0, -1, -1),
        ("x: Literal[True, 'auto']", "true", True, True),
        ("x: Literal['1', 1]", "1", "1", "1"),
        ("x: Literal[0, False]", False, False, False),
        ("x: Literal['a', None]", None, None, None),
        ("x: Optional[Literal['a', 'b']]", "b", "b", "b"),
        ("x: Literal[Mode.FAST]", "fast", "fast", "fast"),
        ("x: Union[int, str]", "5", "5", "5"),
        ("x: Union[int, str]", 5.0, 5, 5),
        ("x: float | str", 2, 2.0, 2.0),
        ("x: int | float", 0.5, 0.5, 0.5),
        ("x: list[int] | int", [8.0], [8], [8]),
        ("x: Union[int, None]", "3", 3, 3),
        ("x: Optional[bool]", "true", True, True),
        ("x: Annotated[int, 'epochs']", 3.0, 3, 3),
        ("x: Unknown[int, ...]", [8.0], [8], [8]),
        ("**options: tuple[int, ...]", [8.0], [8], (8,)),
    ],
)
def test_a_function_gets_what_its_annotations_say(signature, value, checked, argument):
    program = function_of(signature)
    in_step = check_parameters(program, {"x": value})
    assert repr(in_step) == repr({"x": checked})
    in_replica = function_arguments(program, json.loads(json.dumps(in_step)))
    assert repr(in_replica) == repr({"x": argument})


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("tuple[int, int]", [1]),
        ("tuple[int, int]", [1, 2, 3]),
        ("tuple[int, int]", [1, 2.5]),
        ("tuple[int, ...]", 5),
        ("tuple[int, int] | None", [1]),
        ("set[list[int]]", [[1]]),
        ("Sequence[int]", ["a"]),
        ("Path", 5),
        ("Optional[Path]", 5),
        ("Literal['adam', 'sgd']", "Adam"),
        ("Literal[1, 2]", 3),
        ("Literal[1, 2]", True),
        ("Literal[1, 2]", "one"),
        ("Literal['2']", 2),
        ("typing.Literal['adam', 'sgd']", 2),
        ("Literal['a'] | Literal['b']", "c"),
        ("Optional[Literal['a']]", "b"),
        ("int | list[int]", "a"),
        ("Union[int, None]", "a"),
        ("dict[int, str]", {"a": "b"}),
        ("dict[int, str]", {"1": "a", "01": "b"}),
    ],
)
def test_a_value_that_an_annotation_does_not_allow_is_refused(annotation, value):
    names = "one of 'adam', 'sgd'"
    literals = {
        "Literal['2']": "one of '2'",
        "Literal['adam', 'sgd']": names,
        "typing.Literal['adam', 'sgd']": names,
        "Literal[1, 2]": "one of 1, 2",
    }
    allowed = literals.get(annotation, annotation)
    with pytest.raises(ValueError, match=re.escape(f"train_parameters of fit: x is {value!r}; allowed is {allowed}")):
        check_parameters(function_of(f"x: {annotation}"), {"x": value})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1024 * 4", 4096),
        ("-1", -1),
        ("1e-3 / 2", 5e-4),
        ("2**16 - 1", 65535),
        ("(28, 28)", (28, 28)),
        ("[128] * 2", [128, 128]),
        ("{'units': 2 * 64}", {"units": 128}),
    ],
)
def test_a_default_may_be_a_constant_expression(text, value):
    (parameter,) = function_of(f"x={text}").parameters
    assert repr(parameter.default) == repr(value)


@pytest.mark.parametrize("text", ["len('a')", "[n for n in (1, 2)]", "1 / 0", "'a' + 1", "().__class__", "f'{1}'"])
def test_the_error_names_a_default_that_is_not_constant(text):
    with pytest.raises(ValueError, match=re.escape("fit(): the default of x is " + ast.unparse(ast.parse(text)))):
        function_of(f"x={text}")


@pytest.mark.parametrize(
    ("signature", "parameters", "reason"),
    [
        ("x: int", {"x": 2.5}, "train_parameters of fit: x is 2.5; allowed is int"),
        ("x: int", {"x": True}, "allowed is int"),
        ("x: int", {"x": "many"}, "allowed is int"),
        ("x: int", {"x": None}, "allowed is int"),
        ("x: int", {"x": "1" * 5000}, "allowed is int"),
        ("x: float", {"x": 10**400}, "allowed is float"),
        ("x: float", {"x": "nan"}, "allowed is float"),
        ("x: bool", {"x": 1}, "allowed is bool"),
        ("x: str", {"x": 5}, "allowed is str"),
        ("x: list[int]", {"x": [1, 2.5]}, "allowed is list[int]"),
        ("x: list", {"x": "[1"}, "allowed is list"),
        ("x: dict", {"x": [1]}, "allowed is dict"),
        ("x: Optional[int]", {"x": "a"}, "allowed is Optional[int]"),
        ("x, y: int, z=1", {}, "fit needs x, y"),
        ("epochs=1", {"epoch": 1}, "fit has no parameter 'epoch' to set; it has: epochs"),
        ("x=1", {"train_dir": "/data"}, "fit has no parameter 'train_dir' to set; it has: x"),
        ("**options", {"model_dir": 1}, "fit has no parameter 'model_dir' to set; it has: none"),
        ("x=1", "[1", "allowed: a dict"),
        ("x=1", 7, "allowed: a dict"),
    ],
)
def test_the_error_names_a_wrong_parameter(signature, parameters, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_parameters(function_of(signature), parameters)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
TYPES = st.sampled_from(
    [
        *("int", "float", "str", "bool", "list[int]", "dict[str, float]", "Optional[bool]", "int | None"),
        *("tuple[int, str]", "set[int]", "dict[int, Path]", "Literal[1, 'a', True]", "Union[int, str, list[float]]"),
    ]
)


@settings(max_examples=200)
@given(kind=TYPES, value=JSON | st.sampled_from(["5.0", "true", "1e999", "[1, 2.0]", "0x10", "1_0", "[" * 5000]))
def test_any_value_is_converted_or_a_value_error(kind, value):
    program = function_of(f"x: {kind}")
    try:
        checked = check_parameters(program, {"x": value})
    except ValueError:
        return
    assert check_parameters(program, checked) == checked
    function_arguments(program, json.loads(json.dumps(checked)))
