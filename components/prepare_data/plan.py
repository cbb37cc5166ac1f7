"""The number of rows of each class in each file (pure)."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product

from kfp_distributed.components.prepare_data.preparation_options import Options


def order_classes(counts: Mapping[str, int], label: str) -> tuple[str, ...]:
    """Return the label's values in order: numbers by value, other texts alphabetically.

    Args:
        counts: Rows of each value.
        label: Name of the label, for errors.

    Raises:
        ValueError: There is one class only, or a class has one row only.
    """
    try:
        numbers = {name: float(name) for name in counts}
    except ValueError:
        numbers = {}
    classes = tuple(sorted(counts, key=lambda name: (numbers.get(name, 0.0), name)))
    if len(classes) < 2:
        raise ValueError(f"label_column {label!r} has the classes {list(classes)}: two or more are needed")
    rare = [name for name in classes if counts[name] == 1]
    if rare and numbers:
        raise ValueError(
            f"label_column {label!r} has {len(classes)} different numbers, {len(rare)} of them in one row only "
            f'(such as {rare[0]}): if they are quantities, set task to "regression". If they are classes, add rows of '
            "the rare ones or leave those out; each class needs two rows"
        )
    if rare:
        raise ValueError(
            f"label_column {label!r}: {rare[0][:40]!r} has one row only (classes of one row: {len(rare)}): add rows or "
            "leave it out; each class needs two rows"
        )
    return classes


def plan_split(class_counts: Sequence[int], options: Options) -> tuple[tuple[int, ...], ...]:
    """Plan how many rows of each class go to each training shard and to the validation and test datasets.

    Args:
        class_counts: Rows of each class.
        options: Fractions and number of shards.

    Returns:
        For each class the rows of each training shard, of validation and of test. Each split gets its fraction of
        every class, rounded up or down, and its fraction of all rows within less than two rows. A split gets fewer
        rows where a class would keep no row for training. The training shards differ by at most one row.

    Raises:
        ValueError: A split with a fraction above 0 gets no row, or there are fewer training rows than shards.
    """
    shards, plan, dealt = options.shards, [], 0
    held_out = plan_held_out(class_counts, options.validation_fraction, options.test_fraction)
    for count, parts in zip(class_counts, held_out, strict=True):
        train = count - sum(parts)
        # Rows are dealt to the shards in turn. Each class begins at the shard after the last row of the previous one.
        plan.append((*(train // shards + ((i - dealt) % shards < train % shards) for i in range(shards)), *parts))
        dealt += train
    rows = sum(class_counts)
    *train_rows, validation, test = map(sum, zip(*plan, strict=True))
    for name, fraction, part in (
        ("validation", options.validation_fraction, validation),
        ("test", options.test_fraction, test),
    ):
        if fraction and not part:
            reason = "less than one row" if fraction * rows < 1 else "no row, because each class keeps one for training"
            raise ValueError(f"{name}_fraction {fraction:g} of {rows} rows is {reason}: set it to 0 or to more")
    if not all(train_rows) and options.validation_fraction + options.test_fraction < 1:
        raise ValueError(f"shards is {shards}, but only {dealt} rows are for training: lower shards")
    return tuple(plan)


def plan_held_out(class_counts: Sequence[int], validation: float, test: float) -> list[tuple[int, int]]:
    """Return the rows of each class for validation and for the test.

    Both numbers, and what remains for training, are the fractions of the class, rounded up or down. Each class keeps a
    row for training.

    Args:
        class_counts: Rows of each class.
        validation: Fraction of the rows for validation.
        test: Fraction of the rows for the test.
    """
    # 0.1 means one tenth, which no float is. A class of 30 rows would be rounded as one of 30.000000000000004.
    shares = [Fraction(str(validation)), Fraction(str(test))]
    shares.append(1 - shares[0] - shares[1])
    held_out: list[tuple[int, int]] = []
    errors = [Fraction(0)] * 3
    # Without rows for training, as when all rows are the test of a model, no class keeps one.
    kept = 1 if shares[2] else 0
    for count in class_counts:
        if not count:
            held_out.append((0, 0))
            continue
        exact = [count * share for share in shares]
        low, high = [math.floor(rows) for rows in exact], [math.ceil(rows) for rows in exact]
        choices = []
        for held in product((low[0], high[0]), (low[1], high[1])):
            train = count - sum(held)
            if max(kept, low[2]) <= train <= max(kept, high[2]):
                rows = (*held, train)
                choices.append((rows, [error + n - x for error, n, x in zip(errors, rows, exact, strict=True)]))
        # Errors must not add up over the classes, so each class is rounded to balance the errors of the classes before.
        (validation_rows, test_rows, _), errors = min(
            choices, key=lambda choice: (sum(e * e for e in choice[1][:2]), choice[0])
        )
        held_out.append((validation_rows, test_rows))
    return held_out
