"""Reads files of JSON Lines as batches of rows, and explains what is wrong with a line."""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.json_texts import TOO_DEEP, text_of_json
from kfp_distributed.components.prepare_data.columns.spelled_values import LOSES_DIGITS, MERGED_FROM, are_merged
from kfp_distributed.components.prepare_data.sources.chunks import CountRows, FilePart, ignore_count
from kfp_distributed.components.prepare_data.sources.read_rows import Reject, Rows, one_batch
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.prepare_data.sources.texts import Readable, opened_text
from kfp_distributed.components.prepare_data.tables.text_parts import first_read, text_parts

BLOCK_BYTES = 2**23
"""Bytes of a file that are parsed together, on all processors."""

JSON_TEXT = pa.large_string()
"""Type of a column that is read as the JSON texts of its values, whatever they are."""

# Arrow parses so many bytes on one processor.
_PARSED_BYTES = 2**20
# A longer line is a file without line ends.
_LINE_BYTES = 2**26
_ONE_LINE = 'write one object in each line, such as {"age": 4, "kind": "cat"}'


def json_parts(file: SourcePath, most: int) -> list[FilePart]:
    """Return the parts of a file, of about `most` bytes each."""
    return text_parts(file, BLOCK_BYTES, BLOCK_BYTES, most, "utf-8", None)


def line_blocks(part: FilePart, size: int | None = None) -> Iterator[bytes]:
    """Yield the lines of a file, which may be compressed, or of a part of it, in blocks of whole lines.

    Args:
        part: The file or the part.
        size: Approximate size of a block in bytes. Default: BLOCK_BYTES.

    Raises:
        ValueError: A line has more than 64 MiB, or the file is not JSON Lines.
    """
    size = size or BLOCK_BYTES
    with opened_text(part.file, "utf-8", part.begin, part.end) as stream:
        for index, block in enumerate(_whole_lines(stream, first_read(part.begin, size, size), size)):
            if not index and not part.begin:
                _check_start(block)
            yield block


def _whole_lines(stream: Readable, first_size: int, size: int) -> Iterator[bytes]:
    rest, next_size = b"", first_size
    while data := stream.read(next_size):
        next_size = size
        data = rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) > _LINE_BYTES:
            raise ValueError(f"a line is longer than 64 MiB: {_ONE_LINE}")
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        yield rest


def _check_start(block: bytes) -> None:
    """Check by the first lines of a file that it can be JSON Lines.

    Raises:
        ValueError: It has another format. The message says what to do.
    """
    start = block.lstrip()
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in start[:100]:
        raise ValueError("it is UTF-16 text or a binary file: write JSON as UTF-8")
    if start.startswith(b"["):
        raise ValueError(f"it is one JSON array: {_ONE_LINE} (jq -c '.[]' does so)")
    if start and start[0] == ord("{") and start.split(b"\n", 1)[0].strip() == b"{":
        raise ValueError(f"it is one JSON object over several lines: {_ONE_LINE} (jq -c . does so)")


def read_json(
    part: FilePart,
    types: Mapping[str, pa.DataType],
    reject: Reject,
    note_keys: Callable[[list[str]], None],
    count_rows: CountRows = ignore_count,
    exact: Collection[str] = (),
    *,
    can_drop: bool = True,
) -> Iterator[Rows]:
    """Yield the rows. An absent key and null are missing values.

    Args:
        part: The file, or a part of it.
        types: Columns to read and their types, at least one.
        reject: Is called for each line that does not fit, which is left out.
        note_keys: Is called with the keys of each block that are no columns.
        count_rows: Is called with the lines of each block. Default: they are not counted.
        exact: Columns of floats whose whole numbers must not lose digits. Default: none.
        can_drop: Whether a column may be named in drop_columns. Default: true.

    Raises:
        ValueError: The file is not JSON Lines.
    """
    first = 1
    written = [name for name, kind in types.items() if kind == JSON_TEXT]
    parsed = {name: kind for name, kind in types.items() if name not in written} or {"": pa.null()}
    for block in line_blocks(part):
        parser = _Parser(block, parsed, exact, can_drop=can_drop)
        numbers = parser.numbers
        count_rows(parser.lines)
        if len(numbers):
            try:
                rows = parser.rows()
            except ValueError:  # Also pa.ArrowInvalid and UnicodeDecodeError.
                rows, numbers = parser.usable_rows(first, reject)
            note_keys(parser.other_keys)
            if written:
                rows, numbers = _with_texts(rows, block.split(b"\n"), numbers, written, first, reject)
                rows = rows.select([*types])
            yield Rows(rows, first + numbers)
        first += parser.lines


