"""The rows that are drawn together: those of a class whose split is drawn, or those of a class and a split."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, compress
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.columns.source import SPLIT_KEY, SplitBy
from kfp_distributed.components.prepare_data.pieces.piece_files import PieceFiles
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.scan.scan_result import LEFT_OUT, Scan
from kfp_distributed.components.prepare_data.scan.split_keys import DRAWN, FIXED_SPLIT, TEST, TRAIN, VALIDATION
from kfp_distributed.components.prepare_data.sources.left_out import first_names
from kfp_distributed.components.prepare_data.split.balance import balance_warnings, order_warnings
from kfp_distributed.components.prepare_data.split.decided_splits import (
    GroupSplit,
    RowsOfGroups,
    TimeSplit,
    count_groups,
    split_groups,
    split_times,
)
from kfp_distributed.components.prepare_data.split.plan import Plan, dealt, plan_split
from kfp_distributed.components.worker_pool.piece_tasks import Result, RunTasks, run_here, run_in_groups

_SPLITS = 4


@dataclass(frozen=True)
class StrataRows:
    """Rows of each stratum in a piece, without the strata that have none there.

    Attributes:
        strata: The strata, sorted.
        rows: Number of rows of each one.
    """

    strata: NDArray[np.uint32]
    rows: NDArray[np.uint32]


@dataclass(frozen=True)
class CountsFile:
    """The rows of the strata of each piece in a file. All pieces together have up to a gigabyte of them.

    Attributes:
        path: The file.
        strata: Number of strata of each piece, by the number of the piece.
    """

    path: Path
    strata: dict[int, int]

    def add(self, piece: int, counts: StrataRows) -> None:
        """Append the rows of a piece, which follows the one before."""
        self.strata[piece] = len(counts.strata)
        with self.path.open("ab") as file:
            file.write(np.concatenate([counts.strata, counts.rows]).tobytes())

    def read(self) -> Iterator[tuple[int, StrataRows]]:
        """Yield the number of each piece with its rows, in order."""
        with self.path.open("rb") as file:
            for piece, count in self.strata.items():
                strata, rows = np.fromfile(file, np.uint32, 2 * count).reshape(2, count)
                yield piece, StrataRows(strata, rows)


@dataclass(frozen=True)
class Strata:
    """Strata of rows, and where their rows go.

    A stratum is the rows of one class and one split, or of one class if the split is drawn.

    Attributes:
        names: Columns of the pieces that tell the stratum of a row.
        classes: Number of classes; 1 without classes.
        codes: Class of each code of the label in the pieces; None without classes.
        split_of: The split by group or time; None for none.
        plan: Rows of each of the 4 * classes strata in each training shard, validation and test.
        warnings: Lines about splits whose rows are far from their fractions.
    """

    names: tuple[str, ...]
    classes: int
    codes: NDArray[np.int32] | None
    split_of: GroupSplit | TimeSplit | None
    plan: Plan
    warnings: tuple[str, ...] = ()

    def of(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the stratum of each row of a piece: 4 times as many as classes, by split. LEFT_OUT for none."""
        return _strata(rows, self)

    def counts(self, rows: pa.RecordBatch) -> StrataRows:
        """Return the rows of each stratum in a piece."""
        of_rows = self.of(rows)
        counts = np.bincount(of_rows[of_rows != LEFT_OUT])
        strata = np.flatnonzero(counts)
        return StrataRows(strata.astype(np.uint32), counts[strata].astype(np.uint32))


def plan_strata(
    pieces: PieceFiles,
    scan: Scan,
    split_by: SplitBy,
    options: Options,
    fixed: frozenset[int],
    run: RunTasks = run_here,
    folder: Path | None = None,
) -> tuple[Strata, CountsFile]:
    """Decide for each stratum how many of its rows go to each file.

    Args:
        pieces: The rows.
        scan: What the pass over the source has found.
        split_by: The column that decides about the split of a row.
        options: Fractions, seed and number of shards.
        fixed: Splits that have files of their own.
        run: Runs a function for each piece. Default: in this process.
        folder: Folder for the counts of the pieces. Default: that of the pieces.

    Returns:
        The strata, and a file of the rows of each stratum by piece.

    Raises:
        ValueError: The rows cannot be divided so.
    """
    validation = 0.0 if VALIDATION in fixed else options.validation_fraction
    test = 0.0 if TEST in fixed else options.test_fraction
    label = scan.label.name
    has_classes = scan.label.task == "classification"
    names = [*((label,) if has_classes else ()), *((SPLIT_KEY,) if split_by.kind else ())]
    codes = scan.codes[label] if has_classes else None
    rare = label if codes is not None and LEFT_OUT in codes else ""
    keys = _KeyTasks(_Keys(pieces, bool(fixed), rare, codes), run)
    split_of = _split_of(keys, split_by, validation, test, options.seed)
    empty = Strata(
        (*names, *((FIXED_SPLIT,) if fixed else ())),
        len(scan.label.classes) if has_classes else 1,
        codes,
        split_of,
        dealt(np.empty(0, np.int64), np.empty((0, 2), np.int64), options.shards),
    )
    counts, file = np.zeros(_SPLITS * empty.classes, np.int64), CountsFile((folder or pieces.folder) / "counts", {})
    file.path.unlink(missing_ok=True)
    for piece, of_piece in zip(pieces.numbers, _counts_of_pieces(pieces, empty, run), strict=True):
        counts[of_piece.strata] += of_piece.rows
        file.add(piece, of_piece)
    plan = _plan(counts.reshape(_SPLITS, empty.classes), options, validation, test)
    if has_classes and not options.like:
        _check_trained(label, scan.label.classes, plan)
    warnings = balance_warnings(split_of, split_by, validation, test, scan.frequent_groups) if split_of else []
    if isinstance(split_of, TimeSplit) and fixed:
        warnings += order_warnings(keys.times_of_splits(split_of), split_by)
    return replace(empty, plan=plan, warnings=tuple(warnings)), file


