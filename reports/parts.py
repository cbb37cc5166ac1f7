"""Parts that pages share, as plain data. `templates/macros.html` renders them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        columns: Names of the columns.
        rows: Texts of the cells. A row may have fewer cells than there are columns.
        total: Number of all rows if `rows` has fewer. The last row of the table shows it. Default: 0, which means that
            `rows` is complete.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: int = 0
