"""Reads the signature of a function from its source, without running it, and converts values to its types."""

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_TYPE = re.compile(r"(?:typing\.)?(\w+)(?:\[(?:str, )?(.+)\])?( \| None)?")
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function.

    Attributes:
        name: Name.
        type: Annotation as text, such as "list[int] | None"; "" for none.
        required: Whether it has no default.
        default: Default value; None if it has none.
    """

    name: str
    type: str = ""
    required: bool = True
    default: Any = None

    def convert(self, value: Any) -> Any:  # noqa: ANN401  (any JSON value)
        """Return a value, converted to the type of the parameter.

        An annotation other than int, float, str, bool, list, dict and Optional accepts any value. Without an
        annotation, the type of the default applies, and an int as default allows any number.

        KFP passes numbers inside dicts and lists as floats. A whole number becomes an int again, at any depth, unless
        the annotation is float.

        Raises:
            ValueError: The value has another type. The message names the allowed type.
        """
        if value is None and not self.required and self.default is None:
            return None
        text = self.type or type(self.default).__name__.replace("int", "number")
        try:
            return _convert(text.strip("'"), value)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise ValueError(f"{self.name} is {value!r:.200}; allowed is {text}") from None


_CONSTANT = (
    *(ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load),
    *(ast.UnaryOp, ast.BinOp, ast.unaryop, ast.operator),
)
"""Node types of a constant expression: literals and arithmetic, without names and calls."""


def read_signature(source: str, name: str) -> tuple[tuple[Parameter, ...], Parameter | None]:
    """Return the parameters of a function, and its `**kwargs` parameter or None.

    Args:
        source: Source code that defines the function.
        name: Name of the function.

    Raises:
        ValueError: There is no such function, or it has a default that is not a constant expression.
    """
    arguments = find_function(source, name).args
    names, defaults = [*arguments.args, *arguments.kwonlyargs], [*arguments.defaults, *arguments.kw_defaults]
    parameters = []
    for argument, default in zip(names, [None] * (len(names) - len(defaults)) + defaults, strict=True):
        text = _unparse(argument.annotation)
        try:
            value = _evaluate(default) if default else None
        except (ValueError, TypeError, ArithmeticError) as error:
            raise ValueError(
                f"{name}(): the default of {argument.arg} is {ast.unparse(default or argument)} ({error}); allowed: "
                "literals and arithmetic, such as 1024 * 4. Use None, and set the value in the function's body"
            ) from None
        parameters.append(Parameter(argument.arg, text, default is None, value))
    others = arguments.kwarg
    return tuple(parameters), Parameter(others.arg, _unparse(others.annotation)) if others else None


def _unparse(annotation: ast.expr | None) -> str:
    return ast.unparse(annotation) if annotation else ""


def _evaluate(expression: ast.expr) -> Any:  # noqa: ANN401
    """Return the value of a constant expression.

    Raises:
        TypeError: It has a part that is neither a constant nor arithmetic. The message has this part.
    """
    for node in ast.walk(expression):
        if not isinstance(node, _CONSTANT):
            raise TypeError(f"{ast.unparse(node)} is not a constant expression")
    return eval(compile(ast.Expression(expression), "<default>", "eval"), {"__builtins__": {}})


def find_function(source: str, name: str) -> ast.FunctionDef:
    """Return a function of a source by its name.

    Raises:
        ValueError: The source has no such function, or is not valid Python.
    """
    try:
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
    except SyntaxError as error:
        raise ValueError(f"the source of {name} is not valid Python: {error}") from None
    raise ValueError(f"the source has no function {name!r}")


def _convert(text: str, value: Any) -> Any:  # noqa: ANN401
    match = _TYPE.fullmatch(text)
    if not match:
        return value if "float" in text else whole_numbers(value)
    name, inner, optional = match.groups()
    if value is None and (optional or name == "Optional"):
        return None
    if name == "Optional":
        return _convert(inner, value)
    value = _CONVERTERS.get(name.lower(), lambda value: value)(value)
    if inner and isinstance(value, list):
        return [_convert(inner, item) for item in value]
    if inner and isinstance(value, dict):
        return {key: _convert(inner, item) for key, item in value.items()}
    return value if "float" in text else whole_numbers(value)


def whole_numbers(value: Any) -> Any:  # noqa: ANN401
    """Return a JSON value in which each float that is a 64-bit whole number is an int. 1e30 stays a float."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    if isinstance(value, Mapping):
        return {key: whole_numbers(item) for key, item in value.items()}
    return value


def _number(value: Any) -> Any:  # noqa: ANN401
    """Return a number or its text as an int if it is whole, else as a finite float. Large ints keep all digits."""
    if isinstance(value, str):
        value = int(value) if _INTEGER.fullmatch(value) else float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    return int(value) if value == int(value) else value


def _parsed(value: Any) -> Any:  # noqa: ANN401
    return json.loads(value) if isinstance(value, str) else value


# For a value of another type, each raises one of the errors that `Parameter.convert` expects.
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: operator.index(_number(value)),
    "float": lambda value: float(_number(value)),
    "number": _number,
    "bool": lambda value: {"true": True, "false": False}[str(value).lower()],
    "str": str.__str__,
    "list": lambda value: list.copy(_parsed(value)),
    "dict": lambda value: dict.copy(_parsed(value)),
}
