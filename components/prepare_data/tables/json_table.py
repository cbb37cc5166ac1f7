"""JSON Lines as a table: the types of the first values decide how each column is read."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa

from kfp_distributed.components.prepare_data.columns.column_kinds import (
    KEPT_TYPES,
    TEXTS,
    column_of,
    declared_column,
    kept_type_of_texts,
)
from kfp_distributed.components.prepare_data.columns.conversations import CONVERSATION
from kfp_distributed.components.prepare_data.columns.date_columns import find_forms, open_dates
from kfp_distributed.components.prepare_data.columns.dates import are_dates
from kfp_distributed.components.prepare_data.columns.json_texts import OBJECTS
from kfp_distributed.components.prepare_data.columns.row_forms import optional_columns
from kfp_distributed.components.prepare_data.columns.split_times import time_type
from kfp_distributed.components.prepare_data.preparation_options import DeclaredKind, Options
from kfp_distributed.components.prepare_data.sources.chunks import CountRows, FilePart, ignore_count, whole_file
from kfp_distributed.components.prepare_data.sources.left_out import lines_about_keys
from kfp_distributed.components.prepare_data.sources.read_rows import Reject, Rows, ignore, read_errors, read_rows
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.prepare_data.tables.json_files import (
    JSON_TEXT,
    fit,
    json_parts,
    line_blocks,
    objects,
    read_json,
)
from kfp_distributed.components.prepare_data.tables.table_format import Chosen
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks
from kfp_distributed.storage.dataset import JSON_KINDS, Column, Task

FIRST_BYTES = 2**20
"""Bytes of a file whose keys and values are its first ones, as in CSV files."""

_DEEPEST = 100  # Levels of lists. The read of a row with more may be refused.
_OBJECT = pa.struct([])
"""Stands for the type of objects, whatever their keys are."""


class JsonTable:
    """Files of JSON Lines, see `TableFormat`.

    Args:
        options: Kinds of columns, and columns to drop.
    """

    may_lack_columns = True
    index_type = pa.float64()
    names_advice = ""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._later_keys: dict[str, dict[str, None]] = {}
        self._names: dict[SourcePath, list[str]] = {}
        self._exact: list[str] = []

    def names(self, file: SourcePath) -> list[str]:
        """Return the keys of the first lines, in the order in which they first appear."""
        if file not in self._names:
            block = next(line_blocks(whole_file(file), FIRST_BYTES), b"")
            self._names[file] = [*dict.fromkeys(key for row in objects(block) for key in row)]
        return self._names[file]

    def parts(self, file: SourcePath, most: int, run: RunTasks | None = None) -> list[FilePart]:
        """Return ranges of bytes of a file, which end with a line."""
        return json_parts(file, most)

    def read(
        self, part: FilePart, types: Mapping[str, pa.DataType], reject: Reject, count_rows: CountRows = ignore_count
    ) -> Iterator[Rows]:
        """Yield the rows. Without types, the rows have one column of no values, unless all lines are unusable."""
        later = self._later_keys.setdefault(part.name, {})

        def note_keys(keys: list[str]) -> None:
            later.update(dict.fromkeys(keys))

        # A column of any type is needed to count the rows.
        exact = [name for name in self._exact if name in types]
        can_drop = self._options.like is None
        return read_json(part, types or {"": pa.null()}, reject, note_keys, count_rows, exact, can_drop=can_drop)

    def choose(
        self,
        files: Sequence[SourcePath],
        inputs: Sequence[str],
        others: Sequence[str],
        codes: Mapping[str, str],
        task: Task,
    ) -> Chosen:
        """Choose by the first values how the columns are read."""
        found = _survey(files, [*inputs, *others])
        needed = open_dates(self._options)
        first = {
            name: texts
            for name, (kind, texts) in found.items()
            if pa.types.is_string(kind) and (name in needed or self._may_be_dates(name, texts, inputs, task))
        }
        forms = find_forms(self._options, first, partial(self._texts, files))
        dates = {name for name in first if name in forms.forms}
        columns, types = [], {}
        # Numbers that are no inputs, such as IDs of groups, need all their digits.
        kinds, time = self._options.columns, self._options.time_column
        kept = [name for name in inputs if kinds.get(name, "text" if task == "none" else "") in ("category", *TEXTS)]
        kept += [name for name in inputs if name == time and kinds.get(name) == "number"]
        whole = _whole_numbers(
            files, {name: kind for name in (*kept, *others) if _has_whole_numbers(kind := found[name][0])}
        )
        read_types = {name: found[name][0] if name in whole else _read_type(found[name][0], None) for name in others}
        for name in inputs:
            kind, declared = found[name][0], self._options.columns.get(name)
            is_kept = task == "none" and not declared
            if is_kept and _has_whole_numbers(kind) and name not in whole:
                kind = _with_fractions(kind)
            with read_errors(files[0].name):
                column = self._column(name, kind, is_date=name in dates, is_kept=is_kept)
            columns.append(forms.dated(column))
            read_types[name] = kind if name in whole else _read_type(kind, declared)
            if column.kind == "kept" and declared:
                types[name] = KEPT_TYPES[declared]
            elif column.kind == "kept":
                types[name] = kept_type_of_texts("date") if name in dates else kind
                read_types[name] = kind
        self._exact = [name for name in types if kinds.get(name, "text") in TEXTS and _has_floats(read_types[name])]
        of_dates = [column.name for column in columns if column.is_date]
        notes = forms.lines([name for name in of_dates if name not in self._options.columns])
        times = time_type([read_types[time]] if time else [])
        return Chosen(tuple(columns), types, read_types, notes, times, forms.form(time))

    def _may_be_dates(self, name: str, texts: pa.StringArray, inputs: Sequence[str], task: Task) -> bool:
        # Kept texts of another form stay as they are written.
        return name in inputs and name not in self._options.columns and (task != "none" or are_dates(texts))

    def _texts(self, files: Sequence[SourcePath], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for file in files:
            parts = self.read(whole_file(file), dict.fromkeys(names, pa.string()), ignore)
            yield from (rows for rows, _ in read_rows(file.name, parts))

    def _column(self, name: str, kind: pa.DataType, *, is_date: bool, is_kept: bool) -> Column:
        declared = self._options.columns.get(name)
        if _has_objects(kind) and declared not in JSON_KINDS:
            raise ValueError(
                f"column {name!r} has objects ({{...}}) inside the object of a line: write their values into keys of "
                "their own (jq: . + .KEY | del(.KEY)) or as a JSON text"
                + (
                    ""
                    if self._options.like
                    else ", or leave the column out (drop_columns). Lists of messages are kept by "
                    f'columns={{{name!r}: "{CONVERSATION}"}}, and other lists of objects by "{OBJECTS}"'
                )
            )
        if declared:
            return declared_column(name, declared)
        if is_date:
            return column_of(name, "date", is_kept=is_kept)
        return column_of(name, kind, is_kept=is_kept)

    def late_notes(self, names: Mapping[str, Sequence[str]], first: str) -> list[str]:
        """Return a line if later lines have keys that the first lines of the first file lack."""
        known = {*names[first], *optional_columns(self._options), *self._options.drop_columns}
        keys = {key for later in (*names.values(), *self._later_keys.values()) for key in later} - known
        return lines_about_keys(sorted(keys), first)

    def take_late(self) -> dict[str, dict[str, None]]:
        """Return the keys of later lines by file, and forget them."""
        found, self._later_keys = self._later_keys, {}
        return found

    def add_late(self, found: Mapping[str, Mapping[str, None]]) -> None:
        """Add keys of later lines by file."""
        for name, keys in found.items():
            self._later_keys.setdefault(name, {}).update(keys)

    def expected_bytes(self, file: SourcePath) -> int:
        """Return the approximate size of a file's rows in the shards."""
        return file.stat().st_size // 2  # Each row has the keys.


