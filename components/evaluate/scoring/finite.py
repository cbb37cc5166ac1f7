"""Counts the rows for which a model returns NaN or infinity, and which of them have missing values."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.storage.dataset import Column

# The error must fit on one screen of the step's log.
_NAMED_COLUMNS = 10

NAN_ADVICE = (
    "If the training data has missing values (see prepare_data's overview), replace them in the training function or "
    "drop the columns with drop_columns. If it has none, the training diverged: lower its learning rate and scale its "
    "inputs. No metrics were written."
)
"""Advice for a model with NaN in its outputs or weights."""


@dataclass
class NonFiniteOutputs:
    """Counts over the batches of a dataset.

    Attributes:
        columns: The dataset's columns, in the order in which a row concatenates them.
        rows: Number of rows whose output is not finite.
        first_row: Number of the first of these rows.
        gaps: For each column, the number of these rows in which a value is missing.
    """

    columns: Sequence[Column]
    rows: int = 0
    first_row: int = 0
    gaps: Counter[str] = field(default_factory=Counter)

    def add(self, outputs: NDArray[np.float64], features: NDArray[np.float32], first_row: int) -> NDArray[np.bool_]:
        """Count a batch.

        Args:
            outputs: The model's outputs, [rows, classes].
            features: The rows, [rows, width]; a missing number is NaN.
            first_row: Number of the batch's first row in the dataset.

        Returns:
            For each row whether its output is finite.
        """
        finite = np.asarray(np.isfinite(outputs).all(axis=1))
        if not finite.all():
            if not self.rows:
                self.first_row = first_row + int(finite.argmin())
            self.rows += int((~finite).sum())
            begin, missing = 0, np.isnan(features[~finite])
            for column in self.columns:
                end = begin + math.prod(column.shape)
                self.gaps[column.name] += int(missing[:, begin:end].any(axis=1).sum())
                begin = end
        return finite

    def check(self, rows: int) -> None:
        """Check that all outputs were finite.

        Args:
            rows: Rows of the dataset.

        Raises:
            ValueError: Some were not. The message has their number, the columns with missing values, and what to do.
        """
        if not self.rows:
            return
        named = [f"{name!r} ({count} rows)" for name, count in self.gaps.most_common(_NAMED_COLUMNS) if count]
        missing = f"have missing values in {', '.join(named)}" if named else "have no missing values"
        raise ValueError(
            f"the model returned NaN or infinite numbers for {self.rows} of {rows} rows, first for row "
            f"{self.first_row}. These rows {missing}. {NAN_ADVICE}"
        )