def _counts_of_pieces(pieces: PieceFiles, strata: Strata, run: RunTasks) -> Iterable[StrataRows]:
    if not strata.names:  # All rows are of one stratum.
        zero = np.zeros(1, np.uint32)
        return (StrataRows(zero, rows) for rows in pieces.rows[pieces.rows > 0].astype(np.uint32)[:, None])
    at_once = pieces.at_once(strata.names)
    return run_in_groups(run, partial(_count_piece, pieces, strata), pieces.numbers, at_once)


def _count_piece(pieces: PieceFiles, strata: Strata, piece: int) -> StrataRows:
    return strata.counts(pieces.read(piece, strata.names)[0])


@dataclass(frozen=True)
class _Keys:
    """The group or time of each row, without those that are left out, and the split of its file.

    Attributes:
        pieces: The rows.
        has_fixed: Whether files may have splits of their own.
        label: Name of the label, if it tells which rows are left out; else "".
        codes: Class of each code of the label, or LEFT_OUT.
    """

    pieces: PieceFiles
    has_fixed: bool
    label: str
    codes: NDArray[np.int32] | None

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that are read."""
        return (SPLIT_KEY, *((FIXED_SPLIT,) if self.has_fixed else ()), *((self.label,) if self.label else ()))

    def read(self, piece: int) -> pa.RecordBatch:
        """Return the columns of a piece."""
        rows, _ = self.pieces.read(piece, self.names)
        if self.codes is None or not self.label:
            return rows
        return rows.filter(pa.array(self.codes[rows[self.label].to_numpy()] != LEFT_OUT))


@dataclass(frozen=True)
class _KeyTasks:
    """Runs functions of the keys of each piece.

    Attributes:
        keys: The keys.
        run: Runs a function for each piece.
    """

    keys: _Keys
    run: RunTasks

    def drawn(self, function: Callable[[NDArray[np.int64]], Result]) -> Iterable[Result]:
        """Yield a function of the keys of the rows whose split no file decides, by piece."""
        return self._run(partial(_of_drawn_keys, self.keys, function))

    def groups_of_files(self) -> Iterable[Mapping[int, NDArray[np.uint64]]]:
        """Yield the groups of each split of a file, by piece."""
        return self._run(partial(_groups_of_files, self.keys))

    def times_of_splits(self, split_of: TimeSplit) -> Iterable[Mapping[int, tuple[int, int]]]:
        """Yield the first and the last time of each split that has rows, by piece."""
        return self._run(partial(_times_of_splits, self.keys, split_of))

    def _run(self, task: Callable[[int], Result]) -> Iterable[Result]:
        pieces = self.keys.pieces
        return run_in_groups(self.run, task, pieces.numbers, pieces.at_once(self.keys.names))


def _of_drawn_keys(all_keys: _Keys, function: Callable[[NDArray[np.int64]], Result], piece: int) -> Result:
    rows = all_keys.read(piece)
    keys = rows[SPLIT_KEY].to_numpy().view(np.int64)
    return function(keys[rows[FIXED_SPLIT].to_numpy() == DRAWN] if all_keys.has_fixed else keys)


def _groups_of_files(all_keys: _Keys, piece: int) -> Mapping[int, NDArray[np.uint64]]:
    rows = all_keys.read(piece)
    keys, splits = rows[SPLIT_KEY].to_numpy(), rows[FIXED_SPLIT].to_numpy()
    return {split: np.unique(keys[splits == split]) for split in (DRAWN, VALIDATION, TEST)}


def _times_of_splits(all_keys: _Keys, split_of: TimeSplit, piece: int) -> Mapping[int, tuple[int, int]]:
    rows = all_keys.read(piece)
    times, splits = rows[SPLIT_KEY].to_numpy().view(np.int64), rows[FIXED_SPLIT].to_numpy()
    splits = np.where(splits == DRAWN, split_of.of(times), splits)
    found = {split: times[splits == split] for split in (TRAIN, VALIDATION, TEST)}
    return {split: (int(each.min()), int(each.max())) for split, each in found.items() if len(each)}


def _split_of(
    tasks: _KeyTasks, split_by: SplitBy, validation: float, test: float, seed: int
) -> GroupSplit | TimeSplit | None:
    """Return the splits of groups or times; None without such a column.

    All different groups are in memory at once, in 16 bytes each, and so are those of one piece.
    """
    if not split_by.kind:
        return None
    if split_by.kind == "time":
        return split_times(tasks.drawn, validation, test, split_by.column)
    if tasks.keys.has_fixed:
        _refuse_shared_groups(tasks.groups_of_files(), split_by.column)
    groups = RowsOfGroups()
    for of_piece in tasks.drawn(count_groups):
        groups = groups.merged(of_piece)
    return split_groups(groups, validation, test, seed, split_by.column)


def _refuse_shared_groups(groups_of_pieces: Iterable[Mapping[int, NDArray[np.uint64]]], column: str) -> None:
    """Check that no group of a file of one split is in the file of another one.

    Raises:
        ValueError: A group is in two files.
    """
    groups = {split: np.empty(0, np.uint64) for split in (DRAWN, VALIDATION, TEST)}
    for of_piece in groups_of_pieces:
        groups = {split: np.union1d(known, of_piece[split]) for split, known in groups.items()}
    names = {DRAWN: "source", VALIDATION: "validation_source", TEST: "test_source"}
    for split, other in combinations(groups, 2):
        shared = len(np.intersect1d(groups[split], groups[other]))
        if shared:
            raise ValueError(
                f"group_column {column!r}: {shared:,} of its values are in {names[split]} and in {names[other]}, so "
                "that one group would be in two datasets: remove their rows from one of the two, or leave group_column "
                "out of split"
            )


def _check_trained(label: str, classes: Sequence[str], plan: Plan) -> None:
    """Check that each split with rows has some of a class of the training rows.

    Args:
        label: Name of the label.
        classes: The classes.
        plan: Rows of each of the 4 * classes strata.

    Raises:
        ValueError: All classes of a split are in no training row.
    """
    is_trained = plan.train.reshape(_SPLITS, -1).sum(axis=0) > 0
    held_out = plan.held_out.reshape(_SPLITS, -1, 2).sum(axis=0)
    for split, rows in zip(("validation", "test"), held_out.T, strict=True):
        if rows.any() and not rows[is_trained].any():
            found, trained = (first_names([*compress(classes, some)]) for some in (rows > 0, is_trained))
            raise ValueError(
                f"no row of the {split} split has a class of the training rows, so that every score would be 0: "
                f"label_column {label!r} has {found} there, and {trained} in the training rows. Write the classes in "
                "one way in all files, or choose splits that share them"
            )


def _strata(rows: pa.RecordBatch, strata: Strata) -> NDArray[np.int64]:
    classes = np.zeros(rows.num_rows, np.int64)
    if strata.codes is not None:
        classes += strata.codes[rows[strata.names[0]].to_numpy()]
    splits = np.full(rows.num_rows, DRAWN, np.int64)
    if strata.split_of is not None:
        keys = rows[SPLIT_KEY].to_numpy()
        of = strata.split_of
        # The group of a row whose file decides may be unknown. Its split is overwritten below.
        splits = (of.of(keys) if isinstance(of, TimeSplit) else of.of(keys.view(np.uint64))).astype(np.int64)
    if FIXED_SPLIT in strata.names:
        fixed = rows[FIXED_SPLIT].to_numpy()
        splits = np.where(fixed == DRAWN, splits, fixed)
    return np.where(classes == LEFT_OUT, LEFT_OUT, splits * strata.classes + classes)


def _plan(counts: NDArray[np.int64], options: Options, validation: float, test: float) -> Plan:
    """Return the rows of each stratum in each file.

    Args:
        counts: Rows of each split and class, [4, classes].
        options: Number of shards.
        validation: Fraction of the drawn rows for validation.
        test: Fraction of the drawn rows for the test.
    """
    shards, classes = options.shards, counts.shape[1]
    train, held_out = np.zeros_like(counts), np.zeros((_SPLITS, classes, 2), np.int64)
    if counts[DRAWN].any():
        fractions = replace(options, validation_fraction=validation, test_fraction=test)
        drawn = plan_split(counts[DRAWN].tolist(), fractions)
        train[DRAWN], held_out[DRAWN] = drawn.train, drawn.held_out
    train[TRAIN], held_out[VALIDATION, :, 0], held_out[TEST, :, 1] = counts[TRAIN], counts[VALIDATION], counts[TEST]
    if not options.like and train.sum() < shards:
        raise ValueError(f"shards is {shards}, but only {train.sum()} rows are for training: lower shards")
    return dealt(train.reshape(-1), held_out.reshape(-1, 2), shards)