def _with_texts(
    rows: pa.RecordBatch,
    lines: Sequence[bytes],
    numbers: NDArray[np.int64],
    names: Sequence[str],
    first: int,
    reject: Reject,
) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Return rows with the JSON texts of some more of their values, and their numbers.

    Args:
        rows: The rows.
        lines: Lines of the block.
        numbers: Numbers of the lines of the rows, from 0.
        names: Names of the values.
        first: Number of the first line in the file.
        reject: Is called for each line that Python cannot read, which is left out.
    """
    texts: list[list[str | None]] = []
    is_usable = np.ones(len(numbers), bool)
    for position, number in enumerate(numbers.tolist()):
        try:
            values = map(json.loads(lines[number]).get, names)
            texts.append([None if value is None else json.dumps(value) for value in values])
        except (ValueError, RecursionError):
            is_usable[position] = False
            reject(first + number, *explain(lines[number], {}))
    rows = rows.filter(pa.array(is_usable))
    for name, column in zip(names, zip(*texts, strict=True) if texts else [[]] * len(names), strict=True):
        rows = rows.append_column(name, pa.array(column, pa.string()))
    return rows, numbers[is_usable]


class _Parser:
    """Parses a block of whole lines.

    Args:
        block: The lines, as UTF-8.
        types: Columns to read and their types.
        exact: See `read_json`.
        can_drop: See `read_json`.

    Attributes:
        lines: Number of the lines.
        numbers: Numbers from 0 of the lines that are not empty.
        other_keys: Keys of the parsed lines that are no columns.
    """

    def __init__(
        self, block: bytes, types: Mapping[str, pa.DataType], exact: Collection[str], *, can_drop: bool
    ) -> None:
        self._block, self._types, self._exact, self._can_drop = block, types, exact, can_drop
        self.lines = block.count(b"\n") + (not block.endswith(b"\n"))
        has_empty = b"\n\n" in block or b"\n\r" in block or block[:1].isspace() or b"\n " in block
        self.other_keys: list[str] = []
        self.numbers: NDArray[np.int64] = np.arange(self.lines)
        if has_empty:
            self.numbers = np.array([i for i, line in enumerate(block.split(b"\n")) if line.strip()], np.int64)

    def rows(self) -> pa.RecordBatch:
        """Return the rows.

        Raises:
            ValueError: A line does not fit.
        """
        try:
            rows = _parse(self._block, self._types, "infer")
            keys = rows.schema.names
        except pa.ArrowInvalid:
            # A key that is no column may have values of several types, which only their inference refuses.
            rows = _parse(self._block, self._types, "ignore")
            keys = [key for row in objects(self._block) for key in row]
        if rows.num_rows != len(self.numbers):
            raise ValueError("a line is not one object")
        if any(_may_lose_digits(rows[name]) for name in self._exact) and re.search(rb"\d{16}", self._block):
            lines = self._block.split(b"\n")
            self._check_digits(rows, [lines[number] for number in self.numbers])
        self._note(keys)
        return rows.select([*self._types])

    def _note(self, keys: Iterable[str]) -> None:
        self.other_keys = [*dict.fromkeys(key for key in keys if key not in self._types)]

    def usable_rows(self, first: int, reject: Reject) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Return the rows that fit, and their numbers from 0.

        Args:
            first: Number of the first line of the block in the file.
            reject: Is called for each other line.
        """
        lines = self._block.split(b"\n")
        self._note(key for row in objects(self._block) for key in row)
        batches, numbers = [_empty(self._types)], []
        # Halves that do not fit are divided again, down to single lines. The last half on the stack is the first one.
        stack = [self.numbers]
        while stack:
            part = stack.pop()
            rows = self._fitting([lines[number] for number in part])
            if rows is not None:
                batches.append(rows)
                numbers.append(part)
            elif len(part) == 1:
                line = lines[part[0]]
                reject(first + int(part[0]), *explain(line, self._types, self._exact, can_drop=self._can_drop))
            else:
                middle = len(part) // 2
                stack += [part[middle:], part[:middle]]
        return one_batch(pa.Table.from_batches(batches)), np.concatenate([np.empty(0, np.int64), *numbers])

    def _fitting(self, lines: list[bytes]) -> pa.RecordBatch | None:
        """Return the rows of lines; None if one of them does not fit."""
        try:
            rows = _parse(b"\n".join(lines), self._types, "ignore")
            if rows.num_rows == len(lines):
                self._check_digits(rows, lines)
                return rows
        except ValueError:
            pass
        return None

    def _check_digits(self, rows: pa.RecordBatch, lines: Sequence[bytes]) -> None:
        """Check that no whole number of a column of floats has lost digits.

        Raises:
            ValueError: One may have.
        """
        for name in self._exact:
            values = rows[name]
            large = are_merged(values) if pa.types.is_floating(values.type) else values.is_valid()
            for row in np.flatnonzero(large.to_numpy(False)).tolist() if _may_lose_digits(values) else ():
                if _loses_digits(json.loads(lines[row])[name]):
                    raise ValueError(f"column {name!r} has {LOSES_DIGITS}")


