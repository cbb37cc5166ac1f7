"""Parquet files as a table: the types of the columns decide how they are read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from kfp_distributed.components.prepare_data.chunks import FilePart, first_of_runs, parts_of
from kfp_distributed.components.prepare_data.schema_table import BATCH_BYTES, SchemaTable
from kfp_distributed.components.prepare_data.stored_files import SourcePath, StoredPath
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks
from kfp_distributed.storage.errors import one_line

# Bytes of each column of a Parquet file that are read at once.
_READ_BYTES = 2**20


class ParquetTable(SchemaTable):
    """Parquet files, see `TableFormat`."""

    def stored_schema(self, file: SourcePath) -> pa.Schema:
        """Return the columns and their types as they are in the file."""
        with _opened(file) as opened:
            return opened.schema_arrow

    def parts(self, file: SourcePath, most: int, run: RunTasks | None = None) -> list[FilePart]:
        """Return runs of row groups of a file, by their size before compression."""
        with _opened(file) as opened:
            metadata = opened.metadata
            sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
        return parts_of(file, *zip(*first_of_runs(sizes, most), strict=True))

    def stored_rows(self, part: FilePart, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the types of the file, see `SchemaTable`."""
        with _opened(part.file) as opened:
            # Without names, the number of rows is enough. The first batch of a column needs a whole page of it.
            columns = [*names] or opened.schema_arrow.names[:1]
            row_bytes = max(8 * opened.metadata.num_columns, _row_bytes(opened.metadata, columns))
            groups = [*range(opened.num_row_groups)[part.begin : part.end]]
            yield from opened.iter_batches(max(1, BATCH_BYTES // max(1, row_bytes)), groups, columns)

    def count_rows(self, file: SourcePath) -> int:
        """Return the number of the rows."""
        with _opened(file) as opened:
            return int(opened.metadata.num_rows)


def _row_bytes(metadata: pq.FileMetaData, names: Sequence[str]) -> int:
    """Return the mean size of a row's texts and binary values, such as images, in the row group with the largest ones.

    Args:
        metadata: Metadata of a file.
        names: Names of the columns.
    """
    largest = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        size = 0
        for column in map(group.column, range(group.num_columns)):
            root = column.path_in_schema.split(".")[0]
            if column.physical_type == "BYTE_ARRAY" and root in names:
                size += column.total_uncompressed_size
        largest = max(largest, size // max(1, group.num_rows))
    return largest


@contextmanager
def _opened(file: SourcePath) -> Iterator[pq.ParquetFile]:
    try:
        # Without the buffer, a whole row group would be in memory.
        source, metadata = (_content(file), _stored_metadata(file)) if isinstance(file, StoredPath) else (file, None)
        with pq.ParquetFile(source, metadata=metadata, pre_buffer=False, buffer_size=_READ_BYTES) as opened:
            yield opened
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"it is not a complete Parquet file: write or copy it again ({one_line(error)})") from None


def _content(file: StoredPath) -> pa.PythonFile:
    return pa.PythonFile(file.open(), "r")


@lru_cache(maxsize=32)
def _stored_metadata(file: StoredPath) -> pq.FileMetaData:
    """Return the footer of a file, which is read several times, by one request or two."""
    return pq.read_metadata(_content(file))
