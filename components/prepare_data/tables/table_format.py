"""What reads the files of a table: the interface of CSV, Parquet, Arrow and JSON Lines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from kfp_distributed.components.prepare_data.columns.dates import ISO
from kfp_distributed.components.prepare_data.columns.split_times import DATES
from kfp_distributed.components.prepare_data.sources.chunks import CountRows, FilePart, ignore_count
from kfp_distributed.components.prepare_data.sources.read_rows import Reject, Rows
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks
from kfp_distributed.storage.dataset import Column, Task


class Chosen(NamedTuple):
    """How the columns of a table are read.

    Attributes:
        columns: The inputs.
        types: Types of the kept inputs.
        read_types: Types in which the inputs, and the other columns that are used, are read.
        notes: Lines about columns.
        time_type: Type in which the times of the time column are compared, see `split_times.time_type`.
        time_form: Form of the texts of the time column.
        decimal: See `Source`.
    """

    columns: tuple[Column, ...]
    types: dict[str, pa.DataType]
    read_types: dict[str, pa.DataType]
    notes: list[str]
    time_type: pa.DataType = DATES
    time_form: str = ISO
    decimal: str = "."


class TableFormat(Protocol):
    """A format of files of rows.

    Attributes:
        may_lack_columns: Whether the rows of a file may lack columns, whose values are then missing.
        index_type: Type in which a column of row numbers is read.
        names_advice: What may help if a column is missing; "" for nothing.
    """

    may_lack_columns: bool
    index_type: pa.DataType
    names_advice: str

    def names(self, file: SourcePath) -> list[str]:
        """Return the names of a file's columns.

        Raises:
            ValueError: The file has another format.
        """

    def parts(self, file: SourcePath, most: int, run: RunTasks | None = None) -> list[FilePart]:
        """Return the parts of a file, of about `most` bytes each.

        Args:
            file: The file.
            most: Approximate size of a part in bytes.
            run: Runs tasks that read the file, if all of it must be read. Default: this process reads it.

        Raises:
            ValueError: The file is damaged.
        """

    def read(
        self, part: FilePart, types: Mapping[str, pa.DataType], reject: Reject, count_rows: CountRows = ignore_count
    ) -> Iterator[Rows]:
        """Yield the rows of a part of a file. Without types, rows have any columns.

        Args:
            part: The part.
            types: Columns and their types.
            reject: Is called for each row that cannot be read, which is left out.
            count_rows: Is called with the rows that were read. Default: they are not counted.
        """

    def choose(
        self,
        files: Sequence[SourcePath],
        inputs: Sequence[str],
        others: Sequence[str],
        codes: Mapping[str, str],
        task: Task,
    ) -> Chosen:
        """Choose how the columns are read.

        Args:
            files: All files.
            inputs: Names of the inputs.
            others: Names of the label and of the column that decides about the split.
            codes: Columns whose numbers are codes, with a code of each.
            task: What is predicted.

        Raises:
            ValueError: The values of a column have no form as an input.
        """

    def late_notes(self, names: Mapping[str, Sequence[str]], first: str) -> list[str]:
        """Return lines about what only a pass over all rows has shown.

        Args:
            names: Columns of each file that were known before.
            first: Name of the file whose columns are read.
        """

    def take_late(self) -> Any:  # noqa: ANN401  (each format has its own)
        """See `read_rows.LateFindings`."""

    def add_late(self, found: Any) -> None:  # noqa: ANN401
        """See `read_rows.LateFindings`."""

    def expected_bytes(self, file: SourcePath) -> int:
        """Return the approximate size of a file's rows in the shards."""
