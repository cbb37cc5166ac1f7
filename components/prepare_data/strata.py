"""The rows that are drawn together: those of a class whose split is drawn, or those of a class and a split."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.pieces import Pieces
from kfp_distributed.components.prepare_data.plan import Plan, dealt, plan_split
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.scan import FIXED_SPLIT, Scan
from kfp_distributed.components.prepare_data.source import SPLIT_KEY, SplitBy
from kfp_distributed.components.prepare_data.split_balance import balance_warnings
from kfp_distributed.components.prepare_data.split_rows import (
    DRAWN,
    TEST,
    TRAIN,
    VALIDATION,
    GroupSplit,
    TimeSplit,
    split_groups,
    split_times,
)

_SPLITS = 4


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
        """Return the stratum of each row of a piece: 4 times as many as classes, by split."""
        return _strata(rows, self)


def plan_strata(pieces: Pieces, scan: Scan, split_by: SplitBy, options: Options, fixed: frozenset[int]) -> Strata:
    """Decide for each stratum how many of its rows go to each file.

    Args:
        pieces: The rows.
        scan: What the pass over the source has found.
        split_by: The column that decides about the split of a row.
        options: Fractions, seed and number of shards.
        fixed: Splits that have files of their own.

    Raises:
        ValueError: The rows cannot be divided so.
    """
    validation = 0.0 if VALIDATION in fixed else options.validation_fraction
    test = 0.0 if TEST in fixed else options.test_fraction
    label = scan.label.name
    has_classes = scan.label.task == "classification"
    names = [*((label,) if has_classes else ()), *((SPLIT_KEY,) if split_by.kind else ())]
    split_of = _split_of(pieces, split_by, validation, test, options.seed, bool(fixed))
    empty = Strata(
        (*names, *((FIXED_SPLIT,) if fixed else ())),
        len(scan.label.classes) if has_classes else 1,
        scan.codes[label] if has_classes else None,
        split_of,
        dealt(np.empty(0, np.int64), np.empty((0, 2), np.int64), options.shards),
    )
    counts = np.zeros(_SPLITS * empty.classes, np.int64)
    if empty.names:
        for rows in pieces.read(empty.names, in_order=False):
            counts += np.bincount(empty.of(rows), minlength=len(counts))
    else:
        counts[0] = pieces.rows
    plan = _plan(counts.reshape(_SPLITS, empty.classes), options, validation, test)
    warnings = balance_warnings(split_of, split_by, validation, test, scan.frequent_groups) if split_of else ()
    return replace(empty, plan=plan, warnings=tuple(warnings))


def _split_of(
    pieces: Pieces, split_by: SplitBy, validation: float, test: float, seed: int, has_fixed: bool
) -> GroupSplit | TimeSplit | None:
    """Return the splits of groups or times; None without such a column."""
    if not split_by.kind:
        return None
    names = (SPLIT_KEY, FIXED_SPLIT) if has_fixed else (SPLIT_KEY,)

    def keys() -> Iterator[NDArray[np.int64]]:
        for rows in pieces.read(names, in_order=False):
            values = rows[SPLIT_KEY].to_numpy().view(np.int64)
            yield values[rows[FIXED_SPLIT].to_numpy() == DRAWN] if has_fixed else values

    if split_by.kind == "group":
        if has_fixed:
            _refuse_shared_groups(pieces, split_by.column)
        return split_groups((batch.view(np.uint64) for batch in keys()), validation, test, seed, split_by.column)
    rows = sum(map(len, keys()))
    return split_times(keys, rows, validation, test, split_by.column)


def _refuse_shared_groups(pieces: Pieces, column: str) -> None:
    """Check that no group of a file of one split is in the file of another one.

    Raises:
        ValueError: A group is in two files.
    """
    groups = {split: np.empty(0, np.uint64) for split in (DRAWN, VALIDATION, TEST)}
    for rows in pieces.read((SPLIT_KEY, FIXED_SPLIT), in_order=False):
        keys, splits = rows[SPLIT_KEY].to_numpy(), rows[FIXED_SPLIT].to_numpy()
        for split, known in groups.items():
            groups[split] = np.union1d(known, keys[splits == split])
    names = {DRAWN: "source", VALIDATION: "validation_source", TEST: "test_source"}
    for split, other in combinations(groups, 2):
        shared = len(np.intersect1d(groups[split], groups[other]))
        if shared:
            raise ValueError(
                f"group_column {column!r}: {shared:,} of its values are in {names[split]} and in {names[other]}, so "
                "that one group would be in two datasets: remove their rows from one of the two, or leave group_column "
                "empty"
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
    return splits * strata.classes + classes


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
