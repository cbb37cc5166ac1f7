"""Draws a file for each row on the disk."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.pieces import Pieces
from kfp_distributed.components.prepare_data.plan import Plan
from kfp_distributed.components.prepare_data.strata import Strata

# Rows whose files are drawn together.
DRAWN_ROWS = 2**18


class RowsLeft:
    """Rows of each stratum that each target still lacks, in as many bytes as their numbers need.

    With many classes and shards, a shard has few rows of a class, whose number fits into one byte.

    Args:
        plan: Rows of each stratum in each target.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._held_out = plan, plan.held_out.copy()
        # Validation and test rows of a group or file have no training shards.
        has_training = plan.train > 0
        self._index = np.cumsum(has_training) - 1
        most = plan.train.max(initial=0) // plan.shards + 1
        self._shards = np.zeros((int(has_training.sum()), plan.shards), np.min_scalar_type(most))
        self._is_drawn = np.zeros(len(plan), np.bool_)

    def __len__(self) -> int:
        """Return the number of strata."""
        return len(self._plan)

    def __getitem__(self, stratum: int) -> NDArray[np.int64]:
        """Return the rows that the targets lack, [targets]."""
        if not self._is_drawn[stratum]:
            return self._plan[stratum]
        shards = np.zeros(self._plan.shards, np.int64)
        if self._plan.train[stratum]:
            shards += self._shards[self._index[stratum]]
        return np.concatenate([shards, self._held_out[stratum]])

    def __setitem__(self, stratum: int, rows: NDArray[np.int64]) -> None:
        """Set the rows that the targets lack, [targets]."""
        self._is_drawn[stratum] = True
        self._held_out[stratum] = rows[-2:]
        if self._plan.train[stratum]:
            self._shards[self._index[stratum]] = rows[:-2]


def draw_targets(
    left: NDArray[np.int_] | RowsLeft, strata: NDArray[np.integer], generator: np.random.Generator
) -> NDArray[np.intp]:
    """Draw a target file for each row, in proportion to the rows that the files still lack.

    In the end each file has exactly its planned rows, and every arrangement of rows is equally likely. No earlier row
    is kept in memory.

    Args:
        left: Rows of each stratum that each target still lacks, [strata, targets]. The drawn rows are subtracted.
        strata: The stratum of each row.
        generator: Random generator.

    Raises:
        ValueError: A stratum has more rows than the targets lack.
    """
    targets = np.empty(len(strata), np.intp)
    order = np.argsort(strata, kind="stable")
    edges = np.searchsorted(strata[order], np.arange(len(left) + 1))
    for index in np.flatnonzero(np.diff(edges)).tolist():
        rows = order[edges[index] : edges[index + 1]]
        lacking = left[index]
        drawn = generator.multivariate_hypergeometric(lacking, len(rows))
        left[index] = lacking - drawn
        targets[rows] = generator.permutation(np.repeat(np.arange(len(drawn)), drawn))
    return targets


def draw(pieces: Pieces, strata: Strata, seed: int, targets: Path, drawn_rows: int = DRAWN_ROWS) -> None:
    """Draw a file for each row, and write its index as uint16, in the order in which the pieces yield the rows.

    Args:
        pieces: The rows.
        strata: The rows that are drawn together, and where they go.
        seed: Seed of the split.
        targets: File to write.
        drawn_rows: Rows that are drawn together. Another number gives another split. Default: 262,144.
    """
    generator, left = np.random.default_rng(seed), RowsLeft(strata.plan)
    # One column at least, because the rows are counted.
    parts = (strata.of(rows) for rows in pieces.read(strata.names or None))
    with targets.open("wb") as file:
        for block in _blocks(parts, drawn_rows):
            file.write(draw_targets(left, block, generator).astype(np.uint16).tobytes())


def _blocks(parts: Iterable[NDArray[np.int64]], size: int) -> Iterator[NDArray[np.int64]]:
    """Yield numbers in arrays of one length (the last may be shorter), so that a draw depends on the rows alone."""
    pending = np.empty(0, np.int64)
    for part in parts:
        pending = np.concatenate([pending, part])
        while len(pending) >= size:
            yield pending[:size]
            pending = pending[size:]
    if len(pending):
        yield pending


@dataclass(frozen=True)
class DrawnRows:
    """The rows with their files, in random order.

    Attributes:
        pieces: The rows.
        codes: For each category and the label, the index of a value by its code in the pieces.
        targets: File with the index of each row's file.
    """

    pieces: Pieces
    codes: Mapping[str, NDArray[np.int32]]
    targets: Path

    def read(self, names: Sequence[str] | None = None) -> Iterator[tuple[pa.RecordBatch, NDArray[np.uint16]]]:
        """Yield the rows in the form of the shards, with all values of the categories, and the file of each row.

        The rows of each piece are sorted by their files. The rows of a file are in random order.

        Args:
            names: Names of the columns to read. Default: all columns.
        """
        with self.targets.open("rb") as file:
            sorted_targets = np.empty(0, np.uint16)

            def by_target(order: NDArray[np.uint32]) -> NDArray[np.uint32]:
                nonlocal sorted_targets
                targets = np.fromfile(file, np.uint16, len(order))
                by_file = np.argsort(targets, kind="stable")
                sorted_targets = targets[by_file]
                return order[by_file]

            for rows in self.pieces.read(names, reorder=by_target):
                for name in {*self.codes} & {*rows.schema.names}:
                    position = rows.schema.names.index(name)
                    codes = pa.array(self.codes[name][rows[name].to_numpy()])
                    rows = rows.set_column(position, rows.schema.field(position), codes)
                yield rows, sorted_targets
