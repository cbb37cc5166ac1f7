"""Arrow files as a table, as the library `datasets` of Hugging Face saves them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from kfp_distributed.components.prepare_data.schema_table import BATCH_BYTES, SchemaTable

# The first bytes of the Arrow file format; other Arrow files are streams.
_FILE_MAGIC = b"ARROW1"
# The last bytes of a stream. A reader does not notice that a stream without them lacks its last batches.
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowTable(SchemaTable):
    """Arrow files, streams or of the file format, see `TableFormat`."""

    def stored_schema(self, file: Path) -> pa.Schema:
        """Return the columns and their types as they are in the file."""
        with _opened(file) as (schema, _):
            return schema

    def stored_rows(self, file: Path, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the types of the file, see `SchemaTable`."""
        with _opened(file) as (schema, batches):
            for batch in batches:
                rows = batch.select([*names] or schema.names)
                row_bytes = max(8 * len(schema.names), rows.nbytes // max(1, rows.num_rows))
                step = max(1, BATCH_BYTES // max(1, row_bytes))
                yield from (rows.slice(begin, step) for begin in range(0, rows.num_rows, step))

    def count_rows(self, file: Path) -> int:
        """Return the number of the rows."""
        with _opened(file) as (_, batches):
            return sum(batch.num_rows for batch in batches)


@contextmanager
def _opened(file: Path) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open a file, and map it into memory.

    Returns:
        The schema, and the batches of rows.

    Raises:
        ValueError: The file is damaged or no Arrow file.
    """
    try:
        with pa.memory_map(str(file)) as mapped:
            if mapped.read(len(_FILE_MAGIC)) == _FILE_MAGIC:
                with pa.ipc.open_file(mapped) as opened:
                    yield opened.schema, (opened.get_batch(i) for i in range(opened.num_record_batches))
                return
            mapped.seek(max(0, mapped.size() - len(_END_OF_STREAM)))
            is_complete = mapped.read() == _END_OF_STREAM
            mapped.seek(0)
            with pa.ipc.open_stream(mapped) as opened:
                if not is_complete:
                    raise ValueError("it is not a complete Arrow file: write or copy it again (its end is missing)")
                yield opened.schema, iter(opened)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"it is not a complete Arrow file: write or copy it again ({error})") from None
