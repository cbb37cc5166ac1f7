"""Reads the sources of the splits into one set of pieces."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from kfp_distributed.components.prepare_data.columns.dates import form_of
from kfp_distributed.components.prepare_data.columns.source import Source, SplitBy
from kfp_distributed.components.prepare_data.columns.split_times import time_type_of_sources
from kfp_distributed.components.prepare_data.pieces.piece_files import PIECE_BYTES, PieceFiles, Pieces
from kfp_distributed.components.prepare_data.pieces.stored_pieces import AHEAD_BYTES
from kfp_distributed.components.prepare_data.preparation_options import DeclaredKind, Options
from kfp_distributed.components.prepare_data.scan.scan_result import Scan
from kfp_distributed.components.prepare_data.scan.scan_tasks import TaskScanner
from kfp_distributed.components.prepare_data.scan.scanner import Scanner, lines_about_gaps
from kfp_distributed.components.prepare_data.scan.split_keys import DRAWN, TEST, VALIDATION
from kfp_distributed.components.prepare_data.sources.chunks import CHUNK_BYTES
from kfp_distributed.components.prepare_data.sources.disk_errors import disk_errors
from kfp_distributed.components.prepare_data.sources.folder_splits import split_sources
from kfp_distributed.components.prepare_data.sources.read_rows import ReadAgain, RejectedRows
from kfp_distributed.components.prepare_data.sources.source_files import SourceFiles
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.prepare_data.tables.open_source import as_row_form, lines_about_missing, open_source
from kfp_distributed.components.worker_pool.stored_tasks import StoredTasks
from kfp_distributed.storage.dataset import Column, Task

_SPLITS = {"": DRAWN, "validation": VALIDATION, "test": TEST}
_KINDS: Mapping[str, DeclaredKind] = {
    "string": "text",
    "binary": "binary",
    "list<item: float>": "list<float>",
    "list<item: int64>": "list<int>",
    "list<item: string>": "list<text>",
}


@dataclass(frozen=True)
class ReadSources:
    """The rows of all sources.

    Attributes:
        pieces: The rows.
        expected_bytes: Approximate size of the rows.
        scan: What they are.
        split_by: The column that decides about the split of a row.
        fixed_splits: Splits that have sources of their own.
        notes: Lines about what is left out, for the overview.
    """

    pieces: PieceFiles
    expected_bytes: int
    scan: Scan
    split_by: SplitBy
    fixed_splits: frozenset[int]
    notes: tuple[str, ...]


def read_sources(
    files: Mapping[str, SourcePath | None],
    options: Options,
    scratch: Path,
    unfinished: Path,
    log: Callable[[Iterable[str]], None],
    tasks: StoredTasks | None = None,
) -> ReadSources:
    """Read and check all rows.

    The task and the kinds of the columns are those of the main source. It is read again if a later row shows that a
    column or the label is of another kind than the first ones.

    Args:
        files: File or folder of each source, None for the digits: "" is the main source, whose rows are divided among
            the splits; "validation" and "test" have the rows of their split. A folder may have splits of its own.
        options: Options of reading.
        scratch: Folder for unpacked files.
        unfinished: Folder for the rows.
        log: Prints lines about the source.
        tasks: Runs the tasks that scan the chunks. Default: this process scans them.

    Raises:
        ValueError: A source cannot be used.
        OSError: The disk of the folder for the rows is full.
    """
    sources, lines = split_sources(files)
    for line in lines:
        print(line, flush=True)
    options, form = as_row_form(sources[""], options)
    codes: dict[str, str] = {}
    task: Task = options.task or ("classification" if options.label_column else "none")
    reason = form or ("the parameter task says so" if options.task else "")
    logged: set[str] = set()
    attempt = 0
    if options.like:
        options, reason = options_like(options, options.like.columns), "the dataset in like has it"
    while True:
        main = open_source(sources[""], options, scratch, codes, task)
        if options.like:
            main = replace(main, types=kept_types(main, options.like.columns))
        log(note for note in main.notes if note not in logged)
        logged |= {*main.notes}
        scanner = _scanner(main, options, unfinished, f"pieces-{attempt}", tasks)
        rejected = RejectedRows(options.on_bad_row)
        try:
            with disk_errors(unfinished.parent, scratch, main.expected_bytes):
                others = {split: files for split, files in sources.items() if split}
                opened = _with_others(main, others, options, scratch)
                main = opened[""]
                notes, late, readers = [*main.notes], list[str](), []
                for split, source in opened.items():
                    # A folder may have the files of a split, too.
                    place = f"{split}_source: " if split and files.get(split) else ""
                    of_source = [f"{place}{note}" for note in source.notes]
                    log(note for note in of_source if note not in logged)
                    logged |= {*of_source}
                    readers.append(source.late_findings)
                    notes += [note for note in of_source if note not in notes]
                    scanner.add(source, rejected, _SPLITS[split], has_fixed_splits=len(sources) > 1)
                    late += [note for line in source.late_notes() if (note := f"{place}{line}") not in late]
                scan = scanner.result(rejected)
                break
        except ReadAgain as found:
            codes |= found.codes
            options = replace(options, image_shapes={**options.image_shapes, **found.image_shapes})
            if found.regression:
                task, reason = "regression", found.regression
        scanner.delete()
        attempt += 1
    print(f"task: {task}, because {reason or scanner.reason}", flush=True)
    found_late = [*late, *lines_about_missing(readers), *rejected.notes(), *lines_about_gaps(scan.dropped, scan.gaps)]
    log(found_late)
    fixed = frozenset(_SPLITS[split] for split in sources if split)
    return ReadSources(scanner.files(), main.expected_bytes, scan, main.split_by, fixed, (*notes, *found_late))


def _scanner(
    source: Source, options: Options, unfinished: Path, name: str, tasks: StoredTasks | None
) -> Scanner | TaskScanner:
    """Return the pass over the sources, whose first one is given."""
    if tasks:
        return TaskScanner(source, options, tasks, f"{name}/", CHUNK_BYTES, PIECE_BYTES, AHEAD_BYTES)
    pieces = Pieces(unfinished / name, source.expected_bytes, options.seed, PIECE_BYTES)
    return Scanner(source, pieces, options, CHUNK_BYTES)


def _with_others(
    main: Source, others: Mapping[str, SourceFiles | None], options: Options, scratch: Path
) -> dict[str, Source]:
    """Open the sources of splits, and return them after the main source, with times in one type.

    They are opened before the first row is read, because the order of the times must hold across the sources.

    Raises:
        ValueError: A source cannot be used, or its times have no order with those of another.
    """
    opened = {"": main, **{split: _like_main(files, options, scratch, main) for split, files in others.items()}}
    if main.split_by.kind != "time":
        return opened
    types = {f"{split}_source" if split else "source": source.split_by.time_type for split, source in opened.items()}
    common = time_type_of_sources(main.split_by.column, types)
    return {
        split: replace(source, split_by=replace(source.split_by, time_type=common)) for split, source in opened.items()
    }


def _like_main(files: SourceFiles | None, options: Options, scratch: Path, main: Source) -> Source:
    """Open the source of a split, whose columns are read as those of the main source."""
    options = replace(options_like(options, main.columns), time_form=main.split_by.time_form, decimal=main.decimal)
    source = open_source(files, options, scratch, {}, main.task)
    return replace(source, columns=main.columns, types=main.types)


def options_like(options: Options, columns: Sequence[Column]) -> Options:
    """Return options with which a source is read that has these columns."""
    shapes = {column.name: column.shape for column in columns if column.dtype == "uint8" and len(column.shape) == 3}
    names = tuple(column.name for column in columns)
    return replace(options, columns=_declared(columns), inputs=names, image_shapes=shapes)


def kept_types(source: Source, columns: Iterable[Column]) -> dict[str, pa.DataType]:
    """Return the types of a source's kept columns as another dataset keeps them.

    Raises:
        ValueError: A column has another type, to which its values are not converted.
    """
    types = dict(source.types)
    for column in columns:
        if column.name in types and _type_name(str(types[column.name])) != _type_name(column.dtype):
            try:
                types[column.name] = _type_of(column.dtype)
            except ValueError:
                raise ValueError(
                    f"column {column.name!r} is of type {types[column.name]}, but the dataset in like keeps it as "
                    f"{column.dtype}: write it in this type"
                ) from None
    return types


def _type_name(dtype: str) -> str:
    """Return the name of a type without the names that formats give to the entries of lists."""
    return re.sub(r"list<\w+: ", "list<item: ", dtype)


def _type_of(dtype: str) -> pa.DataType:
    """Return the type with a name.

    Raises:
        ValueError: It is none of lists and types without parameters.
    """
    if entries := re.fullmatch(r"(large_)?list<\w+: (.*)>", dtype):
        return (pa.large_list if entries[1] else pa.list_)(_type_of(entries[2]))
    return pa.type_for_alias(dtype)


def _declared(columns: Iterable[Column]) -> dict[str, DeclaredKind]:
    """Return the kinds of columns, as a user would declare them."""
    return {column.name: kind for column in columns if (kind := _kind(column))}


def _kind(column: Column) -> DeclaredKind | None:
    if column.kind == "kept":
        return column.source_type or _KINDS.get(_type_name(column.dtype))
    if column.kind == "number":
        # Other rows may have few dates, whose form is not to be guessed from them.
        return f"date {form_of(column.source_type)}" if column.is_date else "number"
    return "category" if column.kind == "category" else None
