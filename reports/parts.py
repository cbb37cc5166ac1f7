"""Parts that pages have in common, as plain data. `templates/macros.html` draws them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        columns: Names of the columns.
        rows: Texts of the cells. A row may have fewer cells than there are columns.
        total: Number of rows, if it is larger than that of `rows`; then the table says so in its last row.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: int = 0
