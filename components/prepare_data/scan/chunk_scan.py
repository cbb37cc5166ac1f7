"""The scan of a chunk: check and count its rows, and bring them into the form of the pieces (pure).

Chunks are scanned by themselves, in any process. What they have shown is merged in their order, see `scan.Merge`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.date_columns import PlainDates
from kfp_distributed.components.prepare_data.columns.source import SPLIT_KEY, Source
from kfp_distributed.components.prepare_data.columns.spelled_values import as_written
from kfp_distributed.components.prepare_data.columns.split_times import time_numbers
from kfp_distributed.components.prepare_data.pieces.growing_vocabulary import GrowingVocabulary
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.report.data_warnings import ColumnCounts, text_form
from kfp_distributed.components.prepare_data.report.frequent_texts import FrequentTexts
from kfp_distributed.components.prepare_data.report.profile import MAXIMUM_FEATURES
from kfp_distributed.components.prepare_data.scan.label_counts import LabelCounts
from kfp_distributed.components.prepare_data.scan.split_keys import hashes_of_texts
from kfp_distributed.components.prepare_data.sources.chunks import Chunk, FilePart
from kfp_distributed.components.prepare_data.sources.read_rows import REPORTED_ROWS, ReadAgain, RejectedRows, Rows
from kfp_distributed.storage.dataset import column_matrix

MAXIMUM_DISTINCT = 1000
"""A text column with more values is a name, an address or free text rather than a category. The manifest stays small.
"""

_Problem = tuple[int, str, str]
"""A row that cannot be used: its number in the part, the column and the problem."""


class PartRows(NamedTuple):
    """Some rows of a part.

    Attributes:
        part: The part.
        rows: The rows that can be read; None after the last ones.
        counted: Number of the rows, whether they can be read or not.
        problems: The first of the rows that cannot be read, and the first of each column.
        rejected: Number of those rows by column.
        error: Why the reading ended; None if it did not.
    """

    part: FilePart
    rows: Rows | None
    counted: int
    problems: list[_Problem]
    rejected: Counter[str]
    error: Exception | None = None


@dataclass
class ChunkScan:
    """What the rows of a chunk have shown; of several chunks after `add`.

    Attributes:
        counts: Counts of each input.
        label: Counts of the label.
        vocabularies: Texts of each category.
        rejected: Rows that cannot be used, with their numbers in the parts of the chunk.
        groups: Frequent values of the group column.
        times: Numbers of the time column.
        rows: Usable rows.
        dropped: Rows that were left out because a value is missing.
        gaps: Rows without a value of each column among them.
        rows_of_files: Rows of each file, whether they can be used or not.
        error: Why the scan ended before all rows were read. It is raised when the chunks before are merged.
    """

    counts: dict[str, ColumnCounts]
    label: LabelCounts
    vocabularies: dict[str, GrowingVocabulary]
    rejected: RejectedRows
    groups: FrequentTexts = field(default_factory=FrequentTexts)
    times: PlainDates = field(default_factory=PlainDates)
    rows: int = 0
    dropped: int = 0
    gaps: Counter[str] = field(default_factory=Counter)
    rows_of_files: dict[str, int] = field(default_factory=dict)
    error: Exception | None = None


def empty_scan(
    source: Source, options: Options, policy: Literal["refuse", "skip"], *, is_start: bool = True
) -> ChunkScan:
    """Return the scan of no rows.

    Args:
        source: The source.
        options: Whether the task is open, and the columns that are declared.
        policy: What becomes of rows that cannot be used.
        is_start: Whether no rows come before. Default: true.
    """
    counts = {
        column.name: ColumnCounts(column.kind, is_date=column.is_date, is_declared=column.name in options.columns)
        for column in source.columns
    }
    label = LabelCounts(source.label, source.task, is_task_open=options.task is None, is_start=is_start)
    names = [column.name for column in source.columns if column.kind == "category"]
    return ChunkScan(counts, label, {name: GrowingVocabulary() for name in names}, RejectedRows(policy))


def scan_chunk(
    source: Source,
    chunk: Chunk,
    options: Options,
    policy: Literal["refuse", "skip"],
    keep: Callable[[pa.RecordBatch], None],
    *,
    is_start: bool = False,
) -> ChunkScan:
    """Check and count the rows of a chunk.

    Args:
        source: The source of the chunk.
        chunk: The chunk.
        options: What becomes of missing values, whether the task is open, and the dataset whose classes are applied.
        policy: What becomes of rows that cannot be used.
        keep: Gets the usable rows, with codes in the order in which the values first appear in the chunk.
        is_start: Whether no rows come before. Default: false.
    """
    scanner = ChunkScanner(source, options, policy, is_start=is_start)
    return scan_blocks(scanner, blocks_of(source, chunk, policy), keep)


def scan_blocks(scanner: ChunkScanner, blocks: Iterable[PartRows], keep: Callable[[pa.RecordBatch], None]) -> ChunkScan:
    """Check and count the blocks of a chunk up to the first error, see `scan_chunk`."""
    for block in blocks:
        batch = scanner.add(block)
        if batch is not None:
            keep(batch)
        if scanner.scan.error:
            break
    return scanner.scan


def blocks_of(source: Source, chunk: Chunk, policy: Literal["refuse", "skip"]) -> Iterator[PartRows]:
    """Yield the rows of a chunk. If they cannot be read, the last block has the error."""
    for part in chunk:
        found = _Found(policy)
        rows, error = source.rows(part, found.reject, found.count), None
        while True:
            try:
                block = next(rows, None)
            except Exception as raised:  # noqa: BLE001  (raised by the merge)
                block, error = None, raised
            yield PartRows(part, block, *found.take(), error)
            if error:
                return
            if block is None:
                break


class _Found:
    """Collects what the reader of a part tells about the rows of a block."""

    def __init__(self, policy: Literal["refuse", "skip"]) -> None:
        self._counted, self._rejected = 0, Counter[str]()
        self._problems: list[_Problem] = []
        self._most = 2 * REPORTED_ROWS
        self._all = RejectedRows(policy)

    def count(self, rows: int) -> None:
        self._counted += rows

    def reject(self, row: int, column: str, problem: str) -> None:
        self._rejected[column] += 1
        self._problems.append((row, column, problem))
        if len(self._problems) > self._most:
            self._problems = _first(self._problems)
            self._most = max(self._most, 2 * len(self._problems))
        self._all.add("", row, column, problem)

    def take(self) -> tuple[int, list[_Problem], Counter[str]]:
        """Return the rows, the first that cannot be read and their number by column since the last call."""
        taken = self._counted, self._problems, self._rejected
        self._counted, self._problems, self._rejected = 0, [], Counter()
        return taken


def _first(problems: Iterable[_Problem]) -> list[_Problem]:
    """Return the first problems, and the first of each column, in order."""
    ordered = sorted(problems)
    first = {column: (row, column, problem) for row, column, problem in reversed(ordered)}
    return sorted({*ordered[:REPORTED_ROWS], *first.values()})


class ChunkScanner:
    """Checks and counts the rows of a chunk in blocks, see `scan_chunk`.

    Attributes:
        scan: What the rows so far have shown.
        vocabularies: Texts of each category and of the label with classes.
    """

    def __init__(
        self, source: Source, options: Options, policy: Literal["refuse", "skip"], *, is_start: bool = False
    ) -> None:
        self._source, self._options = source, options
        self._missing = options.missing or ("keep" if source.task == "none" else "impute")
        self.scan = self._found = empty_scan(source, options, policy, is_start=is_start)
        self.vocabularies = self._vocabularies = {**self._found.vocabularies}
        if source.task == "classification":
            self._vocabularies[source.label] = self._found.label.vocabulary
        self._part: FilePart | None = None
        self._before = 0

    def add(self, block: PartRows) -> pa.RecordBatch | None:
        """Return the usable rows of a block in the form of the pieces, and count them; None if there is none.

        After an error, which is in the scan, no block may be added.
        """
        name, files = block.part.name, self._found.rows_of_files
        if block.part != self._part:
            self._part, self._before = block.part, files.get(name, 0)
        files[name] = files.get(name, 0) + block.counted
        try:
            if block.rows is None:
                self._reject(block, {})
                self._found.error = block.error
                return None
            return self._encode(block, block.rows)
        except (ValueError, ReadAgain) as error:
            self._found.error = error
            return None

    def _reject(self, block: PartRows, unusable: Mapping[int, tuple[str, str]]) -> None:
        """Record the rows of a block that cannot be used, in the order of their numbers."""
        problems = [*block.problems]
        if block.rows is not None:
            problems += [(int(block.rows.numbers[row]), *unusable[row]) for row in sorted(unusable)]
        for row, column, problem in sorted(problems):
            self._found.rejected.add(block.part.name, self._before + row, column, problem)
        self._found.rejected.add_unnamed(block.rejected - Counter(column for _, column, _ in block.problems))

    def _encode(self, block: PartRows, rows: Rows) -> pa.RecordBatch:
        batch = self._checked(rows.rows)
        unusable = self._unusable(batch)
        gaps = self._gaps(batch, {*unusable}) if self._missing in ("drop", "refuse") else {}
        if self._missing == "refuse":
            unusable |= {row: gap for row, gap in gaps.items() if row not in unusable}
        self._reject(block, unusable)
        self._found.dropped += len({*gaps} - {*unusable})
        if left_out := {*unusable, *gaps}:
            is_usable = np.ones(rows.rows.num_rows, bool)
            is_usable[[*left_out]] = False
            batch = self._checked(rows.rows.filter(pa.array(is_usable)))
        self._found.rows += rows.rows.num_rows - len(left_out)
        return pa.record_batch({name: self._count(name, values) for name, values in batch.items()})

    def _checked(self, rows: pa.RecordBatch) -> dict[str, _Values]:
        """Return the columns, with their numbers where these are not kept as they are."""
        return {
            name: _Values(values) if name in self._source.types else _checked(values)
            for name, values in zip(rows.schema.names, rows.columns, strict=True)
        }

    def _unusable(self, batch: Mapping[str, _Values]) -> dict[int, tuple[str, str]]:
        """Return the column and the problem of each row that cannot be used."""
        unusable: dict[int, tuple[str, str]] = {}
        for name, values in batch.items():
            if name == self._source.label:
                for row, problem in self._found.label.unusable(values.source, self._options.like).items():
                    unusable.setdefault(row, (name, problem))
            elif math.isinf(values.low) or math.isinf(values.high):
                drop = ", or name the column in drop_columns" if not self._source.has_given_kinds else ""
                advice = f"correct it, or leave it empty{drop}"
                assert values.numbers is not None
                for row in np.flatnonzero(np.isinf(values.numbers).any(axis=1)).tolist():
                    unusable.setdefault(row, (name, f"is infinite or too large for a 32-bit number: {advice}"))
        return unusable

    def _gaps(self, batch: Mapping[str, _Values], unusable: Collection[int]) -> dict[int, tuple[str, str]]:
        """Return the column and the problem of each row in which an input is missing, and count the usable ones."""
        gaps: dict[int, tuple[str, str]] = {}
        for name in self._found.counts:
            values = batch[name]
            is_missing = (
                values.source.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
                if values.numbers is None
                else np.isnan(values.numbers).any(axis=1)
            )
            missing = np.flatnonzero(is_missing).tolist()
            if rows := sum(row not in unusable for row in missing):
                self._found.gaps[name] += rows
            for row in missing:
                gaps.setdefault(row, (name, 'is missing: fill it in, or set missing to "impute" or "drop"'))
        return gaps

    def _count(self, name: str, values: _Values) -> pa.Array:
        """Count the values of a column, and return them in the form of the pieces."""
        if name == SPLIT_KEY:
            if self._source.split_by.kind == "time":
                time_type = self._source.split_by.time_type
                if not pa.types.is_timestamp(time_type):
                    self._found.times.add(time_numbers(values.source.drop_null().to_numpy(), time_type))
                return values.source
            self._found.groups.add(values.source)
            return pa.array(hashes_of_texts(values.source))
        if name in self._vocabularies:
            return self._count_texts(name, values.source)
        if name == self._source.label:
            return self._found.label.count(values.source)
        if values.numbers is None:
            self._found.counts[name].missing += values.source.is_null(nan_is_null=True).true_count
            return values.source
        counts, numbers = self._found.counts[name], values.numbers
        counts.missing += _rows_with_nan(numbers)
        if not math.isnan(values.low):
            counts.lowest, counts.highest = min(counts.lowest, values.low), max(counts.highest, values.high)
        if values.exact is not None:
            counts.precision.add(values.exact)
            counts.whole_numbers.add(values.exact)
            if not (counts.is_date or counts.is_declared):
                counts.plain_dates.add(values.exact)
            return pa.array(numbers[:, 0], from_pandas=True)
        kind = values.source.type.value_type
        if kind == pa.float64() and numbers.shape[1] <= MAXIMUM_FEATURES:
            counts.precision.add(values.source.flatten().to_numpy().reshape(numbers.shape))
        if kind == pa.uint8():
            return values.source
        return pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), numbers.shape[1])

    def _count_texts(self, name: str, texts: pa.Array) -> pa.Array:
        vocabulary = self._vocabularies[name]
        codes = vocabulary.encode(texts)
        if name == self._source.label:
            self._found.label.check()
        else:
            check_distinct(name, vocabulary, self._options)
        return pa.array(codes)


def check_distinct(name: str, vocabulary: GrowingVocabulary, options: Options) -> None:
    """Check that a category has few values, unless those of another dataset are applied.

    Raises:
        ValueError: There are more than MAXIMUM_DISTINCT.
    """
    if len(vocabulary.codes) > MAXIMUM_DISTINCT and not options.like:
        raise ValueError(
            f"column {name!r} has more than {MAXIMUM_DISTINCT} different values, of the form "
            f"{text_form(as_written(next(iter(vocabulary.codes))))!r}: name it in drop_columns, or keep it for a "
            f'function of your own by columns={{{name!r}: "text"}}'
        )


def _rows_with_nan(numbers: NDArray[np.float32]) -> int:
    if numbers.shape[1] == 1:
        return len(numbers) - int(np.count_nonzero(numbers == numbers))
    return int(np.isnan(numbers).any(axis=1).sum())


class _Values(NamedTuple):
    """A batch of values of a column.

    Attributes:
        source: The values as they are read.
        numbers: The numbers as 32-bit floats, [rows, values of a row]; None for texts. Those that are too large are
            infinite.
        exact: The numbers of a column as 64-bit floats; None for tensors and texts.
        low: The lowest number; NaN if there is none.
        high: The highest number; NaN if there is none.
    """

    source: pa.Array
    numbers: NDArray[np.float32] | None = None
    exact: NDArray[np.float64] | None = None
    low: float = math.nan
    high: float = math.nan


def _checked(values: pa.Array) -> _Values:
    """Return the numbers of values, if they are numbers."""
    is_tensor = pa.types.is_fixed_size_list(values.type)
    if values.type != pa.float64() and not is_tensor:
        return _Values(values)
    exact = None if is_tensor else values.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        numbers = column_matrix(values) if exact is None else exact.astype(np.float32)[:, np.newaxis]
    # These two ignore NaN, and return it if there is nothing else.
    low, high = (reduce(numbers, axis=None, initial=np.nan) for reduce in (np.fmin.reduce, np.fmax.reduce))
    return _Values(values, numbers, exact, float(low), float(high))
