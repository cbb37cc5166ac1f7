"""Reads the signature of a function from its source, without running it, and converts values to its types."""

import ast
import re
from dataclasses import dataclass
from typing import Any

from kfp_distributed.trainers.programs.annotations import convert


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
        """Return a value, converted to the type of the parameter as far as JSON has this type.

        A tuple or set stays a list, and a path stays a text. An annotation that `annotations.convert` does not know
        accepts any value. Without an annotation, the type of the default applies, and an int as default allows any
        number.

        KFP passes numbers inside dicts and lists as floats. A whole number becomes an int again, at any depth, unless
        the annotation is float.

        Raises:
            ValueError: The value has another type. The message names the allowed type.
        """
        self.argument(value)  # It refuses more, such as a list that cannot become an item of a set.
        return self._convert(value, native=False)

    def argument(self, value: Any) -> Any:  # noqa: ANN401
        """Return a value as the function's argument: as `convert`, but with tuples, sets, paths and keys of dicts.

        Raises:
            ValueError: The value has another type. The message names the allowed type.
        """
        return self._convert(value, native=True)

    def _convert(self, value: Any, *, native: bool) -> Any:  # noqa: ANN401
        if value is None and not self.required and self.default is None:
            return None
        text = self.type or type(self.default).__name__.replace("int", "number")
        try:
            return convert(text, value, native=native)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            allowed = re.sub(r"^(?:\w+\.)*Literal\[([^]]*)\]$", r"one of \1", text.strip("'"))
            raise ValueError(f"{self.name} is {value!r:.200}; allowed is {allowed}") from None


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
