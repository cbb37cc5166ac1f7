"""Converts JSON values to the type that an annotation names as text, without importing anything that it names."""

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_INTEGER = re.compile(r"\s*[+-]?\d+\s*")

_MODULES = ("typing", "typing_extensions", "t", "collections.abc", "abc", "pathlib", "builtins")
"""Modules and their usual aliases whose names are known. `click.Path` is another type than `pathlib.Path`."""

_ALIASES = {
    **dict.fromkeys(("List", "Sequence", "MutableSequence", "Iterable", "Collection"), "list"),
    **dict.fromkeys(("Dict", "Mapping", "MutableMapping"), "dict"),
    **dict.fromkeys(("Set", "AbstractSet", "MutableSet"), "set"),
    "Tuple": "tuple",
    "FrozenSet": "frozenset",
    "PurePath": "Path",
    "PosixPath": "Path",
}

_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}


def convert(annotation: str, value: Any, *, native: bool) -> Any:  # noqa: ANN401  (any JSON value)
    """Return a value, converted to the type that an annotation names.

    Known are int, float, str, bool, None, list, tuple, set, frozenset, dict, Path, Literal, Optional, Union, Annotated
    and the abstract collections that a list or dict fits. Any other annotation accepts any value. Whole numbers become
    ints at any depth, unless the annotation is float.

    Args:
        annotation: Annotation as text, such as "tuple[int, ...] | None", or "number" for an int or float.
        value: JSON value. The text of a number, a bool, a list or a dict is parsed.
        native: Whether tuples, sets, paths and the keys of dicts get their own types. Else they stay JSON.

    Raises:
        ValueError, TypeError, KeyError, OverflowError, RecursionError: The value does not fit.
    """
    return _convert(_parse(annotation), value, native)


def whole_numbers(value: Any) -> Any:  # noqa: ANN401
    """Return a JSON value in which each float that is a 64-bit whole number is an int. 1e30 stays a float."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    if isinstance(value, Mapping):
        return {key: whole_numbers(item) for key, item in value.items()}
    return value


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return ast.Constant(...)


def _convert(node: ast.expr, value: Any, native: bool) -> Any:  # noqa: ANN401
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _convert(_parse(node.value), value, native)
    name, arguments = _name(node), _arguments(node)
    members = _members(node, name, arguments)
    if members:
        return _convert_union(members, value, native)
    if name == "Literal":
        return _convert_literal(node, arguments, value)
    if name == "Annotated" and arguments:
        return _convert(arguments[0], value, native)
    if name in _COLLECTIONS:
        return _convert_items(name, arguments, value, native)
    if name == "dict":
        return _convert_dict(arguments, value, native)
    if name == "Path":
        return Path(_SCALARS["str"](value)) if native else _SCALARS["str"](value)
    if name in _SCALARS:
        return _SCALARS[name](value)
    return value if "float" in ast.unparse(node) else whole_numbers(value)


def _name(node: ast.expr) -> str:
    """Return the name of a type without its arguments; "" if it is not known."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Constant) and node.value is None:
        return "None"
    module, _, name = ast.unparse(node).rpartition(".")
    return _ALIASES.get(name, name) if not module or module in _MODULES else ""


def _arguments(node: ast.expr) -> list[ast.expr]:
    """Return what is between the brackets of a type."""
    if not isinstance(node, ast.Subscript):
        return []
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _members(node: ast.expr, name: str, arguments: Sequence[ast.expr]) -> list[ast.expr]:
    """Return the types of a union; none if it is not one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [node.left, node.right]
    if name == "Optional" and arguments:
        return [*arguments, ast.Constant(None)]
    return list(arguments) if name == "Union" else []


def _convert_union(members: Sequence[ast.expr], value: Any, native: bool) -> Any:  # noqa: ANN401
    """Convert to the first type that has values like this in JSON, else to the first that the value converts to."""
    error: Exception = TypeError()
    for member in sorted(members, key=lambda member: not _is_like(member, value)):
        try:
            return _convert(member, value, native)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as caught:
            error = caught
    raise error


def _is_like(node: ast.expr, value: Any) -> bool:  # noqa: ANN401
    """Return whether JSON has values of a type as this one, so that nothing must be parsed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _is_like(_parse(node.value), value)
    name, arguments = _name(node), _arguments(node)
    if members := _members(node, name, arguments):
        return any(_is_like(member, value) for member in members)
    if name == "Literal":
        return any(isinstance(argument, ast.Constant) and value == argument.value for argument in arguments)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {
        "int": is_number and value == value // 1,
        "float": is_number,
        "str": isinstance(value, str),
        "Path": isinstance(value, str),
        "bool": isinstance(value, bool),
        "None": value is None,
        "dict": isinstance(value, Mapping),
        **dict.fromkeys(_COLLECTIONS, isinstance(value, list)),
    }.get(name, False)


def _convert_literal(node: ast.expr, arguments: Sequence[ast.expr], value: Any) -> Any:  # noqa: ANN401
    try:
        allowed = [ast.literal_eval(argument) for argument in arguments]
    except ValueError:  # A member of an enumeration, whose value its module has.
        return value
    for choice in allowed:
        if isinstance(choice, str | bool) or choice is None or isinstance(value, bool):
            if type(choice) is type(value) and choice == value:
                return choice
        elif choice == value:
            return choice
    for choice in allowed:
        if (
            isinstance(value, str)
            and isinstance(choice, bool | int)
            and _SCALARS[type(choice).__name__](value) == choice
        ):
            return choice
    raise ValueError(f"{value!r} is not in {ast.unparse(node)}")


def _convert_items(name: str, arguments: Sequence[ast.expr], value: Any, native: bool) -> Any:  # noqa: ANN401
    items = list.copy(_parsed(value))
    is_fixed = name == "tuple" and arguments and ast.unparse(arguments[-1]) != "..."
    if is_fixed:
        types = [] if ast.unparse(arguments[0]) == "()" else list(arguments)
        converted = [_convert(kind, item, native) for kind, item in zip(types, items, strict=True)]
    elif arguments:
        converted = [_convert(arguments[0], item, native) for item in items]
    else:
        converted = whole_numbers(items)
    return _COLLECTIONS[name](converted) if native else converted


def _convert_dict(arguments: Sequence[ast.expr], value: Any, native: bool) -> Any:  # noqa: ANN401
    entries = dict.copy(_parsed(value))
    if len(arguments) != 2:
        return whole_numbers(entries)
    converted = {}
    for key, item in entries.items():
        typed_key = _convert(arguments[0], key, native)
        # A key of JSON is a text.
        converted[typed_key if native else key] = _convert(arguments[1], item, native)
    if len(converted) < len(entries):  # "1" and "01" are one int. An entry would be lost.
        raise ValueError
    return converted


def _number(value: Any) -> Any:  # noqa: ANN401
    """Return a number or its text as an int if it is whole, else as a finite float. Large ints keep all digits."""
    if isinstance(value, str):
        value = int(value) if _INTEGER.fullmatch(value) else float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    return int(value) if value == int(value) else value


def _none(value: Any) -> None:  # noqa: ANN401
    if value is not None:
        raise TypeError


def _parsed(value: Any) -> Any:  # noqa: ANN401
    return json.loads(value) if isinstance(value, str) else value


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: operator.index(_number(value)),
    "float": lambda value: float(_number(value)),
    "number": _number,
    "bool": lambda value: {"true": True, "false": False}[str(value).lower()],
    "str": str.__str__,
    "None": _none,
}
"""Converters by type. For a value of another type, each raises one of the errors of `convert`."""
