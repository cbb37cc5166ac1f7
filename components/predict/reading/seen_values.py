"""Counts what a model has not seen in its training: unknown categories, and columns without a value (pure)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from kfp_distributed.components.prepare_data.columns.look_alikes import by_look, shown_with
from kfp_distributed.components.prepare_data.columns.spelled_values import value_names
from kfp_distributed.storage.dataset import Column

_EXAMPLES = 4


@dataclass
class SeenValues:
    """Counts of the columns that a model takes.

    Attributes:
        rows: Number of the rows.
        missing: Rows of each column without a value.
        unknown: Rows of each category whose value no training row has.
        examples: Some of these values.
    """

    rows: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add_unknown(self, column: str, rows: int, values: Sequence[str]) -> None:
        """Add rows of a category, and their different values."""
        self.unknown[column] += rows
        known = self.examples.get(column, ())
        self.examples[column] = tuple(dict.fromkeys([*known, *values]))[:_EXAMPLES]

    def merge(self, later: "SeenValues") -> None:
        """Add the counts of later rows."""
        self.rows += later.rows
        self.missing.update(later.missing)
        for column, rows in later.unknown.items():
            self.add_unknown(column, rows, later.examples[column])

    def lines(self, columns: Sequence[Column]) -> list[str]:
        """Return one line for each column that the model knows less of than it should.

        Args:
            columns: Columns of the model.
        """
        lines = []
        for column in columns:
            if self.rows and self.missing[column.name] == self.rows:
                lines.append(
                    f"column {column.name!r} has no value in any of {self.rows:,} rows: the model answers as for "
                    "missing values. Write the column as in the training data"
                )
            elif unknown := self.unknown[column.name]:
                known = by_look(column.vocabulary)
                values = ", ".join(shown_with(text, known) for text in self.examples[column.name])
                lines.append(
                    f"column {column.name!r} has values in {unknown:,} of {self.rows:,} rows that no training row has, "
                    f"such as {values}: the model has learned nothing about them"
                )
        return lines


def seen_values(columns: Sequence[Column], rows: pa.RecordBatch) -> SeenValues:
    """Return the counts of some rows.

    Args:
        columns: Columns of the model.
        rows: The rows, as a source yields them.
    """
    seen = SeenValues(rows.num_rows)
    for column in columns:
        values = rows[column.name]
        seen.missing[column.name] = values.is_null(nan_is_null=True).true_count
        if column.kind != "category" or not column.vocabulary:
            continue
        counts = values.drop_null().value_counts()
        names = value_names(counts.field("values").to_pylist(), column.vocabulary)
        known = {*column.vocabulary}
        unknown = {text: int(rows) for text, rows in zip(names, counts.field("counts").to_pylist(), strict=True)}
        unknown = {text: rows for text, rows in unknown.items() if names[text] not in known}
        if unknown:
            seen.add_unknown(column.name, sum(unknown.values()), [names[text] for text in unknown])
    return seen
