"""The kinds of value that the keys of a specification have: what is allowed, in words and as a function. Pure.

KFP turns the 2 of a dict into 2.0, "2" or "2.0" on its way, so all four are the same number here.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fractions import Fraction
from numbers import Real
from typing import Any, NamedTuple

# A dict that cannot change: `dict(pairs)` gives it back.
Pairs = tuple[tuple[str, Any], ...]

_BYTES = {"": 1}
for _power, _unit in enumerate("kMGTPE", start=1):
    _BYTES |= {_unit: 1000**_power, f"{_unit.upper()}i": 1024**_power}

_DNS_NAME = r"(?![^/]{254})[a-z0-9]+((-+|\.)[a-z0-9]+)*"
_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


class Kind(NamedTuple):
    """A kind of value: `allowed` in words, `read` to its typed form (or ValueError).

    Of a key of a specification, `types` are the types of job that it belongs to.
    """

    allowed: str
    read: Callable[[object], Any]
    types: tuple[str, ...] = ()


def shown(value: object) -> str:
    """`value` as an error shows it: one short line, whatever it is."""
    try:
        text = repr(value).replace("\n", " ")
    except (ValueError, RecursionError):  # an int of thousands of digits; a list in a list in a list ...
        text = f"<{type(value).__name__} too large to show>"
    return text if len(text) <= 60 else f"{text[:60]}..."


def is_blank(value: object) -> bool:
    """Whether a key with this value counts as not given: None or ""."""
    return isinstance(value, str | None) and not value


def read_entry(name: object, kind: Kind, value: object) -> Any:  # noqa: ANN401 - each kind has a type of its own
    """Reads the value of `name`; the ValueError names both and what is allowed."""
    try:
        return kind.read(value)
    except (ValueError, OverflowError, RecursionError) as error:
        because = f" ({error})" if str(error) else ""
        raise ValueError(f"{name} = {shown(value)} is not {kind.allowed}{because}") from None


def read_keys(given: Mapping[Any, object], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Reads the keys that are `given`, each as its kind; ValueError for the first that is unknown or wrong."""
    for name, value in given.items():
        if name not in kinds:
            raise ValueError(f"{shown(name)} = {shown(value)} is not a known key; {_similar(name, kinds)}")
    return {name: read_entry(name, kinds[name], value) for name, value in given.items() if not is_blank(value)}


def _similar(name: object, known: Mapping[str, Kind]) -> str:
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
    """Numbers such as 2, 2.0, "2", "2.0" and "2e0", with or without a suffix.

    A NumPy scalar is a number, a bool is none. The value is exact: a float counts as the decimal number that it prints
    as, so 0.1 is 1/10.

    Args:
        allowed: what is allowed, in words.
        lowest: the least value, zero or more.
        highest: the greatest.
        scales: what each suffix multiplies by, "" where there is none.
        typed: makes what the key has of the value and the scales.
    """

    def read(value: object) -> object:
        if isinstance(value, Real) and not isinstance(value, bool):
            value = repr(float(value))
        # Kubernetes' notation: no sign, a digit on both sides of the point, and an exponent or a suffix. float() and
        # int() would also take "1_000", "nan" and digits of other scripts.
        notation = r"(?ai)(\d{1,30}(?:\.\d{1,30})?(?:e[+-]?\d{1,3}\Z)?)([a-z]*)"
        match = re.fullmatch(notation, value.strip()) if isinstance(value, str) else None
        if match and match[2] in scales and lowest <= (number := Fraction(match[1]) * scales[match[2]]) <= highest:
            return typed(number, scales)
        raise ValueError

    return Kind(allowed, read)


def _quantity(number: Fraction, scales: Mapping[str, int]) -> str:
    """A Kubernetes quantity: a whole number, rounded up, of the largest unit that fits, as in "1536Mi"."""
    size = math.ceil(number)
    scale, unit = max((scale, unit) for unit, scale in scales.items() if size % scale == 0)
    return f"{size // scale}{unit}"


def _whole(lowest: int, highest: int = 10_000) -> Kind:
    def typed(number: Fraction, _: object) -> int:
        if number.denominator > 1:
            raise ValueError
        return number.numerator

    return _number(f"a whole number from {lowest} to {highest}", lowest, highest, {"": 1}, typed)


