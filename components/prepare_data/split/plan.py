"""The number of rows of each class in each file (pure)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.preparation_options import Options


@dataclass(frozen=True)
class Plan:
    """Rows of each stratum, such as a class, in each file. A table of all of them would need 8 bytes for each cell.

    The rows for training are dealt to the shards in turn, so that the shards of a stratum differ by at most one row.

    Attributes:
        shards: Number of training shards.
        train: Rows for training of each stratum, [strata].
        first: Shard that gets the first of these rows, [strata].
        held_out: Rows for validation and for the test, [strata, 2].
    """

    shards: int
    train: NDArray[np.int64]
    first: NDArray[np.int64]
    held_out: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of strata."""
        return len(self.train)

    def __getitem__(self, stratum: int) -> NDArray[np.int64]:
        """Return the rows of a stratum in each training shard, validation and test, [shards + 2]."""
        rows, more = divmod(int(self.train[stratum]), self.shards)
        is_one_more = (np.arange(self.shards) - self.first[stratum]) % self.shards < more
        return np.concatenate([rows + is_one_more, self.held_out[stratum]])

    def rows_of_files(self) -> NDArray[np.int64]:
        """Return the rows of all strata in each training shard, validation and test, [shards + 2]."""
        begin, end = self.first, self.first + self.train % self.shards
        # The shards of a stratum that get one row more than the others are a range, which may pass the last shard.
        begins, ends = (np.bincount(edges, minlength=2 * self.shards) for edges in (begin, end))
        more = np.cumsum(begins - ends).reshape(2, self.shards).sum(axis=0)
        return np.concatenate([(self.train // self.shards).sum() + more, self.held_out.sum(axis=0)])


def plan_split(class_counts: Sequence[int], options: Options) -> Plan:
    """Plan how many rows of each class go to each training shard and to the validation and test datasets.

    Args:
        class_counts: Rows of each class.
        options: Fractions and number of shards.

    Returns:
        The rows of each class. Each split gets its fraction of every class, rounded up or down, and its fraction of
        all rows within less than two rows. A split gets fewer rows where a class would keep no row for training. The
        training shards differ by at most one row.

    Raises:
        ValueError: A split with a fraction above 0 gets no row, or there are fewer training rows than shards.
    """
    held_out = np.array(plan_held_out(class_counts, options.validation_fraction, options.test_fraction), np.int64)
    plan = dealt(np.array(class_counts, np.int64) - held_out.sum(axis=1), held_out, options.shards)
    rows = sum(class_counts)
    *train_rows, validation, test = plan.rows_of_files().tolist()
    for name, fraction, part in (
        ("validation", options.validation_fraction, validation),
        ("test", options.test_fraction, test),
    ):
        if fraction and not part:
            reason = "less than one row" if fraction * rows < 1 else "no row, because each class keeps one for training"
            raise ValueError(
                f"{name}_fraction {fraction:g} of {rows} rows is {reason}: set it in split to 0 or to more"
            )
    if not all(train_rows) and options.validation_fraction + options.test_fraction < 1:
        raise ValueError(f"shards is {options.shards}, but only {sum(train_rows)} rows are for training: lower shards")
    return plan


def dealt(train: NDArray[np.int64], held_out: NDArray[np.int64], shards: int) -> Plan:
    """Deal the rows for training to the shards in turn.

    Each stratum begins at the shard after the last row of the previous one.

    Args:
        train: Rows for training of each stratum, [strata].
        held_out: Rows for validation and for the test, [strata, 2].
        shards: Number of training shards.
    """
    return Plan(shards, train, (np.cumsum(train) - train) % shards, held_out)


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
