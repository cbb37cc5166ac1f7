"""Lists that are written as JSON texts (pure)."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

_EXAMPLES: Mapping[pa.DataType, str] = {
    pa.float32(): "list of numbers of up to 3.4e38, such as [1, 2.5]",
    pa.int64(): "list of whole numbers of 64 bits, such as [1, 2]",
    pa.string(): 'list of texts, such as ["a", "b"]',
}
# From here on, floats do not have all whole numbers: the value may have lost digits that its text has.
_WHOLE_FLOATS = 2**53


def list_of_text(text: str, kind: pa.DataType) -> list[Any]:
    """Return the list that a JSON text is.

    Args:
        text: The text.
        kind: Type of the entries. Floats are rounded to it. Other entries that it does not hold are refused: Arrow
            would cut the fractions of integers, and take the characters of a text for entries.

    Raises:
        ValueError: The text is no list of this type. The message is what to say about the text, and what to do.
    """
    try:
        entries = json.loads(text, parse_int=partial(_whole_number, kind))
        if entries is None or not _fits(entries, pa.list_(kind)):
            raise ValueError
        return [*pa.array(entries, kind).to_pylist()]
    except (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException):
        what = _EXAMPLES.get(kind, f"list of {kind}")
        raise ValueError(f"is {text[:40]!r}, which is no {what}: correct it, or leave it empty") from None


def entry_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the entries of lists, also of lists in lists, and other types as they are."""
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _whole_number(kind: pa.DataType, digits: str) -> float:
    """Return a float for a type of floats that holds the number, or that is known to round, as those of list<float>."""
    whole, entry = int(digits), entry_type(kind)
    if not pa.types.is_floating(entry):
        return whole
    number = float(whole)
    may_round = kind in (pa.float16(), pa.float32())
    return number if may_round or int(np.array(number).astype(entry.to_pandas_dtype())) == whole else whole


def _fits(entry: object, kind: pa.DataType) -> bool:
    """Return whether an entry is missing or a value of a type."""
    types = pa.types
    if entry is None:
        return True
    if types.is_list(kind):
        return isinstance(entry, list) and all(_fits(value, kind.value_type) for value in entry)
    if types.is_string(kind):
        return isinstance(entry, str)
    if isinstance(entry, bool):
        return bool(types.is_boolean(kind))
    if types.is_floating(kind):  # NaN and Infinity, which JSON does not have, fit no float.
        return isinstance(entry, float) and abs(entry) <= float(np.finfo(kind.to_pandas_dtype()).max)
    if types.is_integer(kind) and isinstance(entry, float):
        return entry.is_integer() and abs(entry) < _WHOLE_FLOATS
    return True
