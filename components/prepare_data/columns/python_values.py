"""Values of Arrow as Python objects, with the times that Python does not have (pure)."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import pyarrow as pa


def python_values(values: pa.Array, *, maps_are_dicts: bool = False) -> list[Any]:
    """Return values as Python objects, and texts in the place of times that Python does not have.

    These are nanoseconds, such as "2024-01-31 12:00:00.000000001", for which Arrow needs pandas. In a value with a year
    that is not from 1 to 9999, or a duration of more than 10**9 days, all times are texts.

    Args:
        values: Values of any type, also lists, structs and maps.
        maps_are_dicts: Whether a map is a dict, unless a key occurs twice in a map of the value. Default: it is a list
            of pairs.
    """
    maps: Literal["strict"] | None = "strict" if maps_are_dicts else None
    try:
        return _cast(values, lambda kind: pa.string() if getattr(kind, "unit", "") == "ns" else kind, maps)
    except (OverflowError, ValueError, KeyError):
        if len(values) == 1:
            with suppress(KeyError, *((ValueError,) if maps_are_dicts else ())):
                return _cast(values, lambda kind: pa.string(), maps)
            return python_values(values)
        # What one value becomes must not depend on the others of its batch.
        size = max(1, len(values) // 64)
        parts = (values[begin : begin + size] for begin in range(0, len(values), size))
        return [value for part in parts for value in python_values(part, maps_are_dicts=maps_are_dicts)]


def in_microseconds(values: pa.Array) -> pa.Array:
    """Return values whose times of nanoseconds are cut to microseconds, which Python has.

    Args:
        values: Values of any type, also lists, structs and maps.
    """
    kind = _with(_of_microseconds, values.type)
    return values if kind == values.type else values.cast(kind, safe=False)


def _of_microseconds(kind: pa.DataType) -> pa.DataType:
    if getattr(kind, "unit", "") != "ns":
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def exact_values(values: pa.Array) -> list[Any]:
    """Return values as Python objects, and integers in the place of all times, which Python may not have.

    Args:
        values: Values of any type, also lists, structs and maps.
    """
    return _cast(values, integers_of)


def integers_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of the integers that times of a type are."""
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _cast(
    values: pa.Array, other: Callable[[pa.DataType], pa.DataType], maps: Literal["strict"] | None = None
) -> list[Any]:
    kind = _with(other, values.type)
    return [*(values if kind == values.type else values.cast(kind)).to_pylist(maps_as_pydicts=maps)]


def _with(other: Callable[[pa.DataType], pa.DataType], kind: pa.DataType) -> pa.DataType:
    """Return a type with others in the place of those of times and durations."""
    types = pa.types
    if types.is_temporal(kind) and not types.is_interval(kind):
        return other(kind)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_with(other, field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_with(other, kind.key_type), _with(other, kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        entry = kind.value_field.with_type(_with(other, kind.value_type))
        if types.is_fixed_size_list(kind):
            return pa.list_(entry, kind.list_size)
        return pa.list_(entry) if types.is_list(kind) else pa.large_list(entry)
    return kind
