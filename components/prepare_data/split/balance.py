"""Whether the splits by group or time have the rows and the order that they are to have (pure)."""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from kfp_distributed.components.prepare_data.columns.source import SplitBy
from kfp_distributed.components.prepare_data.columns.split_times import time_text
from kfp_distributed.components.prepare_data.scan.split_keys import TEST, TRAIN, VALIDATION, hashes_of_texts
from kfp_distributed.components.prepare_data.split.decided_splits import GroupSplit, TimeSplit

_SPLITS = {TRAIN: "training", VALIDATION: "validation", TEST: "test"}
# A split is far from its fraction if its rows differ by more than this share of those that the fraction asks for.
_FAR = 0.5
# Errors about a value show as much of it.
_TEXT_LENGTH = 40


def balance_warnings(
    split_of: GroupSplit | TimeSplit, split_by: SplitBy, validation: float, test: float, frequent: Sequence[str]
) -> list[str]:
    """Return a line if the rows of a split differ by more than half, and by more than one row, from its fraction.

    Args:
        split_of: The split by group or time.
        split_by: The column that decides about it.
        validation: Fraction of the rows for validation.
        test: Fraction of the rows for the test.
        frequent: Values of the group column, among which are those of many rows.
    """
    rows = [split_of.rows[split] for split in _SPLITS]
    asked = [fraction * sum(rows) for fraction in (1 - validation - test, validation, test)]
    if all(abs(count - expected) <= max(1, _FAR * expected) for count, expected in zip(rows, asked, strict=True)):
        return []
    train, *others = (f"{count:,} {name}" for count, name in zip(rows, _SPLITS.values(), strict=True))
    expected = [f"{count:,.0f}" for count in asked]
    largest = split_of.largest
    value = _value(split_of, split_by, frequent)
    return [
        f"{split_by.kind}_column {split_by.column!r}: the splits have {train}, {' and '.join(others)} rows, where the "
        f"fractions ask for {expected[0]}, {expected[1]} and {expected[2]}. All {largest.rows:,} rows with {value} are "
        f"in the {_SPLITS[largest.split]} split. Change the fractions, leave some of these rows out, or name another "
        "column"
    ]


def order_warnings(times_of_pieces: Iterable[Mapping[int, tuple[int, int]]], split_by: SplitBy) -> list[str]:
    """Return a line for each source of held-out rows of which some are older than a training row.

    Args:
        times_of_pieces: The first and the last time of each split that has rows, by piece.
        split_by: The time column.
    """
    ranges: dict[int, tuple[int, int]] = {}
    for of_piece in times_of_pieces:
        for split, (first, last) in of_piece.items():
            known = ranges.get(split, (first, last))
            ranges[split] = min(first, known[0]), max(last, known[1])
    if TRAIN not in ranges:
        return []
    newest = ranges[TRAIN][1]
    texts = {split: [time_text(time, split_by.time_type) for time in times] for split, times in ranges.items()}
    return [
        f"time_column {split_by.column!r}: the {_SPLITS[split]} rows begin at {texts[split][0]}, before the last "
        f"training row, of {texts[TRAIN][1]}, so that they do not tell how well a model predicts later rows. Move the "
        "later training rows to them, or leave time_column out of split"
        for split in (VALIDATION, TEST)
        if split in ranges and ranges[split][0] < newest
    ]


def _value(split_of: GroupSplit | TimeSplit, split_by: SplitBy, frequent: Sequence[str]) -> str:
    if isinstance(split_of, TimeSplit):
        return f"the value {time_text(split_of.largest.key, split_by.time_type)!r}"
    hashes = hashes_of_texts(pa.array(frequent, pa.string())).tolist()
    names = dict(zip(hashes, frequent, strict=True))
    name = names.get(split_of.largest.key)
    return "one value" if name is None else f"the value {name[:_TEXT_LENGTH]!r}"
