"""What becomes of the rows of a piece: they are described, and written into the shards."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.source import SPLIT_KEY
from kfp_distributed.components.prepare_data.report.duplicates import DuplicateCounter
from kfp_distributed.components.prepare_data.report.profile import Describing, PieceProfile
from kfp_distributed.components.prepare_data.report.vocabulary import recoded
from kfp_distributed.components.prepare_data.scan.split_keys import FIXED_SPLIT
from kfp_distributed.components.prepare_data.split.drawn_rows import DrawnRows

_INTERNAL = (SPLIT_KEY, FIXED_SPLIT)


@dataclass(frozen=True)
class PieceRows:
    """The rows of a piece, sorted by their files.

    Attributes:
        with_gaps: The rows, with the values of all rows.
        filled: The same rows with numbers in the place of gaps, where there is a number for them.
        files: File of each row.
        splits: Split of each row.
    """

    with_gaps: pa.RecordBatch
    filled: pa.RecordBatch
    files: NDArray[np.uint16]
    splits: NDArray[np.intp]


@dataclass(frozen=True)
class RowWork:
    """What is needed to describe and write the rows of any piece, in any process that reads the pieces.

    Attributes:
        drawn: The rows with their files.
        describing: How they are described.
        indices: New index of each old index of a category, by column.
    """

    drawn: DrawnRows
    describing: Describing
    indices: Mapping[str, NDArray[np.int32]]

    def read(self, piece: int) -> PieceRows:
        """Return the rows of a piece."""
        rows, files = self.drawn.read(piece)
        rows = rows.select([name for name in rows.schema.names if name not in _INTERNAL])
        # The files of the training split are followed by one for validation and one for test.
        splits = np.maximum(files.astype(np.intp) - (self.drawn.files - 2) + 1, 0)
        return PieceRows(rows, self._filled(rows), files, splits)

    def profile(self, rows: PieceRows, sampled: NDArray[np.int64]) -> PieceProfile:
        """Return the description of a piece, see `Describing.profile`."""
        return self.describing.profile(rows.filled, rows.splits, sampled)

    def duplicates(self, rows: PieceRows, limit: int | None = None) -> DuplicateCounter:
        """Return the count of equal rows of a piece, see `Describing.duplicates`."""
        return self.describing.duplicates(rows.with_gaps, rows.splits, limit)

    def in_shards(self, rows: PieceRows) -> pa.RecordBatch:
        """Return the rows of a piece as they are written."""
        return recoded(rows.filled, self.indices)

    def _filled(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows without gaps in the columns that have a number for them."""
        for column in self.describing.columns:
            if column.fill is not None and rows[column.name].null_count:
                position = rows.schema.names.index(column.name)
                values = pc.fill_null(rows[column.name], pa.scalar(column.fill, pa.float32()))
                rows = rows.set_column(position, rows.schema.field(position), values)
        return rows
