"""Kinds of values that the keys of a specification accept: a description for error messages and a parser. Pure.

KFP converts the number 2 inside a dict into 2.0, "2" or "2.0". All four are read as the same number.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fractions import Fraction
from numbers import Real
from typing import Any, NamedTuple

Pairs = tuple[tuple[str, Any], ...]
"""An immutable dict; `dict(pairs)` converts it back."""

_BYTES = {"": 1}
for _power, _unit in enumerate("kMGTPE", start=1):
    _BYTES |= {_unit: 1000**_power, f"{_unit.upper()}i": 1024**_power}

_DNS_NAME = r"(?![^/]{254})[a-z0-9]+((-+|\.)[a-z0-9]+)*"
_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


class Kind(NamedTuple):
    """A kind of value.

    Attributes:
        allowed: Description of the allowed values, for error messages and the reference.
        read: Converts a value to its typed form; raises ValueError for a value that is not allowed.
        types: Distribution types that the key of this kind belongs to; () outside of `DistributionSpecification`.
    """

    allowed: str
    read: Callable[[object], Any]
    types: tuple[str, ...] = ()


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


def read_keys(entries: Mapping[Any, object], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Parse the entries of a dict. Entries with the value None or "" are left out.

    Raises:
        ValueError: A key is unknown, or its value is not allowed.
    """
    for name, value in entries.items():
        if name not in kinds:
            raise ValueError(f"{shown(name)} = {shown(value)} is not a known key; {_suggestion(name, kinds)}")
    return {name: read_entry(name, kinds[name], value) for name, value in entries.items() if not is_blank(value)}


def _suggestion(name: object, known: Mapping[str, Kind]) -> str:
    word = shown(name).strip("'").lower()
    similar = [key for key in known if len(word) > 2 and word in key] or get_close_matches(word, known, 2)
    return f"did you mean {' or '.join(similar)}?" if similar else f"known keys: {', '.join(known)}"


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

    return Kind(allowed, read)


def _quantity(number: Fraction, scales: Mapping[str, int]) -> str:
    """Format a Kubernetes quantity such as "1536Mi": rounded up to an integer, in the largest unit that divides it."""
    size = math.ceil(number)
    scale, unit = max((scale, unit) for unit, scale in scales.items() if size % scale == 0)
    return f"{size // scale}{unit}"


def _integer(lowest: int, highest: int = 10_000) -> Kind:
    return _number(f"a whole number from {lowest} to {highest}", lowest, highest, {"": 1}, _whole)


def _whole(number: Fraction, _: object) -> int:
    if number.denominator > 1:
        raise ValueError
    return number.numerator


def _text(allowed: str, pattern: str) -> Kind:
    """Return a kind for strings that match the whole `pattern`."""

    def read(value: object) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return value
        raise ValueError

    return Kind(allowed, read)


def choice(*names: str) -> Kind:
    """Return a kind for an exact, case-sensitive name out of several."""
    return _text("one of " + ", ".join(names), "|".join(names))


def object_name(longest: int) -> Kind:
    """Return a kind for names of Kubernetes objects with at most `longest` characters."""
    allowed = f"the name of a Kubernetes object: at most {longest} characters out of a-z, 0-9, '-' and '.'"
    return _text(allowed, f"(?!.{{{longest + 1}}}){_DNS_NAME}")


def _from_json(value: object, expected_type: Any) -> Any:  # noqa: ANN401 - json.loads returns any type
    """Return a value, parsed if it is JSON text.

    Raises:
        ValueError: The text is not JSON, or the value does not have the expected type.
    """
    parsed = json.loads(value) if isinstance(value, str) else value
    if isinstance(parsed, expected_type):
        return parsed
    raise ValueError


def _read_labels(value: object) -> Pairs:
    labels = MAPPING.read(value).items()
    return tuple(sorted((read_entry("key", _LABEL_KEY, key), read_entry(key, _LABEL, label)) for key, label in labels))


def _read_toleration(value: object) -> Pairs:
    toleration = read_keys(MAPPING.read(value), _TOLERATION_KEYS)
    is_invalid = "value" in toleration if toleration.get("operator") == "Exists" else "key" not in toleration
    if is_invalid or ("tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute"):
        raise ValueError
    return tuple(sorted(toleration.items()))


def _read_volume(value: object) -> Pairs:
    volume = read_keys(MAPPING.read(value), _VOLUME_KEYS)
    is_complete = volume.keys() >= {"name", "path"}
    if not is_complete or ("size" not in volume and volume.keys() & {"access_mode", "storage_class"}):
        raise ValueError
    return tuple(sorted(volume.items()))


def _read_volumes(value: object) -> tuple[Pairs, ...]:
    volumes = tuple(map(_read_volume, _from_json(value, list | tuple)))
    if len({dict(volume)["path"] for volume in volumes}) < len(volumes):
        raise ValueError("two volumes have the same path")
    return volumes


_LABEL_KEY = _text("the key of a label", f"({_DNS_NAME}/)?{_NAME}")
_LABEL = _text("the value of a label: a string of at most 63 characters", f"({_NAME})?")
_TOLERATION_KEYS = {
    "key": _LABEL_KEY,
    "operator": choice("Equal", "Exists"),
    "value": _LABEL,
    "effect": choice("NoSchedule", "PreferNoSchedule", "NoExecute"),
    "tolerationSeconds": _integer(0, 2**31 - 1),
}

MAPPING = Kind("a dict, or the JSON text of one", lambda value: _from_json(value, Mapping))
COUNT, AT_LEAST_ONE = _integer(0), _integer(1)
BOOLEAN = Kind("true or false", lambda value: choice("false", "true").read(str(value).lower()) == "true")
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
SECONDS = _FINITE._replace(
    read=lambda value: None if value == "unlimited" else _FINITE.read(value),
)
LIMIT = Kind(f'{COUNT.allowed}, or "unlimited"', lambda value: None if value == "unlimited" else COUNT.read(value))
# A day is far longer than a program needs to end. A kubelet that shuts down its node waits much less.
GRACE = _number(
    'a whole number of seconds from 5 to 86400, such as 120 or "2m"',
    5,
    86_400,
    {"": 1, "s": 1, "m": 60, "h": 3600},
    _whole,
)
RESOURCE_NAME = _text('the name of an extended resource, such as "nvidia.com/gpu"', f"{_DNS_NAME}/{_NAME}")
NODE_LABELS = Kind("a dict of node labels with string keys and string values", _read_labels)
TOLERATIONS = Kind(
    "a list of tolerations, each with a key, or with operator Exists and no value; tolerationSeconds requires effect "
    "NoExecute",
    lambda value: tuple(map(_read_toleration, _from_json(value, list | tuple))),
)
_VOLUME_KEYS = {
    "name": object_name(253),
    "path": _text(
        "an absolute path without a trailing slash and outside of /kfp-distributed",
        r"(?!/kfp-distributed(/|$))(/[\w.-]*[\w-])+",
    ),
    "read_only": BOOLEAN,
    "size": MEMORY._replace(allowed='a size from 1Mi to 1Ei, such as "10Gi"'),
    "access_mode": choice("ReadWriteMany", "ReadWriteOnce"),
    "storage_class": object_name(253),
}
VOLUMES = Kind(
    "a list of volumes, each with name and path; access_mode and storage_class require size",
    _read_volumes,
)
