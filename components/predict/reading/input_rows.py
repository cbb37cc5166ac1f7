"""Rows as the step reads them from a source or a dataset."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.predict.reading.seen_values import SeenValues
from kfp_distributed.components.prepare_data.sources.chunks import Chunk, CountRows, FilePart
from kfp_distributed.components.prepare_data.sources.read_rows import LateFindings, Reject


@dataclass(frozen=True)
class InputRows:
    """Rows of a part.

    Attributes:
        values: Raw values by column, or the matrix of a dataset, [n, width]. The model gets them.
        keys: The key columns; no columns if the rows are known by file and number.
        numbers: Number of each row in the part, from 1, [n].
        seen: What the model has not seen in its training, among these rows. Default: it is not counted.
    """

    values: Mapping[str, Any] | NDArray[np.float32]
    keys: pa.RecordBatch
    numbers: NDArray[np.int64]
    seen: SeenValues = field(default_factory=SeenValues)

    def take(self, rows: NDArray[Any] | slice) -> "InputRows":
        """Return some of the rows: those of a slice, or those where an array of booleans, [n], is true.

        What the model has not seen among them is not counted.
        """
        values = (
            self.values[rows]
            if isinstance(self.values, np.ndarray)
            else {name: column[rows] for name, column in self.values.items()}
        )
        kept = np.arange(len(self.numbers))[rows]
        keys = self.keys.take(pa.array(kept)) if self.keys.num_columns else self.keys
        return InputRows(values, keys, self.numbers[rows])


class RowReader(Protocol):
    """Reads the parts of a source or a dataset. It can be pickled where its rows are portable."""

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns; empty if the rows are known by file and number."""

    @property
    def file_column(self) -> str:
        """Name of the column of the files' names: "file" or "shard"."""

    @property
    def first_row(self) -> int:
        """Number of the first row of a file. It is 2 where a header is row 1."""

    @property
    def late_findings(self) -> LateFindings | None:
        """What the reader notes for `late_notes`; None for nothing."""

    def late_notes(self) -> Iterable[str]:
        """Return lines that are known only after all rows were read."""

    def chunks(self) -> Sequence[Chunk]:
        """Return what tasks read.

        Raises:
            ValueError: A file is damaged.
        """

    def read(self, part: FilePart, reject: Reject, count_rows: CountRows) -> Iterator[InputRows]:
        """Yield the rows of a part in batches.

        Args:
            part: The part.
            reject: Is called for each row that cannot be used, with its number in the part.
            count_rows: Is called with the rows that were read.

        Raises:
            ValueError: A file is damaged.
        """

    def file_names(self, part: FilePart, numbers: NDArray[np.int64]) -> list[str] | None:
        """Return the name of the file that each row is; None where the file of the part has several rows."""
