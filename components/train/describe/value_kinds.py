"""Kinds of values that the keys of a specification accept: a description for error messages and a parser. Pure.

KFP converts the number 2 inside a dict into 2.0, "2" or "2.0". All four are read as the same number.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from numbers import Real
from typing import Any, NamedTuple

Schema = Mapping[str, Any]
"""A JSON Schema (draft 2020-12)."""

Pairs = tuple[tuple[str, Any], ...]
"""An immutable dict; `dict(pairs)` converts it back."""

_BYTES = {"": 1}
for _power, _unit in enumerate("kMGTPE", start=1):
    _BYTES |= {_unit: 1000**_power, f"{_unit.upper()}i": 1024**_power}

DNS_NAME = r"(?![^/]{254})[a-z0-9]+((-+|\.)[a-z0-9]+)*"
NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


class Kind(NamedTuple):
    """A kind of value.

    Attributes:
        allowed: Description of the allowed values, for error messages and the reference.
        read: Converts a value to its typed form; raises ValueError for a value that is not allowed.
        schema: JSON Schema that accepts all allowed values. It also accepts texts of numbers that are not allowed.
    """

    allowed: str
    read: Callable[[object], Any]
    schema: Schema


def shown(value: object) -> str:
    """Return the representation of a value for an error message: one line of limited length."""
    try:
        text = repr(value).replace("\n", " ")
    except (ValueError, RecursionError):  # An integer with thousands of digits, or a deeply nested list.
        text = f"<{type(value).__name__} too large to show>"
    return text if len(text) <= 60 else f"{text[:60]}..."


def is_blank(value: object) -> bool:
    """Return whether a value means that its key is not set: None or ""."""
    return isinstance(value, str | None) and not value


def read_entry(name: object, kind: Kind, value: object) -> Any:  # noqa: ANN401 - the type depends on the kind
    """Parse the value of a key.

    Raises:
        ValueError: The value is not allowed. The message names the key, the value and what is allowed.
    """
    try:
        return kind.read(value)
    except (ValueError, OverflowError, RecursionError) as error:
        detail = f" ({error})" if str(error) else ""
        raise ValueError(f"{name} = {shown(value)} is not {kind.allowed}{detail}") from None


def _number(
    allowed: str,
    lowest: Fraction | int,
    highest: int,
    scales: Mapping[str, int],
    typed: Callable[[Fraction, Mapping[str, int]], object],
) -> Kind:
    """Return a kind for numbers such as 2, 2.0, "2", "2.0" and "2e0", with or without a suffix.

    NumPy scalars are accepted; bools are not. The value is exact: a float is read as the decimal number that it prints
    as, so 0.1 is 1/10.

    Args:
        allowed: Description of the allowed values.
        lowest: Minimum, zero or more.
        highest: Maximum.
        scales: Factor of each suffix; the key "" is for a number without a suffix.
        typed: Converts the number and the scales to the value of the key.
    """

    def read(value: object) -> object:
        if isinstance(value, Real) and not isinstance(value, bool):
            value = repr(float(value))
        # The notation of Kubernetes: no sign, a digit on both sides of the point, and an exponent or a suffix. float()
        # and int() would also accept "1_000", "nan" and digits of other scripts.
        notation = r"(?ai)(\d{1,30}(?:\.\d{1,30})?(?:e[+-]?\d{1,3}\Z)?)([a-z]*)"
        match = re.fullmatch(notation, value.strip()) if isinstance(value, str) else None
        if match and match[2] in scales and lowest <= (number := Fraction(match[1]) * scales[match[2]]) <= highest:
            return typed(number, scales)
        raise ValueError

    texts = rf"^\s*\d{{1,30}}(\.\d{{1,30}})?([eE][+-]?\d{{1,3}}|{'|'.join(scales)})?\s*$"
    scale = scales[""]
    bounds = {"minimum": float(lowest / scale), "maximum": highest // scale}
    return Kind(allowed, read, {"anyOf": [{"type": "number", **bounds}, {"type": "string", "pattern": texts}]})


def _quantity(number: Fraction, scales: Mapping[str, int]) -> str:
    """Format a Kubernetes quantity such as "1536Mi": rounded up to an integer, in the largest unit that divides it."""
    size = math.ceil(number)
    scale, unit = max((scale, unit) for unit, scale in scales.items() if size % scale == 0)
    return f"{size // scale}{unit}"


def bytes_of(quantity: str) -> int:
    """Return the bytes of a canonical quantity of memory, such as "1536Mi"."""
    number = quantity.rstrip("kKMGTPEi")
    return int(number) * _BYTES[quantity[len(number) :]]


def integer(lowest: int, highest: int = 10_000) -> Kind:
    """Return a kind for whole numbers."""
    return _whole_numbers(_number(f"a whole number from {lowest} to {highest}", lowest, highest, {"": 1}, _whole))


def _whole_numbers(kind: Kind) -> Kind:
    number, texts = kind.schema["anyOf"]
    whole = {"type": "integer", "minimum": int(number["minimum"]), "maximum": number["maximum"]}
    return kind._replace(schema={"anyOf": [whole, texts]})


def _whole(number: Fraction, _: object) -> int:
    if number.denominator > 1:
        raise ValueError
    return number.numerator


def text(allowed: str, pattern: str) -> Kind:
    """Return a kind for strings that match the whole `pattern`."""

    def read(value: object) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return value
        raise ValueError

    return Kind(allowed, read, {"type": "string", "pattern": f"^({pattern})$"})


def choice(*names: str) -> Kind:
    """Return a kind for an exact, case-sensitive name out of several."""
    return text("one of " + ", ".join(names), "|".join(names))._replace(schema={"enum": [*names]})


def object_name(longest: int) -> Kind:
    """Return a kind for names of Kubernetes objects with at most `longest` characters."""
    allowed = f"the name of a Kubernetes object: at most {longest} characters out of a-z, 0-9, '-' and '.'"
    return text(allowed, f"(?!.{{{longest + 1}}}){DNS_NAME}")


def from_json(value: object, expected_type: Any) -> Any:  # noqa: ANN401 - json.loads returns any type
    """Return a value, parsed if it is JSON text.

    Raises:
        ValueError: The text is not JSON, or the value does not have the expected type.
    """
    parsed = json.loads(value) if isinstance(value, str) else value
    if isinstance(parsed, expected_type):
        return parsed
    raise ValueError


MAPPING = Kind(
    "a dict, or the JSON text of one",
    lambda value: from_json(value, Mapping),
    {"anyOf": [{"type": "object"}, {"type": "string"}]},
)
COUNT, AT_LEAST_ONE = integer(0), integer(1)
FRACTION = _number("a number from 0 to 1", 0, 1, {"": 1}, lambda number, _: float(number))
BOOLEAN = Kind(
    "true or false",
    lambda value: choice("false", "true").read(str(value).lower()) == "true",
    {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])$"}]},
)
# Kubernetes stores thousandths of a CPU.
CPUS = _number(
    'a number of CPUs from 1m to 10000, such as 2, 0.5 or "500m"', 1, 10_000_000, {"m": 1, "": 1000}, _quantity
)
# A value below 1Mi is a mistake: a missing unit, or "512m", which is thousandths of a byte.
MEMORY = _number('an amount of memory from 1Mi to 1Ei, such as "512Mi", "4Gi" or "4G"', 2**20, 2**60, _BYTES, _quantity)
_FINITE = _number(
    'a time from 0.1 seconds to 366 days, such as 90, "10m" or "2h", or "unlimited"',
    Fraction("0.1"),
    366 * 24 * 3600,
    {"": 1, "s": 1, "m": 60, "h": 3600},
    lambda number, _: float(number),
)
_UNLIMITED = {"const": "unlimited"}
SECONDS = Kind(
    _FINITE.allowed,
    lambda value: None if value == "unlimited" else _FINITE.read(value),
    {"anyOf": [*_FINITE.schema["anyOf"], _UNLIMITED]},
)
LIMIT = Kind(
    f'{COUNT.allowed}, or "unlimited"',
    lambda value: None if value == "unlimited" else COUNT.read(value),
    {"anyOf": [*COUNT.schema["anyOf"], _UNLIMITED]},
)
# A day is far longer than a program needs to end. A kubelet that shuts down its node waits much less.
GRACE = _whole_numbers(
    _number(
        'a whole number of seconds from 5 to 86400, such as 120 or "2m"',
        5,
        86_400,
        {"": 1, "s": 1, "m": 60, "h": 3600},
        _whole,
    )
)
NODE_LABEL = text('the key of a node label, such as "topology.kubernetes.io/zone"', f"({DNS_NAME}/)?{NAME}")
RESOURCE_NAME = text('the name of an extended resource, such as "nvidia.com/gpu"', f"{DNS_NAME}/{NAME}")
