"""Times of the column that decides about the split, as integers in the order of the times (pure)."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.column_kinds import plain_type

DATES = pa.timestamp("us")
"""Stands for dates, times and their texts, which are compared in microseconds."""
_NANOSECONDS = pa.timestamp("ns")
_LOWEST = np.int64(-(2**63))


def time_type(types: Iterable[pa.DataType]) -> pa.DataType:
    """Return the type in which times are compared exactly: int64, uint64, float64, nanoseconds, or DATES.

    Numbers of which some are integers and others are not, or signed and unsigned ones, are compared as float64.

    Args:
        types: Types of the column in all files.
    """
    kinds = {plain_type(kind) for kind in types} - {pa.null()}
    if kinds and all(pa.types.is_timestamp(kind) and kind.unit == "ns" for kind in kinds):
        return _NANOSECONDS
    if not kinds or not all(map(is_number, kinds)):
        return DATES
    if kinds == {pa.uint64()}:
        return pa.uint64()
    are_signed = all(pa.types.is_integer(kind) and kind != pa.uint64() for kind in kinds)
    return pa.int64() if are_signed else pa.float64()


def time_type_of_sources(name: str, types: Mapping[str, pa.DataType]) -> pa.DataType:
    """Return the type in which the times of several sources are compared.

    Args:
        name: Name of the column.
        types: What `time_type` returns, by the name of the parameter that has the source.

    Raises:
        ValueError: Some sources have numbers, and others dates or texts, which have no common order.
    """
    numbers = [source for source, kind in types.items() if is_number(kind)]
    dates = [source for source in types if source not in numbers]
    if numbers and dates:
        raise ValueError(
            f"time_column {name!r} has numbers in {' and '.join(numbers)}, but dates or texts in "
            f"{' and '.join(dates)}: write the times of all sources in one way, as numbers or as dates such as "
            "2024-01-31, or leave time_column out of split"
        )
    return time_type(types.values())


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is one of numbers: integers, floats or decimals."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def time_keys(values: pa.Array, kind: pa.DataType) -> pa.Int64Array:
    """Return integers in the order of some times. NaN is missing.

    Args:
        values: The times.
        kind: A type that `time_type` returns, but DATES.
    """
    if kind == pa.float64():
        # The order of the numbers is that of the integers with the same bits; of negative ones it is reversed. An
        # unsafe cast rounds integers of more than 53 bits: files may have integers and floats of one column.
        numbers = values.cast(kind, safe=False)
        bits = np.nan_to_num(numbers.to_numpy(zero_copy_only=False)).view(np.int64)
        return pc.if_else(numbers.is_null(nan_is_null=True), None, pa.array(_turned(bits)))
    if kind == pa.uint64():
        bits = values.cast(kind).fill_null(0).to_numpy(zero_copy_only=False).view(np.int64)
        return pc.if_else(values.is_null(), None, pa.array(bits ^ _LOWEST))
    return values.cast(pa.int64())


def _turned(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bits of floats as integers in their order, or the bits of such integers."""
    return np.where(bits < 0, _LOWEST - bits, bits)


def time_numbers(keys: NDArray[np.int64], kind: pa.DataType) -> NDArray[Any]:
    """Return the numbers of integers of `time_keys`.

    Args:
        keys: The integers.
        kind: A type of numbers that `time_type` returns.
    """
    if kind == pa.float64():
        return _turned(keys).view(np.float64)
    return (keys ^ _LOWEST).view(np.uint64) if kind == pa.uint64() else keys


def time_text(key: int, kind: pa.DataType) -> str:
    """Return the time of an integer of `time_keys`, or of microseconds for DATES, as a text."""
    if pa.types.is_timestamp(kind):
        microseconds = key // 1000 if kind == _NANOSECONDS else key
        try:
            return str(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds))
        except OverflowError:  # Python has the years from 1 to 9999.
            return f"{microseconds} microseconds after 1970-01-01"
    (number,) = time_numbers(np.array([key]), kind)
    return f"{number:g}" if kind == pa.float64() else str(number)
