"""Values of Arrow as Python objects, with nanoseconds, for which Arrow needs pandas (pure)."""

from typing import Any

import pyarrow as pa


def python_values(values: pa.Array, nanoseconds: pa.DataType | None = None) -> list[Any]:
    """Return values as Python objects. Times and durations of nanoseconds, which Python does not have, are changed.

    Args:
        values: Values of any type, also lists, structs and maps.
        nanoseconds: Type in which nanoseconds are returned: strings or int64. Default: strings, such as
            "2024-01-31 12:00:00.000000001".
    """
    kind = _with(nanoseconds or pa.string(), values.type)
    return [*(values if kind == values.type else values.cast(kind)).to_pylist()]


def _with(other: pa.DataType, kind: pa.DataType) -> pa.DataType:
    """Return a type with another one in the place of nanoseconds."""
    types = pa.types
    if types.is_temporal(kind) and getattr(kind, "unit", "") == "ns":
        return other
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
