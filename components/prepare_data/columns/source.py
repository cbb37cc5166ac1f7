"""A source as batches of rows.

In a batch, a number is a float64 column (null or NaN if missing), a category is a string column, a tensor is a
fixed-size list of uint8, float32 or float64, and a kept column has its own type. The label is a string column, or a
float64 column where numbers are predicted. A reader holds about one batch in memory. Every pass yields the same rows.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_distributed.components.prepare_data.columns.column_kinds import (
    REQUIRED_TEXT,
    cast,
    cast_kept,
    plain,
    texts_of,
)
from kfp_distributed.components.prepare_data.columns.conversations import (
    CONVERSATION,
    conversation_texts,
    rows_without_text,
)
from kfp_distributed.components.prepare_data.columns.dates import (
    ISO,
    days,
    form_of,
    has_digits_alone,
    microseconds,
)
from kfp_distributed.components.prepare_data.columns.json_texts import OBJECTS, objects_text, texts_of_values
from kfp_distributed.components.prepare_data.columns.list_texts import list_of_text
from kfp_distributed.components.prepare_data.columns.python_values import python_values
from kfp_distributed.components.prepare_data.columns.row_forms import check_preferences
from kfp_distributed.components.prepare_data.columns.spelled_values import POINT_OF_TEXT, are_merged, number_names
from kfp_distributed.components.prepare_data.columns.split_times import DATES, is_number, time_keys
from kfp_distributed.components.prepare_data.sources.chunks import (
    CHUNK_BYTES,
    Chunk,
    CountRows,
    FilePart,
    ReadPart,
    chunks_of,
)
from kfp_distributed.components.prepare_data.sources.read_rows import (
    LateFindings,
    Reject,
    RejectedRows,
    Rows,
    read_rows,
)
from kfp_distributed.components.worker_pool.piece_tasks import RunTasks
from kfp_distributed.storage.dataset import Column, Task
from kfp_distributed.storage.errors import one_line

_EXAMPLE = datetime(2024, 1, 31, tzinfo=UTC)

SPLIT_KEY = "\0split"
"""Name of a column of batches and pieces: what decides about the split of a row. No source has such a column."""


@dataclass(frozen=True)
class SplitBy:
    """The column that decides about the split of a row.

    Attributes:
        column: Name of the column; "" for none.
        kind: "group": rows with equal values are in one split. "time": the newest rows are the test split.
        time_type: Type in which times are compared, see `split_times.time_type`. Default: dates.
        time_form: Form of the dates of groups or times, in texts or in the digits of numbers. Default: ISO.
    """

    column: str = ""
    kind: Literal["", "group", "time"] = ""
    time_type: pa.DataType = DATES
    time_form: str = ISO


@dataclass(frozen=True)
class Source:
    """Reader of one source.

    Attributes:
        columns: Inputs with their kinds, still without vocabularies and statistics.
        label: Name of the label; "" if there is nothing to predict.
        parts: Function that returns the parts of all files, of about so many bytes each as it gets. It also gets what
            runs tasks, or None.
        read: Function that yields the rows of a part with at least these columns, in the file's types.
        notes: Lines about the files and columns of the source that are left out, for log and overview.
        expected_bytes: Approximate size of all rows in the shards.
        task: What is predicted. For "classification" labels are texts, for "regression" numbers.
        types: Types of the kept columns.
        split_by: The column that decides about the split of a row.
        late_notes: Function that returns lines like `notes` that are known only after all rows were read.
        late_findings: What the reader notes for these lines; None for nothing.
        is_portable: Whether the source can be pickled, to be read by other processes. Arrays in a file are not,
            because a pickle has all their values.
        file_of_row: Function that returns the name of the file that a row is, by its index in the source; None where a
            file has several rows.
        has_given_kinds: Whether another source, or the dataset in like, decides the inputs and their kinds. Then no
            parameter changes them, and errors do not name one.
        decimal: Character before the fraction of a number in a text.
    """

    columns: tuple[Column, ...]
    label: str
    parts: Callable[[int, RunTasks | None], Iterable[FilePart]]
    read: ReadPart
    notes: tuple[str, ...] = ()
    expected_bytes: int = 0
    task: Task = "classification"
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    split_by: SplitBy = field(default_factory=SplitBy)
    late_notes: Callable[[], Iterable[str]] = tuple
    late_findings: LateFindings | None = None
    is_portable: bool = True
    file_of_row: Callable[[int], str] | None = None
    has_given_kinds: bool = False
    decimal: str = "."

    def chunks(self, size: int = CHUNK_BYTES, run: RunTasks | None = None) -> list[Chunk]:
        """Return what tasks read. It depends on the files alone.

        Args:
            size: Approximate size of a chunk in bytes.
            run: Runs tasks that find where texts can be divided. Default: this process finds it.

        Raises:
            ValueError: A file is damaged.
        """
        return chunks_of(self.parts(size, run), size)

    def rows(self, part: FilePart, reject: Reject, count_rows: CountRows) -> Iterator[Rows]:
        """Yield the usable rows of a part, with labels as they are spelled.

        Args:
            part: The part.
            reject: Is called for each row that cannot be read, with its number in the part.
            count_rows: Is called with the rows that were read.

        Raises:
            ValueError: A file is damaged, or a column is missing or has another type.
        """
        return read_rows(part.name, self._converted(self.read(part, reject, count_rows), reject))

    def batches(self, rejected: RejectedRows | None = None, size: int = CHUNK_BYTES) -> Iterator[tuple[str, Rows]]:
        """Yield all usable rows, with their numbers in the file, and the name of the file they are in.

        Args:
            rejected: Gets the rows that cannot be read. Default: they are refused.
            size: Approximate size of a chunk in bytes.

        Raises:
            ValueError: A file is damaged, or a column is missing or has another type.
        """
        rejected, before = rejected or RejectedRows(), Counter[str]()
        for part in chain.from_iterable(self.chunks(size)):
            counted: list[int] = []
            found = RejectedRows("skip")
            for rows, numbers in self.rows(part, partial(found.add, part.name), counted.append):
                yield part.name, Rows(rows, before[part.name] + numbers)
            rejected.merge(found, before)
            before[part.name] += sum(counted)

    def _converted(self, parts: Iterable[Rows], reject: Reject) -> Iterator[Rows]:
        """Yield rows with the values in the types of a batch."""
        for part, numbers in parts:
            part = pa.record_batch([*map(plain, part.columns)], names=part.schema.names)
            converter, rows, key = _Converter(has_given_kinds=self.has_given_kinds), {}, None
            # First, because the advice for a wrong time is not that for a wrong input, and a column may be both.
            if self.split_by.kind:
                key = converter.split_key(self.split_by, part[self.split_by.column])
            if self.label:
                values = part[self.label]
                if self.task == "regression":
                    rows[self.label] = converter.numbers(self.label, values)
                else:
                    rows[self.label] = converter.names(self.label, values)
            for column in self.columns:
                rows[column.name] = converter.column(column, part[column.name], self.types.get(column.name))
            if not self.label:
                converter.check_preferences(self.columns, rows)
            if key is not None:
                rows[SPLIT_KEY] = key
            batch = pa.record_batch(rows)
            if converter.problems:
                for row in sorted(converter.problems):
                    reject(int(numbers[row]), *converter.problems[row])
                is_usable = np.ones(len(numbers), bool)
                is_usable[[*converter.problems]] = False
                batch, numbers = batch.filter(pa.array(is_usable)), numbers[is_usable]
            yield Rows(batch, numbers)


class _Converter:
    """Converts the columns of a batch.

    Args:
        has_given_kinds: See `Source`.

    Attributes:
        problems: Column and problem of each row that cannot be converted.
    """

    def __init__(self, *, has_given_kinds: bool) -> None:
        self._has_given_kinds = has_given_kinds
        self.problems: dict[int, tuple[str, str]] = {}

    def column(self, column: Column, values: pa.Array, kept_type: pa.DataType | None) -> pa.Array:
        """Return the values of an input."""
        name, can_declare = column.name, not self._has_given_kinds
        if column.source_type == CONVERSATION:
            return conversation_texts(name, values, self._add, can_declare=can_declare)
        if column.source_type == OBJECTS:
            return texts_of_values(name, values, self._add, partial(objects_text, name, can_declare=can_declare))
        if kept_type is not None:
            kept = self._kept(name, values, kept_type)
            for row in rows_without_text(kept) if column.source_type == REQUIRED_TEXT else ():
                self._add(row, name, "is empty: fill it in, or leave the row out")
            return kept
        if column.shape:
            return values
        if column.is_date:
            return days(self._microseconds(column.name, values, form_of(column.source_type)))
        if column.kind == "number":
            return self.numbers(column.name, values)
        return self.names(column.name, values)

    def check_preferences(self, columns: Sequence[Column], rows: Mapping[str, pa.Array]) -> None:
        """Check converted rows whose answers may be preferences."""
        check_preferences(columns, rows, self._add)

    def names(self, name: str, values: pa.Array) -> pa.StringArray:
        """Return values of a label, a category or a group as texts."""
        if pa.types.is_floating(values.type):
            for row in _rows(are_merged(values)):
                self._add(
                    row,
                    name,
                    f"is {values[row]}, read as a float, in which different whole numbers of such a size are equal: "
                    "write it as a text, or write whole numbers below 2⁶³ in all rows",
                )
        return texts_of(name, values, can_drop=not self._has_given_kinds)

    def numbers(self, name: str, values: pa.Array) -> pa.Array:
        """Return values as float64."""
        return cast(name, values, "number", can_drop=not self._has_given_kinds)

    def split_key(self, split_by: SplitBy, values: pa.Array) -> pa.Array:
        """Return what decides about the split: the text of a group, or an integer in the order of the times."""
        if split_by.kind == "group":
            # Which other values the column has is not known yet. Groups that become one stay in one split.
            if split_by.time_form == ISO:
                key = number_names(pc.utf8_trim_whitespace(self.names(split_by.column, values)), of_any_form=True)
                key = pc.replace_substring(key, POINT_OF_TEXT, ".")
            else:
                times = self._microseconds(split_by.column, values, split_by.time_form, is_needed=True)
                key = times.cast(pa.timestamp("us")).cast(pa.string())
        elif split_by.time_type == DATES:
            key = self._microseconds(split_by.column, values, split_by.time_form, is_needed=True)
        else:
            key = time_keys(values, split_by.time_type)
        for row in _rows(key.is_null()):
            self._add(row, split_by.column, f"is missing, and it is the {split_by.kind}_column: fill it in")
        return key

    def _microseconds(self, name: str, values: pa.Array, form: str = ISO, *, is_needed: bool = False) -> pa.Int64Array:
        are_numbers = is_number(values.type) and has_digits_alone(form)
        if are_numbers:
            values = number_names(self.names(name, values), of_any_form=True)
        if not re.match("date|timestamp|string|large_string|null", str(values.type)):
            raise ValueError(
                f"column {name!r} has values of type {values.type}, where dates and times or their texts are needed: "
                f"write dates{'' if self._has_given_kinds else ', or declare another kind in columns'}"
            )
        numbers, unusable = microseconds(values, form)
        shown = "2024-01-31 or 2024-01-31T12:00:00Z" if form == ISO else f"{form}, such as {_EXAMPLE.strftime(form)}"
        advice = "correct it, or write its digits as a text" if are_numbers else "correct it"
        advice += "" if is_needed else ", or leave it empty"
        if self._has_given_kinds:
            shown += ", as the training rows have"
        elif form == ISO:
            advice += f', or name its form, a format of strptime: columns={{{name!r}: "date FORM"}}'
        for row in unusable.tolist():
            self._add(row, name, f"is {str(values[row])[:40]!r}, which is no date of the form {shown}: {advice}")
        return numbers

    def _kept(self, name: str, values: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return values of a column that keeps its type. Lists may be JSON texts."""
        if values.type == kind:
            return values
        if pa.types.is_list(kind) and pa.types.is_string(values.type):
            return self._lists(name, values, kind)
        if pa.types.is_timestamp(kind) and pa.types.is_string(values.type):
            return self._microseconds(name, values).cast(kind)
        try:
            return cast_kept(values, kind)
        except pa.ArrowInvalid:
            return self._fitting(name, values, kind)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise ValueError(
                f"column {name!r} has values of type {values.type}, not {kind}: {one_line(error)}. "
                + (
                    "Write this type in all files"
                    if self._has_given_kinds
                    else "Declare another kind in columns, or leave the column out (drop_columns)"
                )
            ) from None

    def _fitting(self, name: str, values: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return values in another type, with null in the place of those that it does not hold."""
        parts = []
        # Halves that do not fit are divided again, down to single values. The last half on the stack is the first one.
        stack, is_nested = [range(len(values))], pa.types.is_nested(values.type)
        while stack:
            rows = stack.pop()
            # A cast of a slice of lists also casts the entries of the rows beside it.
            part = values.take(pa.array(rows)) if is_nested else values[rows.start : rows.stop]
            try:
                parts.append(cast_kept(part, kind))
                continue
            except pa.ArrowInvalid:
                middle = len(rows) // 2
            if middle:
                stack += [rows[middle:], rows[:middle]]
                continue
            parts.append(pa.nulls(1, kind))
            value = str(python_values(part)[0])[:40]
            self._add(
                rows.start,
                name,
                f"is {value} ({values.type}), which does not fit the type of the column, {kind}: "
                + (
                    "write this type in all files"
                    if self._has_given_kinds
                    else "write one type in all files, declare its kind in columns, or leave the column out "
                    "(drop_columns)"
                ),
            )
        return pa.concat_arrays(parts)

    def _lists(self, name: str, texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
        lists: list[object] = []
        for row, text in enumerate(texts.to_pylist()):
            try:
                lists.append(None if text is None else list_of_text(text, kind.value_type))
            except ValueError as error:
                lists.append(None)
                self._add(row, name, str(error))
        return pa.array(lists, kind)

    def _add(self, row: int, column: str, problem: str) -> None:
        self.problems.setdefault(row, (column, problem))


def _rows(is_true: pa.BooleanArray) -> list[int]:
    return [int(row) for row in np.flatnonzero(is_true.to_numpy(zero_copy_only=False))]
