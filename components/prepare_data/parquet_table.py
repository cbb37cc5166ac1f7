"""Parquet files as a table: the types of the columns decide how they are read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kfp_distributed.components.prepare_data.huggingface import names_of_classes, schema_with_names, with_names
from kfp_distributed.components.prepare_data.reading import Reject, Rows, numbered
from kfp_distributed.components.prepare_data.schema_table import BATCH_BYTES, SchemaTable

# Bytes of each column of a Parquet file that are read at once.
_READ_BYTES = 2**20


class ParquetTable(SchemaTable):
    """Parquet files, see `TableFormat`."""

    def schema(self, file: Path) -> pa.Schema:
        """Return the columns and their types as `read` yields them."""
        with _opened(file) as opened:
            return schema_with_names(opened.schema_arrow)

    def read(self, file: Path, types: Mapping[str, pa.DataType], reject: Reject) -> Iterator[Rows]:
        """Yield the rows in the types of the file, but classes of Hugging Face by their names."""
        with _opened(file) as opened:
            rows = max(1, BATCH_BYTES // (8 * max(1, opened.metadata.num_columns)))
            classes = names_of_classes(opened.schema_arrow)
            # Without types, the number of rows is enough. The first batch of a column needs a whole page of it.
            names = [*types] or opened.schema_arrow.names[:1]
            batches = opened.iter_batches(rows, columns=names)
            yield from numbered(with_names(batch, classes) for batch in batches)

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
