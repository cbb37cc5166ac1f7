"""Arrow files as a table, as the library `datasets` of Hugging Face saves them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import pyarrow as pa

from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources.chunks import FilePart, parts_of, whole_file
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath, StoredPath
from kfp_distributed.components.prepare_data.tables.arrow_messages import (
    FILE_MAGIC,
    ArrowMessages,
    JoinedRanges,
    read_messages,
)
from kfp_distributed.components.prepare_data.tables.schema_table import BATCH_BYTES, SchemaTable
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks
from kfp_distributed.storage.errors import one_line

# The last bytes of a stream. A reader does not notice that a stream without them lacks its last batches.
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


# A header of a message is smaller, and so are nearly all of the headers that follow each other.
_HEADER_BYTES = 2**12


class ArrowTable(SchemaTable):
    """Arrow files, streams or of the file format, see `TableFormat`.

    Files on a disk are mapped into memory. Of objects in a store, the headers of all messages are read once, and then
    the record batches of a part.

    Args:
        options: Kinds of columns.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        # Tasks get them from the process that has divided the files.
        self._messages: dict[StoredPath, ArrowMessages] = {}

    def stored_schema(self, file: SourcePath) -> pa.Schema:
        """Return the columns and their types as they are in the file."""
        with _opened(file) as (schema, _):
            return schema

    def parts(self, file: SourcePath, most: int, run: RunTasks | None = None) -> list[FilePart]:
        """Return runs of equally many record batches of a file."""
        size = file.stat().st_size
        if size <= most:
            return [whole_file(file)]
        if isinstance(file, StoredPath):
            count = self._messages_of(file).batches
        else:
            with _opened(file) as (_, batches):
                count = sum(1 for _ in batches)
        step = max(1, count * most // size)
        begins = range(0, max(1, count), step)
        return parts_of(file, begins, [size * step // max(1, count)] * len(begins))

    def stored_rows(self, part: FilePart, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the types of the file, see `SchemaTable`."""
        with self._opened_part(part) as (schema, batches):
            for batch in batches:
                rows = batch.select([*names] or schema.names)
                row_bytes = max(8 * len(schema.names), rows.nbytes // max(1, rows.num_rows))
                step = max(1, BATCH_BYTES // max(1, row_bytes))
                yield from (rows.slice(begin, step) for begin in range(0, rows.num_rows, step))

    def count_rows(self, file: SourcePath) -> int:
        """Return the number of the rows."""
        if isinstance(file, StoredPath):
            return self._messages_of(file).row_count
        with _opened(file) as (_, batches):
            return sum(batch.num_rows for batch in batches)

    def _messages_of(self, file: StoredPath) -> ArrowMessages:
        if file not in self._messages:
            with _opened(file):  # A stream that lacks its end is refused.
                pass
            self._messages[file] = read_messages(file.open(first_bytes=_HEADER_BYTES), file.size)
        return self._messages[file]

    @contextmanager
    def _opened_part(self, part: FilePart) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """Open a part of a file, see `_opened`."""
        if not isinstance(part.file, StoredPath) or (not part.begin and part.end is None):
            with _opened(part.file) as (schema, batches):
                yield schema, islice(batches, part.begin, part.end)
            return
        messages = self._messages_of(part.file)
        with _damage(), part.file.open() as stream:
            if messages.is_file:
                with pa.ipc.open_file(pa.PythonFile(stream, "r")) as opened:
                    numbers = range(opened.num_record_batches)[part.begin : part.end]
                    yield opened.schema, map(opened.get_batch, numbers)
                return
            joined = JoinedRanges(stream, messages.ranges(part.begin, part.end))
            with pa.ipc.open_stream(pa.PythonFile(joined, "r")) as opened:
                yield opened.schema, iter(opened)


@contextmanager
def _opened(file: SourcePath) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open a file. One on a disk is mapped into memory.

    Yields:
        The schema, and the batches of rows.

    Raises:
        ValueError: The file is damaged or no Arrow file.
    """
    with _damage(), _source(file) as mapped:
        if mapped.read(len(FILE_MAGIC)) == FILE_MAGIC:
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


def _source(file: SourcePath) -> pa.NativeFile:
    return pa.PythonFile(file.open(), "r") if isinstance(file, StoredPath) else pa.memory_map(str(file))


@contextmanager
def _damage() -> Iterator[None]:
    """Explain the errors of a damaged file.

    Raises:
        ValueError: The file is damaged or no Arrow file.
    """
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"it is not a complete Arrow file: write or copy it again ({one_line(error)})") from None
