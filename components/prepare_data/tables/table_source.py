"""Opens files of rows, and finds the columns that are inputs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa

from kfp_distributed.components.prepare_data.columns.column_names import check_names, input_names
from kfp_distributed.components.prepare_data.columns.dates import ISO, form_of
from kfp_distributed.components.prepare_data.columns.row_forms import lines_about_optional, optional_columns
from kfp_distributed.components.prepare_data.columns.row_numbers import INDEX_NAMES, counts_rows, lines_about_index
from kfp_distributed.components.prepare_data.columns.source import Source, SplitBy
from kfp_distributed.components.prepare_data.columns.split_times import DATES
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources.chunks import CountRows, FilePart, whole_file
from kfp_distributed.components.prepare_data.sources.left_out import lines_about_columns
from kfp_distributed.components.prepare_data.sources.read_rows import (
    Reject,
    RejectedRows,
    Rows,
    ignore,
    read_errors,
    read_rows,
)
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath, StoredPath
from kfp_distributed.components.prepare_data.tables.table_format import TableFormat
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks, groups_of
from kfp_distributed.storage.dataset import Task
from kfp_distributed.storage.parallel import PARALLEL_TRANSFERS


def table_source(
    files: Sequence[SourcePath], table: TableFormat, options: Options, codes: Mapping[str, str], task: Task
) -> Source:
    """Open files of rows, which must all have the columns of the first one that has rows.

    Args:
        files: The files, all of one format.
        table: Their format.
        options: The options of reading.
        codes: Columns of CSV files whose numbers are codes, with a code of each.
        task: What is predicted.

    Raises:
        ValueError: A file cannot be read, or the columns do not fit the options.
    """
    first = _first_with_rows(files, table, options)
    names = _names(files, table)
    everywhere = {name for present in names.values() for name in present}
    optional = optional_columns(options)
    absent = {name: missing for name, present in names.items() if (missing := optional - {*present})}
    added = sorted(absent.get(first, set()) & (optional if options.inputs else everywhere))
    inputs = input_names([*names[first], *added], options, first, everywhere, table.names_advice)
    others = [name for name in (options.label_column, options.group_column, options.time_column) if name]
    for file_name, present in names.items():
        with read_errors(file_name):
            may_lack = {*inputs, *others} if table.may_lack_columns else optional
            used = (name for name in (*others, *inputs) if name in present or name not in may_lack)
            check_names(present, [*used], first)
    # The columns of the first source or of another dataset are inputs in any case.
    inputs, notes_about_index = (inputs, []) if options.inputs else _without_index(files, table, inputs)
    chosen = table.choose(files, inputs, [name for name in others if name not in inputs], codes, task)
    notes = [] if table.may_lack_columns else lines_about_columns(names, first, (*added, *options.drop_columns))
    if options.inputs:
        notes += lines_about_optional(everywhere, options)
    return Source(
        chosen.columns,
        options.label_column,
        partial(_parts, files, table),
        partial(_read_part, table, chosen.read_types, {} if table.may_lack_columns else absent),
        (*notes, *notes_about_index, *chosen.notes),
        sum(map(table.expected_bytes, files)),
        task,
        chosen.types,
        split_by(options, chosen.time_type, chosen.time_form),
        partial(table.late_notes, names, first),
        table,
        has_given_kinds=bool(options.inputs),
        decimal=chosen.decimal,
    )


def _read_part(
    table: TableFormat,
    types: Mapping[str, pa.DataType],
    absent: Mapping[str, Collection[str]],
    part: FilePart,
    reject: Reject,
    count_rows: CountRows,
) -> Iterator[Rows]:
    """Yield the rows of a part, with missing values in the optional columns that its file lacks."""
    missing = absent.get(part.name, ())
    present = {name: kind for name, kind in types.items() if name not in missing}
    for rows, numbers in table.read(part, present, reject, count_rows):
        for name in missing:
            rows = rows.append_column(name, pa.nulls(len(rows), pa.string()))
        yield Rows(rows, numbers)


def _parts(
    files: Sequence[SourcePath], table: TableFormat, most: int, run: RunTasks | None = None
) -> Iterator[FilePart]:
    for file in files:
        with read_errors(file.name):
            parts = table.parts(file, most, run)
        yield from parts


def split_by(options: Options, time_type: pa.DataType, time_form: str) -> SplitBy:
    """Return the column that decides about the split.

    Args:
        options: The names of the columns.
        time_type: Type in which times are compared.
        time_form: Form of the texts of times, or of the digits of numbers. That of groups is the declared one.
    """
    if options.group_column:
        return SplitBy(options.group_column, "group", time_form=form_of(options.columns.get(options.group_column, "")))
    if not options.time_column:
        return SplitBy()
    if time_form != ISO and not pa.types.is_timestamp(time_type):
        time_type = DATES
    return SplitBy(options.time_column, "time", time_type, time_form)


def _without_index(
    files: Sequence[SourcePath], table: TableFormat, names: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the inputs without an index column that numbers the rows, and lines about the index columns."""
    inputs, notes = [*names], []

    def values(name: str) -> Iterator[tuple[str, pa.Array]]:
        for file in files:
            for rows, _ in read_rows(file.name, table.read(whole_file(file), {name: table.index_type}, ignore)):
                yield file.name, rows[name]

    for name in [name for name in names if name in INDEX_NAMES]:
        # The last input stays, because a dataset needs one.
        is_left_out = len(inputs) > 1 and counts_rows(values(name))
        if is_left_out:
            inputs.remove(name)
        notes += lines_about_index(name, is_left_out=is_left_out)
    return inputs, notes


def _names(files: Sequence[SourcePath], table: TableFormat) -> dict[str, list[str]]:
    """Return the names of the columns of each file. Objects are read several at once, because each takes a while."""

    def names(file: SourcePath) -> list[str]:
        with read_errors(file.name):
            return table.names(file)

    found: dict[str, list[str]] = {}
    with ThreadPoolExecutor(PARALLEL_TRANSFERS) as pool:
        for group in groups_of(files, 16 * PARALLEL_TRANSFERS):
            # A format whose files may lack columns keeps the names, in an order that must not depend on threads.
            is_parallel = isinstance(group[0], StoredPath) and not table.may_lack_columns
            of_group = (pool.map if is_parallel else map)(names, group)
            found |= {file.name: columns for file, columns in zip(group, of_group, strict=True)}
    return found


def _first_with_rows(files: Sequence[SourcePath], table: TableFormat, options: Options) -> str:
    """Return the name of the first file that has usable rows."""
    rejected = RejectedRows(options.on_bad_row)
    for file in files:
        for rows, _ in read_rows(file.name, table.read(whole_file(file), {}, partial(rejected.add, file.name))):
            if len(rows):
                return file.name
    rejected.check()
    with read_errors(files[0].name):
        raise ValueError("; ".join(["it has no rows", *rejected.notes()]))