def _survey(files: Sequence[SourcePath], names: Sequence[str]) -> dict[str, tuple[pa.DataType, pa.StringArray]]:
    """Return the type of the first values of each column, null if all are missing, and the texts among them.

    Texts of blanks alone are missing, but show the type.
    """
    found: dict[str, tuple[pa.DataType, pa.StringArray]] = {}
    for file in files:
        with read_errors(file.name):
            for block in line_blocks(whole_file(file), FIRST_BYTES):
                left = [name for name in names if name not in found or _is_open(found[name][0])]
                if not left:
                    return found
                # Arrow finds fast that columns are still empty.
                if found and fit(block, dict.fromkeys(left, pa.null())):
                    continue
                rows = [*objects(block)]
                for name in left:
                    values = [value for row in rows if (value := row.get(name)) is not None]
                    if values and (name not in found or not _is_open(_type_of(values))):
                        texts = [value for value in values if isinstance(value, str) and value.strip()]
                        # Arrow takes no half of a character, which the read of the row refuses.
                        encoded = [text.encode(errors="replace") for text in texts]
                        found[name] = _type_of(values), pa.array(encoded, pa.string())
    nothing = (pa.null(), pa.array([], pa.string()))
    return {name: found.get(name, nothing) for name in names}


def _whole_numbers(files: Sequence[SourcePath], kinds: Mapping[str, pa.DataType]) -> set[str]:
    """Return the columns, of some of integers or lists of such, that have integers of 64 bits in all lines."""
    whole = {*kinds}
    for file in files:
        with read_errors(file.name):
            for block in line_blocks(whole_file(file)) if whole else ():
                # Arrow finds fast that all numbers of a block are integers.
                if not fit(block, {name: kinds[name] for name in whole}):
                    for row in objects(block):
                        whole -= {name for name in whole if not _is_whole(row.get(name))}
    return whole