def _parse(lines: bytes, types: Mapping[str, pa.DataType], other_keys: str) -> pa.RecordBatch:
    """Parse lines.

    Raises:
        ValueError: A line does not fit.
    """
    if not lines.isascii():
        lines.decode()  # Arrow does not check it.
    try:
        return _parse_in_parts(lines, types, other_keys, _PARSED_BYTES)
    except pa.ArrowInvalid as error:
        if "straddl" not in str(error):
            raise
        return _parse_in_parts(lines, types, other_keys, len(lines) + 1)  # A line is longer than a part.


def _parse_in_parts(lines: bytes, types: Mapping[str, pa.DataType], other_keys: str, size: int) -> pa.RecordBatch:
    table = pa_json.read_json(
        pa.BufferReader(lines),
        pa_json.ReadOptions(use_threads=len(lines) > size, block_size=size),
        pa_json.ParseOptions(explicit_schema=pa.schema(types), unexpected_field_behavior=other_keys),
    )
    return one_batch(table)


def objects(block: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of lines, without the lines that have none."""
    for line in block.split(b"\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def fit(block: bytes, types: Mapping[str, pa.DataType]) -> bool:
    """Return whether the values of some columns have these types in all lines."""
    try:
        _parse(block, types, "ignore")
    except ValueError:
        return False
    return True


def _empty(types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], pa.schema(types))


def _may_lose_digits(values: pa.Array) -> bool:
    """Return whether floats, also in lists, are so large that whole numbers may have lost digits."""
    while pa.types.is_list(values.type):
        values = values.flatten()
    return bool(are_merged(values).true_count)


def _loses_digits(value: object) -> bool:
    """Return whether a JSON value is or has a whole number that 64-bit floats may not have."""
    if isinstance(value, list):
        return any(map(_loses_digits, value))
    return type(value) is int and abs(value) >= MERGED_FROM[pa.float64()]


def explain(
    line: bytes, types: Mapping[str, pa.DataType], exact: Collection[str] = (), *, can_drop: bool = True
) -> tuple[str, str]:
    """Return the column ("" for the whole line) and the problem of a line that does not fit, see `read_json`."""
    drop = ", or name the column in drop_columns" if can_drop else ""
    try:
        values = json.loads(line.decode(), object_pairs_hook=_Pairs, parse_float=_in_range)
    except UnicodeDecodeError:
        return "", "is not UTF-8: write JSON as UTF-8"
    except json.JSONDecodeError as error:
        return "", f"is no JSON ({str(error)[:100]}): {_ONE_LINE}"
    except ValueError as error:
        return "", f"has a number that cannot be read ({str(error)[:100]}): write it as a text, or leave the row out"
    except RecursionError:
        return "", TOO_DEEP
    if not isinstance(values, _Pairs):
        return "", f"is {line.decode()[:40]!r}, which is no object: {_ONE_LINE}"
    seen = set()
    for key, value in values:
        if key in seen:
            return key, "occurs twice in the line: remove one of them"
        seen.add(key)
        text = json.dumps(_plain(value))
        try:
            text_of_json(_plain(value))
        except ValueError as error:
            return key, str(error)
        if key in types and not fit(f"{{{json.dumps(key)}: {text}}}".encode(), {key: types[key]}):
            return key, (
                f"is {text[:40]}, but {_KINDS.get(str(types[key]), str(types[key]))} "
                f"in the {'first lines' if can_drop else 'training data'}: write values of one type in all lines{drop}"
            )
        if key in exact and _loses_digits(value):
            return key, f"is {text[:40]}, {LOSES_DIGITS}: write texts in all lines{drop}"
    return "", f"cannot be read: {_ONE_LINE}"


def _in_range(text: str) -> float:
    """Return a number, if 64-bit floats have it. Arrow refuses a line that has another one."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large for a 64-bit float")
    return number


class _Pairs(list[tuple[str, Any]]):
    """Keys and values of an object, as they are written."""


_KINDS = {"double": "numbers", "int64": "whole numbers", "string": "texts", "bool": "true and false"}


def _plain(value: Any) -> Any:  # noqa: ANN401  (any JSON value)
    if isinstance(value, _Pairs):
        return {key: _plain(entry) for key, entry in value}
    return [_plain(entry) for entry in value] if isinstance(value, list) else value
