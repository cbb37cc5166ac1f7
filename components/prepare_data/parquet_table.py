"""Parquet files as a table: the types of the columns decide how they are read."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kfp_distributed.components.prepare_data.column_kinds import (
    KEPT_TYPES,
    column_of,
    declared_column,
    lines_about_dates,
    plain_type,
)
from kfp_distributed.components.prepare_data.huggingface import names_of_classes, schema_with_names, with_names
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.reading import Reject, Rows, numbered, reading
from kfp_distributed.components.prepare_data.table_format import Chosen
from kfp_distributed.storage.dataset import Task

# Approximate size of a batch.
_BATCH_BYTES = 2**23
# Bytes of each column of a Parquet file that are read at once.
_READ_BYTES = 2**20


class ParquetTable:
    """Parquet files, see `TableFormat`.

    Args:
        options: Kinds of columns.
    """

    may_lack_columns = False
    index_type = pa.string()

    def __init__(self, options: Options) -> None:
        self._options = options

    def names(self, file: Path) -> list[str]:
        """Return the names of the columns."""
        return list(self.schema(file).names)

    def schema(self, file: Path) -> pa.Schema:
        """Return the columns and their types as `read` yields them."""
        with _opened(file) as opened:
            return schema_with_names(opened.schema_arrow)

    def read(self, file: Path, types: Mapping[str, pa.DataType], reject: Reject) -> Iterator[Rows]:
        """Yield the rows in the types of the file, but classes of Hugging Face by their names."""
        with _opened(file) as opened:
            rows = max(1, _BATCH_BYTES // (8 * max(1, opened.metadata.num_columns)))
            classes = names_of_classes(opened.schema_arrow)
            batches = opened.iter_batches(rows, columns=[*types] or None)
            yield from numbered(with_names(batch, classes) for batch in batches)

    def choose(
        self, files: Sequence[Path], inputs: Sequence[str], others: Sequence[str], codes: Mapping[str, str], task: Task
    ) -> Chosen:
        """Choose how the columns are read. The first file in which a column has a type sets its kind."""
        found: dict[str, pa.DataType] = {}
        for file in files:
            with reading(file.name):
                schema = self.schema(file)
            for name in inputs:
                kind = schema.field(name).type
                if found.get(name, pa.null()) == pa.null():
                    found[name] = plain_type(kind)
        columns, types = [], {}
        for name in inputs:
            declared = self._options.columns.get(name)
            with reading(files[0].name):
                column = (
                    declared_column(name, declared)
                    if declared
                    else column_of(name, found[name], is_kept=task == "none")
                )
            if column.kind == "kept":
                types[name] = KEPT_TYPES[declared] if declared else found[name]
            columns.append(column)
        dates = [
            column.name
            for column in columns
            if column.source_type == "date" and column.name not in self._options.columns
        ]
        read_types = dict.fromkeys((*inputs, *others), pa.string())
        return Chosen(tuple(columns), types, read_types, lines_about_dates(dates))

    def late_notes(self, names: Mapping[str, Sequence[str]], first: str) -> list[str]:
        """Return no lines: the schema has all columns."""
        return []

    def expected_bytes(self, file: Path) -> int:
        """Return the approximate size of a file's rows in the shards."""
        with _opened(file) as opened:
            return int(opened.metadata.num_rows * opened.metadata.num_columns * 4)


@contextmanager
def _opened(file: Path) -> Iterator[pq.ParquetFile]:
    try:
        # Without the buffer, a whole row group would be in memory.
        with pq.ParquetFile(file, pre_buffer=False, buffer_size=_READ_BYTES) as opened:
            yield opened
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"it is not a complete Parquet file: write or copy it again ({error})") from None
