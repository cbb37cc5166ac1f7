"""Format rows as a table of text."""

from collections.abc import Iterable, Sequence


def format_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows below the names of their columns, as aligned lines."""
    table = [[column.upper() for column in columns], *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
