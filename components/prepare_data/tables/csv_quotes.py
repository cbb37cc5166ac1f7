"""Finds where rows and values of CSV text end: a line end within quotes ends none, unless a quote is open (pure)."""

import re
from collections import Counter
from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.spelled_values import NUMBER
from kfp_distributed.components.prepare_data.csv_format import COMMAS, Separation

# So many lines tell what a row looks like.
_COUNTED_LINES = 1000
# So many lines of text may each have as many separators as a row by chance.
_CHANCE_LINES = 2
_BLANK, _TAB = b" \t"


def last_row_end(data: bytes, separation: Separation = COMMAS) -> int:
    """Return the end of the last whole row of a text that begins with a row; 0 if there is none.

    A line end within quotes ends no row.
    """
    end = data.rfind(b"\n") + 1
    quotes = _quotes(data, separation) if b'"' in data else np.empty(0, np.int64)
    while end and (before := int(np.searchsorted(quotes, end))) % 2:
        end = data.rfind(b"\n", 0, int(quotes[before - 1])) + 1
    return end


def first_row_end(data: bytes, separation: Separation = COMMAS) -> int:
    """Return the end of the first row of a text; its length if it has one row only."""
    end = data.find(b"\n") + 1
    quotes = _quotes(data, separation) if b'"' in data[:end] else np.empty(0, np.int64)
    while end and (before := int(np.searchsorted(quotes, end))) % 2:
        end = data.find(b"\n", int(quotes[before])) + 1 if before < len(quotes) else 0
    return end or len(data)


def check_quotes(data: bytes, separation: Separation, first: int) -> list[tuple[int, int]]:
    """Check that no quote swallows rows because it is not closed.

    Args:
        data: Whole rows.
        separation: What separates their values.
        first: Number of the first row.

    Returns:
        The positions of the quotes around each value of several lines.

    Raises:
        ValueError: A value of several lines ends with a quote that no separator and no line end follows, or does not
            end. How many rows it has taken is not known.
    """
    text = data.rstrip(b"\r\n")
    values = _values_of_lines(text, separation)
    for begin, end in values:
        following = text[end + 1 : end + 100].lstrip(b" ")[:1]
        if end == len(text) or following not in b"\r\n" + separation.separator.encode():
            quotes, line_ends = _quotes(text, separation), _line_ends(text)
            ends_of_rows = line_ends[np.searchsorted(quotes, line_ends) % 2 == 0]
            row = first + int(np.searchsorted(ends_of_rows, begin))
            shown = text[begin : begin + 40].decode(errors="replace")
            raise ValueError(f"row {row} has a value of several lines, {shown!r}, whose quote is not closed: close it")
    return values


def rows_in_quotes(data: bytes, separator: str, values: Sequence[tuple[int, int]]) -> str:
    """Return the beginning of a quoted value whose lines look like rows, as if its quote were open; "" for none.

    They have as many separators as most rows, and the numbers and frequent texts of a column where most rows have some.
    Its first and last line, with the values around it, must look so, too. Within it, one line with numbers or more than
    two others are enough.

    Args:
        data: Whole rows.
        separator: Character between the columns.
        values: Positions of the quotes around each value of several lines.
    """
    if not values:
        return ""
    first = [_cells(line, separator) for line in data.split(b"\n", _COUNTED_LINES)[:_COUNTED_LINES]]
    columns = Counter(map(len, first)).most_common(1)[0][0]
    rows = [row for row in first if len(row) == columns]
    counts = [sum(map(_is_number, cells)) for cells in zip(*rows, strict=True)]
    numbers = [column for column, count in enumerate(counts) if 2 * count > len(rows)]
    frequent = {
        column: texts for column, cells in enumerate(zip(*rows, strict=True)) if (texts := _frequent(cells)) is not None
    }

    def is_row(cells: Sequence[bytes]) -> bool:
        return len(cells) == columns and all(_is_number(cells[column]) for column in numbers)

    for begin, end in values if columns > 1 else ():
        row_end = data.find(b"\n", end)
        text = data[data.rfind(b"\n", 0, begin) + 1 : row_end if row_end >= 0 else len(data)]
        own, *lines = (_cells(line, separator) for line in text.split(b"\n"))
        has_rows = len(lines) - 1 > (0 if numbers else _CHANCE_LINES) and all(map(is_row, lines[:-1]))
        are_rows = len(own) == columns and all(
            is_row(cells) and (numbers or not frequent or any(cells[column] in frequent[column] for column in frequent))
            for cells in lines
        )
        # In two columns of different texts, a comma in the last line says nothing.
        if has_rows or (are_rows and (numbers or frequent or max(columns - 1, len(lines)) > 1)):
            return data[begin : begin + 40].decode(errors="replace")
    return ""


def _cells(line: bytes, separator: str) -> list[bytes]:
    """Return the values of a line, without quotes and blanks around them."""
    sign = separator.encode()
    if b'"' in line:  # Separators within quotes separate nothing.
        line = re.sub(rb'"[^"]*"', lambda value: value[0].replace(sign, b""), line)
    return [cell.strip(b'" \t\r') for cell in line.split(sign)]


