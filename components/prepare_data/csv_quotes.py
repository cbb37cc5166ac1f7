"""Finds where the rows of CSV text end: a line end within quotes ends none, unless a quote is not closed (pure)."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# So many lines tell how many separators a row has.
_COUNTED_LINES = 1000


def last_row_end(data: bytes, separator: str = ",") -> int:
    """Return the end of the last whole row of a text that begins with a row; 0 if there is none.

    A line end within quotes ends no row.
    """
    end = data.rfind(b"\n") + 1
    quotes = _quotes(data, separator) if b'"' in data else np.empty(0, np.int64)
    while end and (before := int(np.searchsorted(quotes, end))) % 2:
        end = data.rfind(b"\n", 0, int(quotes[before - 1])) + 1
    return end


def first_row_end(data: bytes, separator: str = ",") -> int:
    """Return the end of the first row of a text; its length if it has one row only."""
    end = data.find(b"\n") + 1
    quotes = _quotes(data, separator) if b'"' in data[:end] else np.empty(0, np.int64)
    while end and (before := int(np.searchsorted(quotes, end))) % 2:
        end = data.find(b"\n", int(quotes[before])) + 1 if before < len(quotes) else 0
    return end or len(data)


def check_quotes(data: bytes, separator: str, first: int) -> list[tuple[int, int]]:
    """Check that no quote swallows rows because it is not closed.

    Args:
        data: Whole rows.
        separator: Character between the columns.
        first: Number of the first row.

    Returns:
        The positions of the quotes around each value of several lines.

    Raises:
        ValueError: A value of several lines ends with a quote that no separator and no line end follows, or does not
            end. How many rows it has taken is not known.
    """
    text = data.rstrip(b"\r\n")
    values = _values_of_lines(text, separator)
    for begin, end in values:
        following = text[end + 1 : end + 100].lstrip(b" ")[:1]
        if end == len(text) or following not in (b"", b"\r", b"\n", separator.encode()):
            quotes, line_ends = _quotes(text, separator), _line_ends(text)
            ends_of_rows = line_ends[np.searchsorted(quotes, line_ends) % 2 == 0]
            row = first + int(np.searchsorted(ends_of_rows, begin))
            shown = text[begin : begin + 40].decode(errors="replace")
            raise ValueError(f"row {row} has a value of several lines, {shown!r}, whose quote is not closed: close it")
    return values


def rows_in_quotes(data: bytes, separator: str, values: Sequence[tuple[int, int]]) -> str:
    """Return the beginning of a quoted value whose lines look like rows, as if its quote were open; "" for none.

    Args:
        data: Whole rows.
        separator: Character between the columns.
        values: Positions of the quotes around each value of several lines.
    """
    if not values:
        return ""
    counts = Counter(line.count(separator.encode()) for line in data.split(b"\n", _COUNTED_LINES)[:_COUNTED_LINES])
    separators = counts.most_common(1)[0][0]
    for begin, end in values:
        lines = data[begin:end].split(b"\n")[1:-1]
        if separators and lines and all(line.count(separator.encode()) == separators for line in lines):
            return data[begin : begin + 40].decode(errors="replace")
    return ""


def _values_of_lines(text: bytes, separator: str) -> list[tuple[int, int]]:
    """Return the positions of the quotes around each value of several lines. That of the end may be the text's."""
    quotes, line_ends = _quotes(text, separator), _line_ends(text)
    opens, closes = quotes[0::2], quotes[1::2]
    # A quote that opens right after one that closes is doubled: the value goes on.
    begins = np.flatnonzero(np.concatenate([[True], opens[1:] != closes[: len(opens) - 1] + 1])[: len(opens)])
    ends = np.append(closes, len(text))[np.append(begins[1:], len(opens)) - 1]
    has_lines = np.searchsorted(line_ends, ends) > np.searchsorted(line_ends, opens[begins])
    return [*zip(opens[begins][has_lines].tolist(), ends[has_lines].tolist(), strict=True)]


def _line_ends(text: bytes) -> NDArray[np.intp]:
    return np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))


def _quotes(data: bytes, separator: str) -> NDArray[np.int64]:
    """Return the positions of the quotes that begin and end quoted values, and of the doubled ones within them.

    A quote inside of a value that does not begin with one, such as 5" nail, is none of them.
    """
    positions = np.flatnonzero(np.frombuffer(data, np.uint8) == ord('"'))
    opens = np.zeros(256, np.bool_)
    opens[[*f"{separator}\r\n".encode()]] = True
    is_first = opens[np.frombuffer(b"\n" + data, np.uint8)[positions]]
    is_adjacent = np.diff(positions, prepend=-2) == 1
    # Without stray quotes, every other one begins a value, or doubles the one before.
    stray = [np.flatnonzero(~(is_first | is_adjacent)[start::2]) * 2 + start for start in (0, 1)]
    is_stray, index = np.zeros(len(positions), np.bool_), 0
    while True:
        candidates = stray[index % 2]
        found = int(np.searchsorted(candidates, index))
        if found == len(candidates):
            return positions[~is_stray]
        index = int(candidates[found])
        is_stray[index] = True
        index += 1
        while index < len(positions) and is_adjacent[index]:
            is_stray[index] = True
            index += 1