def _is_whole(value: object) -> bool:
    """Return whether a value has no number other than integers of 64 bits."""
    if isinstance(value, list):
        return all(map(_is_whole, value))
    return type(value) is not float and (type(value) is not int or -(2**63) <= value < 2**63)


def _type_of(values: Sequence[Any]) -> pa.DataType:
    """Return the type that most values have; whole numbers have fractions if any number has one."""
    for depth in range(_DEEPEST):
        kinds = Counter("number" if _is_number(value) else type(value).__name__ for value in values)
        kind = kinds.most_common(1)[0][0]
        if kind == "list":
            values = [entry for value in values if type(value) is list for entry in value if entry is not None]
            if values:
                continue
        numbers = [value for value in values if _is_number(value)]
        is_whole = all(type(value) is not float and -(2**63) <= value < 2**63 for value in numbers)
        number = pa.int64() if is_whole else pa.float64()
        found = {"number": number, "list": pa.list_(pa.null()), "str": pa.string(), "bool": pa.bool_(), "dict": _OBJECT}
        return reduce(lambda entries, _: pa.list_(entries), range(depth), found[kind])
    return pa.null()  # The read of the row refuses it.


def _is_open(kind: pa.DataType) -> bool:
    """Return whether all lists were empty."""
    return _is_open(kind.value_type) if pa.types.is_list(kind) else pa.types.is_null(kind)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _has_objects(kind: pa.DataType) -> bool:
    return _has_objects(kind.value_type) if pa.types.is_list(kind) else pa.types.is_struct(kind)


def _has_whole_numbers(kind: pa.DataType) -> bool:
    return _has_whole_numbers(kind.value_type) if pa.types.is_list(kind) else pa.types.is_int64(kind)


def _has_floats(kind: pa.DataType) -> bool:
    return _has_floats(kind.value_type) if pa.types.is_list(kind) else pa.types.is_float64(kind)


def _with_fractions(kind: pa.DataType) -> pa.DataType:
    return pa.list_(_with_fractions(kind.value_type)) if pa.types.is_list(kind) else pa.float64()


def _read_type(kind: pa.DataType, declared: DeclaredKind | None) -> pa.DataType:
    """Return the type in which values are read that become numbers, categories, labels or declared kinds."""
    if declared in JSON_KINDS:
        return JSON_TEXT
    if pa.types.is_string(kind):
        return kind  # The conversion of a declared kind reads numbers, dates and lists from texts.
    if declared in TEXTS and not pa.types.is_null(kind):
        return _with_fractions(kind) if _has_whole_numbers(kind) else kind  # It makes texts of numbers, too.
    if declared == "list<float>":
        return pa.list_(pa.float64())  # Arrow reads a number that is too large for 32 bits as infinity.
    if declared and declared in KEPT_TYPES and declared != "binary":
        return KEPT_TYPES[declared]
    # Whole numbers may get fractions in a later line.
    return pa.float64() if _has_whole_numbers(kind) or pa.types.is_null(kind) else kind
