"""Files whose schema says the types of the columns: what Parquet and Arrow have in common, and the table of Parquet."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kfp_distributed.components.prepare_data.columns.column_kinds import (
    KEPT_TYPES,
    column_of,
    declared_column,
    first_texts,
    plain,
    plain_type,
)
from kfp_distributed.components.prepare_data.columns.date_columns import DateForms, find_forms, open_dates
from kfp_distributed.components.prepare_data.columns.split_times import time_type
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources.chunks import (
    CountRows,
    FilePart,
    first_of_runs,
    ignore_count,
    parts_of,
    whole_file,
)
from kfp_distributed.components.prepare_data.sources.read_rows import Reject, Rows, numbered, read_errors, read_rows
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath, StoredPath
from kfp_distributed.components.prepare_data.tables.huggingface import (
    image_columns,
    names_of_classes,
    schema_with_names,
    with_names,
)
from kfp_distributed.components.prepare_data.tables.image_columns import ImageColumns, choose_images
from kfp_distributed.components.prepare_data.tables.image_files import ImageForm
from kfp_distributed.components.prepare_data.tables.table_format import Chosen
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks
from kfp_distributed.storage.dataset import Task
from kfp_distributed.storage.errors import one_line

BATCH_BYTES = 2**23
"""Approximate size of a batch."""

# Bytes of each column of a Parquet file that are read at once.
_READ_BYTES = 2**20


class SchemaTable(ABC):
    """Files with a schema, see `TableFormat`.

    Args:
        options: Kinds of columns.
    """

    may_lack_columns = False
    index_type = pa.string()
    names_advice = ""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._images = ImageColumns({})
        self._first: SourcePath = Path()

    @abstractmethod
    def stored_schema(self, file: SourcePath) -> pa.Schema:
        """Return the columns and their types as they are in the file."""

    @abstractmethod
    def parts(self, file: SourcePath, most: int, run: RunTasks | None = None) -> list[FilePart]:
        """Return runs of row groups or record batches of a file, of about `most` bytes each."""

    @abstractmethod
    def stored_rows(self, part: FilePart, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the types of the file, in batches of at most about BATCH_BYTES.

        Args:
            part: The file, or a part of it.
            names: Names of the columns. Without names, rows have any columns.
        """

    @abstractmethod
    def count_rows(self, file: SourcePath) -> int:
        """Return the number of the rows."""

    def names(self, file: SourcePath) -> list[str]:
        """Return the names of the columns."""
        return list(self.stored_schema(file).names)

    def read(
        self, part: FilePart, types: Mapping[str, pa.DataType], reject: Reject, count_rows: CountRows = ignore_count
    ) -> Iterator[Rows]:
        """Yield the rows in the types of the file, but classes by their names and the chosen images decoded."""
        rows = self._read(part, [*types], count_rows)
        if not self._images.shapes:
            return rows
        if part.file == self._first and not part.begin:
            self._images.forget()
        return self._images.decoded(rows, reject)

    def _read(self, part: FilePart, names: Sequence[str], count_rows: CountRows) -> Iterator[Rows]:
        classes = names_of_classes(self.stored_schema(part.file))
        for rows in numbered(with_names(batch, classes) for batch in self.stored_rows(part, names)):
            count_rows(len(rows.numbers))
            yield rows

    def _read_file(self, file: SourcePath, names: Sequence[str]) -> Iterator[Rows]:
        return self._read(whole_file(file), names, ignore_count)

    def expected_bytes(self, file: SourcePath) -> int:
        """Return the approximate size of a file's rows in the shards."""
        return self.count_rows(file) * (4 * len(self.stored_schema(file).names) + self._images.row_pixels)

    def choose(
        self,
        files: Sequence[SourcePath],
        inputs: Sequence[str],
        others: Sequence[str],
        codes: Mapping[str, str],
        task: Task,
    ) -> Chosen:
        """Choose how the columns are read.

        The first file in which a column has a type sets its kind. Kept numbers get a type for the numbers of all files.
        """
        found: dict[str, pa.DataType] = {}
        images, times = {*self._options.image_shapes}, []
        for file in files:
            with read_errors(file.name):
                stored = self.stored_schema(file)
                schema = schema_with_names(stored)
            images |= {*image_columns(stored)}
            times += [schema.field(name).type for name in (self._options.time_column,) if name]
            for name in {*inputs, *others} & {*schema.names}:
                found[name] = _common(found.get(name, pa.null()), plain_type(schema.field(name).type))
        decoded = [name for name in inputs if name in images and name not in self._options.columns and task != "none"]
        self._images = choose_images(decoded, files, self._read_file, self._options)
        self._first = files[0]
        forms = self._date_forms(files, found)
        columns, types = [], {}
        for name in inputs:
            if shape := self._images.shapes.get(name):
                columns.append(column_of(name, pa.uint8(), shape))
                continue
            declared = self._options.columns.get(name)
            with read_errors(files[0].name):
                column = (
                    declared_column(name, declared)
                    if declared
                    else column_of(name, found[name], is_kept=task == "none")
                )
            if column.kind == "kept":
                types[name] = KEPT_TYPES[declared] if declared else found[name]
            columns.append(forms.dated(column))
        dates = [column.name for column in columns if column.is_date and column.name not in self._options.columns]
        read_types = dict.fromkeys((*inputs, *others), pa.string())
        time_form = forms.form(self._options.time_column)
        return Chosen(tuple(columns), types, read_types, forms.lines(dates), time_type(times), time_form)

    def _date_forms(self, files: Sequence[SourcePath], found: Mapping[str, pa.DataType]) -> DateForms:
        """Return the forms of the texts that are read as dates."""

        def read_texts(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            for file in files:
                for rows, _ in read_rows(file.name, self._read_file(file, names)):
                    yield pa.record_batch({name: plain(rows[name]).cast(pa.string()) for name in names})

        texts = [name for name in open_dates(self._options) if str(found[name]) in ("string", "large_string")]
        return find_forms(self._options, first_texts(texts, read_texts), read_texts)

    def late_notes(self, names: Mapping[str, Sequence[str]], first: str) -> list[str]:
        """Return lines about images: the schema has all columns."""
        return self._images.notes()

    def take_late(self) -> dict[str, Counter[ImageForm]]:
        """Return the forms of the images that were decoded, and forget them."""
        return self._images.take_late()

    def add_late(self, found: Mapping[str, Counter[ImageForm]]) -> None:
        """Add the forms of images."""
        self._images.add_late(found)


def _common(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type of the numbers, or lists of numbers, of two types, such as double; else the first type."""
    if kind == other or pa.types.is_null(kind) or not (_has_numbers(kind) and _has_numbers(other)):
        return other if pa.types.is_null(kind) else kind
    schemas = [pa.schema({"": each}) for each in (kind, other)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowTypeError:  # Numbers and lists.
        return kind


def _has_numbers(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_numbers(kind.value_type)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


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