def _frequent(cells: Sequence[bytes]) -> Set[bytes] | None:
    """Return the texts that occur again, if most rows of a column have one; None for other columns and numbers."""
    counts = Counter(cells)
    texts = {text for text, count in counts.items() if count > 1}
    is_usual = 2 * sum(counts[text] for text in texts) > len(cells) and 2 * len(texts) <= len(cells)
    return texts if is_usual and not any(map(_is_number, texts)) else None


def without_blanks(rows: bytes, separation: Separation) -> bytes:
    """Return rows in which no blanks are around values, or separate them. Those within quotes stay."""
    if not separation.blanks:
        return rows
    text = np.frombuffer(rows, np.uint8)
    begins, ends = _runs((text == _BLANK) | ((text == _TAB) & (separation.blanks == "separate")))
    is_outside = np.searchsorted(_quotes(rows, separation), begins) % 2 == 0
    begins, ends = begins[is_outside], ends[is_outside]
    edges = _bytes_of("\r\n" if separation.blanks == "separate" else f"{separation.separator}\r\n")
    is_edge = np.concatenate([[True], edges[text], [True]])
    at_edge = is_edge[begins] | is_edge[ends + 1]
    changes = np.zeros(len(text) + 1, np.int8)
    if separation.blanks == "separate":
        text = text.copy()
        text[begins[~at_edge]] = ord(separation.separator)
        begins = begins + ~at_edge
    else:
        begins, ends = begins[at_edge], ends[at_edge]
    changes[begins] += 1
    changes[ends] -= 1
    kept: bytes = text[np.cumsum(changes[:-1], dtype=np.int8) == 0].tobytes()
    return kept


def _is_number(cell: bytes) -> bool:
    return re.fullmatch(_NUMBER_CELL, cell) is not None


_NUMBER_CELL = rf'\s*"?\s*{NUMBER.replace("(?i:inf(inity)?)", "inf")}\s*"?\s*'.encode()


def _values_of_lines(text: bytes, separation: Separation) -> list[tuple[int, int]]:
    """Return the positions of the quotes around each value of several lines. That of the end may be the text's."""
    quotes, line_ends = _quotes(text, separation), _line_ends(text)
    opens, closes = quotes[0::2], quotes[1::2]
    # A quote that opens right after one that closes is doubled: the value goes on.
    begins = np.flatnonzero(np.concatenate([[True], opens[1:] != closes[: len(opens) - 1] + 1])[: len(opens)])
    ends = np.append(closes, len(text))[np.append(begins[1:], len(opens)) - 1]
    has_lines = np.searchsorted(line_ends, ends) > np.searchsorted(line_ends, opens[begins])
    return [*zip(opens[begins][has_lines].tolist(), ends[has_lines].tolist(), strict=True)]


def _line_ends(text: bytes) -> NDArray[np.intp]:
    return np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))


def _runs(are: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where each run of true elements begins, and where it has ended."""
    edges = np.flatnonzero(np.diff(are, prepend=False, append=False))
    return edges[0::2], edges[1::2]


def _bytes_of(characters: str) -> NDArray[np.bool_]:
    """Return for each byte whether it is one of some characters."""
    found = np.zeros(256, np.bool_)
    found[[*characters.encode()]] = True
    return found


# Before a quote, the text is outside of quotes (0), within them (1), or right after those of a value (2). What a quote
# does to each of these states is a number of three digits to the base 3: it begins a value, or is none unless it ends
# a value, or doubles the quote before it.
_BEGINS, _STRAY, _DOUBLES = 1 + 3 * 2 + 9 * 1, 3 * 2, 3 * 2 + 9 * 1
_STATES = np.stack([np.arange(27) // 3**state % 3 for state in range(3)], 1)
# [first, second]: what two quotes do.
_BOTH = (_STATES[np.arange(27)[None, :, None], _STATES[:, None, :]] * [1, 3, 9]).sum(2).astype(np.uint8)


def _quotes(data: bytes, separation: Separation) -> NDArray[np.int64]:
    """Return the positions of the quotes that begin and end quoted values, and of the doubled ones within them.

    A quote inside of a value that does not begin with one, such as 5" nail, is none of them.
    """
    text = np.frombuffer(data, np.uint8)
    positions = np.flatnonzero(text == ord('"'))
    before = positions - 1
    if separation.blanks == "skip":
        begins, ends = _runs(text == _BLANK)
        follows = np.isin(positions, ends)
        before[follows] = begins[np.searchsorted(ends, positions[follows])] - 1
    opens = _bytes_of(f"{separation.separator}\r\n" + " " * (separation.blanks == "separate"))
    is_first = (before < 0) | opens[text[before]]
    is_adjacent = np.diff(positions, prepend=-2) == 1
    # Without stray quotes, every other one begins a value, or doubles the one before.
    if (is_first | is_adjacent)[0::2].all():
        return positions
    effects = np.where(is_first, _BEGINS, np.where(is_adjacent, _DOUBLES, _STRAY)).astype(np.uint8)
    # The effects of all quotes up to each one, of twice as many in each step.
    step = 1
    while step < len(effects):
        effects[step:] = _BOTH[effects[:-step], effects[step:]]
        step *= 2
    found: NDArray[np.int64] = positions[effects % 3 != 0]
    return found
