"""Dates and times of a column as numbers (pure)."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_DATE = r"^\s*\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d{1,9})?)?(Z|[+-]\d{2}:\d{2})?)?\s*$"
_MICROSECONDS_OF_A_DAY = 86_400 * 10**6


def are_dates(texts: pa.StringArray) -> bool:
    """Return whether all texts are dates, or dates and times, of the form 2024-01-31 or 2024-01-31T12:00:00Z."""
    return len(texts) > 0 and bool(pc.all(pc.match_substring_regex(texts, _DATE)).as_py())


def microseconds(values: pa.Array) -> tuple[pa.Int64Array, NDArray[np.intp]]:
    """Return the microseconds from 1970-01-01 to each date or time. One without a time zone is in UTC.

    Args:
        values: Dates, times or their texts in ISO 8601. Null is missing.

    Returns:
        The microseconds, null where a value is missing or no date; and the rows whose values are no dates.
    """
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        # A cast from a time of day to a time fails, and one from nanoseconds may lose digits.
        return values.cast(pa.timestamp("us", getattr(values.type, "tz", None)), safe=False).cast(pa.int64()), _NONE
    texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
    try:
        return texts.cast(pa.timestamp("us")).cast(pa.int64()), _NONE
    except pa.ArrowInvalid:  # A time zone, or no date.
        distinct = texts.dictionary_encode()
        numbers = pa.array([_microseconds(text) for text in distinct.dictionary.to_pylist()], pa.int64())
        result = numbers.take(distinct.indices)
        return result, np.flatnonzero((result.is_null().to_numpy(False)) & ~texts.is_null().to_numpy(False))


def days(microseconds: pa.Int64Array) -> pa.DoubleArray:
    """Return days for microseconds."""
    return pc.divide(microseconds.cast(pa.float64(), safe=False), float(_MICROSECONDS_OF_A_DAY))


_NONE = np.empty(0, np.intp)


def _microseconds(text: str) -> int | None:
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    difference = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (difference.days * 86_400 + difference.seconds) * 10**6 + difference.microseconds
