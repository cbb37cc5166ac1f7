"""The pass over a source: check every row, and keep the rows on the disk, in the form of the shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.date_columns import PlainDates, lines_about_plain_dates
from kfp_distributed.components.prepare_data.columns.dates import dates_of_two_names
from kfp_distributed.components.prepare_data.columns.look_alikes import (
    EXAMPLE_LENGTH,
    difference,
    pairs_alike,
    shown_apart,
)
from kfp_distributed.components.prepare_data.columns.source import Source
from kfp_distributed.components.prepare_data.columns.spelled_values import as_written, check_points, value_names
from kfp_distributed.components.prepare_data.pieces.growing_vocabulary import sorted_codes
from kfp_distributed.components.prepare_data.pieces.piece_codes import PieceCodes
from kfp_distributed.components.prepare_data.pieces.piece_files import PieceFiles, Pieces
from kfp_distributed.components.prepare_data.pieces.read_ahead import read_ahead
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.report.data_warnings import column_warnings
from kfp_distributed.components.prepare_data.report.label_warnings import label_warnings
from kfp_distributed.components.prepare_data.report.vocabulary import Unseen
from kfp_distributed.components.prepare_data.scan.chunk_scan import (
    ChunkScan,
    ChunkScanner,
    PartRows,
    blocks_of,
    check_distinct,
    empty_scan,
    scan_blocks,
)
from kfp_distributed.components.prepare_data.scan.scan_result import LEFT_OUT, Scan
from kfp_distributed.components.prepare_data.scan.split_keys import DRAWN, FIXED_SPLIT, group_names
from kfp_distributed.components.prepare_data.sources.chunks import CHUNK_BYTES
from kfp_distributed.components.prepare_data.sources.read_rows import RejectedRows, rows_by_column
from kfp_distributed.storage.dataset import Column

ROWS_PER_LOG_LINE = 1_000_000
"""Rows between two log lines about the progress of the pass."""


class Scanner:
    """The pass over one source or several, whose rows have the same columns.

    Args:
        source: The first source.
        pieces: Place for the rows, in the form of the shards, but for the codes of categories and label: these are in
            the order in which the values first appear.
        options: What becomes of missing values, whether the task is open, and the dataset whose classes are applied.
        chunk_bytes: Approximate size of a chunk. Default: 64 MiB.
    """

    def __init__(
        self, source: Source, pieces: Pieces, options: Options | None = None, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        options = options or Options()
        self._source, self._pieces = source, pieces
        self._options, self._chunk_bytes = options, chunk_bytes
        self._merge, self._codes, self._chunks = Merge(source, options), PieceCodes(), 0

    def add(
        self, source: Source, rejected: RejectedRows, split: int = DRAWN, *, has_fixed_splits: bool = False
    ) -> None:
        """Check all rows, count the classes, collect the vocabularies, and add the rows to the pieces.

        Args:
            source: The rows.
            rejected: Gets the rows that cannot be used.
            split: Split of all rows of the source. Default: it is drawn, or the source's column decides.
            has_fixed_splits: Whether any source has a split. Then it is recorded for each row. Default: false.

        Raises:
            ValueError: A row or column cannot be used. The message names it and what to do.
            ReadAgain: A column of numbers has codes, or the labels are numbers to predict, and the task is open.
        """
        before, progress = Counter[str](), _Progress()
        blocks = (
            (number, block)
            for number, chunk in enumerate(source.chunks(self._chunk_bytes))
            for block in blocks_of(source, chunk, rejected.policy)
        )
        with closing(read_ahead(blocks)) as ahead:
            for _, numbered in groupby(ahead, lambda item: item[0]):
                scanner = ChunkScanner(source, self._options, rejected.policy, is_start=not self._chunks)
                keep = partial(self._keep, scanner, split if has_fixed_splits else None)
                self._pieces.begin_chunk(self._chunks)
                self._codes.begin_chunk()
                found = scan_blocks(scanner, (progress.count(block) for _, block in numbered), keep)
                self._merge.add(found, rejected, before)
                self._chunks += 1
        print(f"read {progress.rows:,} rows, all", flush=True)

    def files(self) -> PieceFiles:
        """Return the rows that were added."""
        return self._pieces.files()

    def delete(self) -> None:
        """Delete the rows."""
        self._pieces.delete()

    def _keep(self, scanner: ChunkScanner, split: int | None, batch: pa.RecordBatch) -> None:
        batch = self._codes.merged(batch, scanner.vocabularies)
        if split is not None:
            batch = batch.append_column(FIXED_SPLIT, pa.array(np.full(batch.num_rows, split, np.int8)))
        self._pieces.add(batch)

    @property
    def reason(self) -> str:
        """Why the task is what it is, for the log."""
        return self._merge.reason

    def result(self, rejected: RejectedRows) -> Scan:
        """Return what all rows have shown.

        Raises:
            ValueError: Rows or the label cannot be used.
        """
        self._pieces.flush()
        return self._merge.checked_result(self._pieces.rows, rejected)


@dataclass
class _Progress:
    """Logs the number of the rows that were read."""

    rows: int = 0

    def count(self, block: PartRows) -> PartRows:
        """Count the rows of a block, with those that cannot be used, and return it."""
        before = self.rows
        self.rows += (len(block.rows.numbers) if block.rows else 0) + block.rejected.total()
        if self.rows // ROWS_PER_LOG_LINE > before // ROWS_PER_LOG_LINE:
            print(f"read {self.rows:,} rows", flush=True)
        return block


def scan(
    source: Source,
    pieces: Pieces,
    rejected: RejectedRows | None = None,
    options: Options | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Scan:
    """Check all rows of one source, and add them to the pieces, see `Scanner`."""
    scanner, rejected = Scanner(source, pieces, options, chunk_bytes), rejected or RejectedRows()
    scanner.add(source, rejected)
    return scanner.result(rejected)


class Merge:
    """What the chunks of a source, or of several with the same columns, have shown together.

    Args:
        source: The first source.
        options: Options of reading.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self._source, self._options = source, options
        self._missing = options.missing or ("keep" if source.task == "none" else "impute")
        self._all = empty_scan(source, options, options.on_bad_row)

    def lines_about_gaps(self) -> list[str]:
        """Return a line about the rows that were left out because a value is missing, if there are any."""
        return lines_about_gaps(self._all.dropped, self._all.gaps)

    def add(self, later: ChunkScan, rejected: RejectedRows, rows_before: Counter[str]) -> None:
        """Add the chunk that follows.

        Args:
            later: What its rows have shown.
            rejected: Gets the rows that cannot be used.
            rows_before: Rows of each file in the chunks before. Those of the chunk are added.

        Raises:
            ValueError: A row or column cannot be used.
            ReadAgain: The source must be read in another way.
        """
        found = self._all
        # First, because the rows that cannot be used depend on how the source is read.
        found.label.merge(later.label)
        for name, vocabulary in found.vocabularies.items():
            vocabulary.merge(later.vocabularies[name])
            check_distinct(name, vocabulary, self._options)
        for name, counts in found.counts.items():
            counts.merge(later.counts[name])
        found.groups.merge(later.groups)
        found.times.merge(later.times)
        found.rows += later.rows
        found.dropped += later.dropped
        found.gaps.update(later.gaps)
        rejected.merge(later.rejected, rows_before)
        rows_before.update(later.rows_of_files)
        if later.error:
            raise later.error

    @property
    def reason(self) -> str:
        """Why the task is what it is, for the log."""
        return self._all.label.reason()

    def checked_result(self, rows: int, rejected: RejectedRows) -> Scan:
        """Return what all rows have shown. An error says which rows were left out before it.

        Args:
            rows: Number of the usable rows.
            rejected: The rows that cannot be used.

        Raises:
            ValueError: Rows or the label cannot be used, or no row is left.
        """
        rejected.check()
        notes = [*self.lines_about_gaps(), *rejected.notes()]
        if not rows:
            raise ValueError(
                "; ".join(["no row is left", *notes]) + ". Correct the rows, or drop the columns with gaps"
            )
        return self.result(notes)

    def result(self, notes: Iterable[str] = ()) -> Scan:
        """Return what all batches have shown.

        Args:
            notes: Lines about the rows that were left out, for an error about the label. Default: none.

        Raises:
            ValueError: The label cannot be used.
        """
        counts, like = self._all.counts, self._options.like
        known = {column.name: column.vocabulary for column in like.columns} if like else {}
        names: dict[str, dict[str, str]] = {}
        for name, vocabulary in self._all.vocabularies.items():
            names[name] = value_names(vocabulary.codes, known.get(name))
            check_points(name, names[name])
            counts[name].missing = vocabulary.missing
            for text, rows in vocabulary.rows.items():
                counts[name].values[names[name][text]] += rows
        try:
            label, class_counts, spelled = self._all.label.result(like, drops_rare=self._options.rare_classes == "drop")
        except ValueError as error:
            raise ValueError("; ".join([str(error), *notes])) from error
        columns = (
            like.columns
            if like
            else tuple(
                replace(column, vocabulary=tuple(sorted(counts[column.name].values))) for column in self._source.columns
            )
        )
        is_imputed = self._missing == "impute"
        filled = {column.name for column in columns if (column.fill is not None if like else is_imputed)}
        return Scan(
            columns,
            label,
            class_counts,
            {name: count.missing for name, count in counts.items()},
            [
                *self._lines_about_rare_classes(spelled),
                *self._lines_about_groups(),
                *([] if like else self._lines_about_dates()),
                *column_warnings(
                    counts, self._all.rows, filled, is_like=like is not None, decimal=self._source.decimal
                ),
                *label_warnings(
                    label.name, dict(zip(label.classes, class_counts, strict=True)), is_like=like is not None
                ),
            ],
            tuple(name for name, count in counts.items() if count.precision.collapses()),
            self._codes(columns, names, spelled),
            self._all.dropped,
            self._all.gaps,
            self._unseen(columns) if like else (),
            self._all.groups.texts,
        )

    def _lines_about_rare_classes(self, spelled: Mapping[str, int]) -> list[str]:
        rare = [text for text in self._all.label.vocabulary.codes if text not in spelled]
        if not rare or self._options.like:
            return []
        return [
            f"left out the rows of {len(rare):,} class{'es' * (len(rare) > 1)} of one row (rare_classes), such as "
            f"{as_written(rare[0])[:EXAMPLE_LENGTH]!r}"
        ]

    def _lines_about_dates(self) -> list[str]:
        time = self._options.time_column
        is_declared = self._options.columns.get(time) == "number"
        numbers = {name: counts.plain_dates for name, counts in self._all.counts.items()}
        return lines_about_plain_dates(numbers, time, PlainDates() if is_declared else self._all.times)

    def _lines_about_groups(self) -> list[str]:
        """Return a line if two of the first groups look alike."""
        first = [*self._all.groups.first]
        groups = dict(zip(group_names(pa.array(first, pa.string())).to_pylist(), first, strict=True))
        lines = []
        if dates := dates_of_two_names(first):
            lines.append(
                f"group_column {self._source.split_by.column!r} has dates in several forms, such as {dates[0]!r} and "
                f"{dates[1]!r}, and one day can be two groups: write ISO dates in the source, so that its rows are in "
                "one split"
            )
        alike = next(pairs_alike(groups.values()), None)
        if not alike:
            return lines
        return [
            *lines,
            f"group_column {self._source.split_by.column!r} has the values {' and '.join(shown_apart(*alike))}, "
            f"{difference(*alike)}, and are two groups. If they are one value, write it in one way in the source, so "
            "that its rows are in one split",
        ]

    def _unseen(self, columns: Iterable[Column]) -> tuple[Unseen, ...]:
        found = []
        for column in columns:
            if column.kind == "category":
                present = self._all.counts[column.name].values
                values = {text: rows for text, rows in present.items() if text not in column.vocabulary}
                if values:
                    splits = ("new",) if len(values) == len(present) else ()
                    found.append(Unseen(column.name, tuple(values), sum(values.values()), splits, column.vocabulary))
        return tuple(found)

    def _codes(
        self, columns: Iterable[Column], names: Mapping[str, Mapping[str, str]], spelled: Mapping[str, int]
    ) -> dict[str, NDArray[np.int32]]:
        """Return the index in the vocabulary of each code; of the label the index of the class, or LEFT_OUT."""
        vocabularies, orders = {**self._all.vocabularies}, {}
        for column in columns:
            if column.kind == "category":
                indices = {text: index for index, text in enumerate(column.vocabulary, 1)}
                orders[column.name] = {text: indices.get(name, 0) for text, name in names[column.name].items()}
        if self._source.task == "classification":
            vocabularies[self._source.label] = vocabulary = self._all.label.vocabulary
            orders[self._source.label] = {text: spelled.get(text, LEFT_OUT) for text in vocabulary.codes}
        return {name: sorted_codes(vocabularies[name].codes, order) for name, order in orders.items()}


def lines_about_gaps(dropped: int, gaps: Mapping[str, int]) -> list[str]:
    """Return a line about the rows that were left out because a value is missing, if there are any.

    Args:
        dropped: Number of the rows.
        gaps: Those without a value of each column.
    """
    return [f"left out {dropped:,} rows in which a value is missing ({rows_by_column(gaps)})"] if dropped else []