def _text(allowed: str, pattern: str) -> Kind:
    """Texts that match `pattern` as a whole."""

    def read(value: object) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return value
        raise ValueError

    return Kind(allowed, read)


def choice(*names: str) -> Kind:
    """One of a few names, written exactly so."""
    return _text("one of " + ", ".join(names), "|".join(names))


def object_name(longest: int) -> Kind:
    """Names of Kubernetes objects."""
    allowed = f"the name of a Kubernetes object: at most {longest} of a-z, 0-9, '-' and '.'"
    return _text(allowed, f"(?!.{{{longest + 1}}}){_DNS_NAME}")


def _from_json(value: object, form: Any) -> Any:  # noqa: ANN401 - what json.loads returns
    """`value` or, of a text, what it is the JSON of; ValueError unless that is an instance of `form`."""
    found = json.loads(value) if isinstance(value, str) else value
    if isinstance(found, form):
        return found
    raise ValueError


def _read_labels(value: object) -> Pairs:
    labels = MAPPING.read(value).items()
    return tuple(sorted((read_entry("key", _LABEL_KEY, key), read_entry(key, _LABEL, label)) for key, label in labels))


def _read_toleration(value: object) -> Pairs:
    read = read_keys(MAPPING.read(value), _TOLERATION_KEYS)
    unfit = "value" in read if read.get("operator") == "Exists" else "key" not in read
    if unfit or ("tolerationSeconds" in read and read.get("effect") != "NoExecute"):
        raise ValueError
    return tuple(sorted(read.items()))


def _read_volume(value: object) -> Pairs:
    read = read_keys(MAPPING.read(value), _VOLUME_KEYS)
    if not read.keys() >= {"name", "path"} or ("size" not in read and read.keys() & {"access_mode", "storage_class"}):
        raise ValueError
    return tuple(sorted(read.items()))


def _read_volumes(value: object) -> tuple[Pairs, ...]:
    read = tuple(map(_read_volume, _from_json(value, list | tuple)))
    if len({dict(each)["path"] for each in read}) < len(read):
        raise ValueError("two have the same path")
    return read


_LABEL_KEY = _text("a label's key", f"({_DNS_NAME}/)?{_NAME}")
_LABEL = _text("a label's value: text of at most 63 characters", f"({_NAME})?")
_TOLERATION_KEYS = {
    "key": _LABEL_KEY,
    "operator": choice("Equal", "Exists"),
    "value": _LABEL,
    "effect": choice("NoSchedule", "PreferNoSchedule", "NoExecute"),
    "tolerationSeconds": _whole(0, 2**31 - 1),
}

MAPPING = Kind("a dict, or the JSON text of one", lambda value: _from_json(value, Mapping))
COUNT, AT_LEAST_ONE = _whole(0), _whole(1)
TRUTH = Kind("true or false", lambda value: choice("false", "true").read(str(value).lower()) == "true")
# Kubernetes keeps thousandths of a CPU.
CPUS = _number(
    'a number of CPUs from 1m to 10000, such as 2, 0.5 or "500m"', 1, 10_000_000, {"m": 1, "": 1000}, _quantity
)
# Less than 1Mi is what somebody gets who leaves the unit away or writes "512m", thousandths of a byte.
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
RESOURCE_NAME = _text('the name of an extended resource, such as "nvidia.com/gpu"', f"{_DNS_NAME}/{_NAME}")
NODE_LABELS = Kind("a dict of node labels, keys and values as text", _read_labels)
TOLERATIONS = Kind(
    "a list of tolerations: a key, or operator Exists and no value; tolerationSeconds with effect NoExecute alone",
    lambda value: tuple(map(_read_toleration, _from_json(value, list | tuple))),
)
_VOLUME_KEYS = {
    "name": object_name(253),
    "path": _text(
        "an absolute path, without a slash at its end, outside /kfp-distributed",
        r"(?!/kfp-distributed(/|$))(/[\w.-]*[\w-])+",
    ),
    "read_only": TRUTH,
    "size": MEMORY._replace(allowed='a size from 1Mi to 1Ei, such as "10Gi"'),
    "access_mode": choice("ReadWriteMany", "ReadWriteOnce"),
    "storage_class": object_name(253),
}
VOLUMES = Kind(
    "a list of volumes, each with name and path; access_mode and storage_class with size alone",
    _read_volumes,
)
