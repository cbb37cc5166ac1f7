"""Draws a file for each row on the disk."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.pieces.piece_files import PieceFiles, order_by_key
from kfp_distributed.components.prepare_data.split.plan import Plan
from kfp_distributed.components.prepare_data.split.strata import CountsFile, Strata, StrataRows
from kfp_distributed.components.worker_pool.piece_tasks import Result, RunTasks, run_here, run_in_groups


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


@dataclass(frozen=True)
class PieceDraw:
    """How many rows of each stratum of a piece go to each file, without zeros, by stratum and file.

    Attributes:
        files: Index of the file, [cells]. A piece has no more cells than rows.
        rows: Number of rows, [cells].
    """

    files: NDArray[np.uint16]
    rows: NDArray[np.uint32]


@dataclass(frozen=True)
class DrawnPiece:
    """The rows of a piece by their files.

    Attributes:
        order: Place in the piece of each row, sorted by file. The rows of a file are in random order.
        rows: Number of rows of each file, [files].
    """

    order: NDArray[np.uint32]
    rows: NDArray[np.int64]


def draw_piece(left: NDArray[np.int_] | RowsLeft, counts: StrataRows, generator: np.random.Generator) -> PieceDraw:
    """Draw how many rows of a piece go to each file, in proportion to the rows that the files still lack.

    The rows are not needed. In the end each file has exactly its planned rows. With `drawn_order`, every arrangement of
    the rows is equally likely.

    Args:
        left: Rows of each stratum that each file still lacks, [strata, files]. The drawn rows are subtracted.
        counts: Rows of each stratum in the piece.
        generator: Random generator.

    Raises:
        ValueError: A stratum has more rows than the files lack.
    """
    most = int(counts.rows.sum())
    files, rows, end = np.empty(most, np.uint16), np.empty(most, np.uint32), 0
    for stratum, count in zip(counts.strata.tolist(), counts.rows.tolist(), strict=True):
        lacking = left[stratum]
        drawn = generator.multivariate_hypergeometric(lacking, count)
        left[stratum] = lacking - drawn
        found = np.flatnonzero(drawn)
        begin, end = end, end + len(found)
        files[begin:end], rows[begin:end] = found, drawn[found]
    return PieceDraw(files[:end].copy(), rows[:end].copy())


def draw_rows(strata: NDArray[np.integer], drawn: PieceDraw, generator: np.random.Generator) -> NDArray[np.uint16]:
    """Draw the file of each row of a piece.

    Args:
        strata: The stratum of each row, whose counts are those of the draw.
        drawn: Rows of each stratum in each file.
        generator: Random generator.
    """
    order = generator.permutation(len(strata))
    # NumPy sorts 16-bit numbers in a fraction of the time.
    small = strata[order].astype(np.min_scalar_type(int(strata.max(initial=0))))
    files = np.empty(len(strata), np.uint16)
    files[order[np.argsort(small, kind="stable")]] = np.repeat(drawn.files, drawn.rows)
    return files


def drawn_order(
    strata: NDArray[np.integer], keys: NDArray[np.float64], drawn: PieceDraw, files: int, seed: Sequence[int]
) -> DrawnPiece:
    """Return the rows of a piece by their files. It depends on the keys of the rows, not on their order in the piece.

    Args:
        strata: The stratum of each row. Rows of a negative one are left out.
        keys: The key of each row.
        drawn: Rows of each stratum in each file.
        files: Number of files.
        seed: Seed of the piece.
    """
    order = order_by_key(keys)
    order = order[strata[order] >= 0]
    targets = draw_rows(strata[order], drawn, np.random.default_rng(seed))
    return DrawnPiece(order[np.argsort(targets, kind="stable")], np.bincount(targets, minlength=files))


def draw(
    pieces: PieceFiles, strata: Strata, counts: CountsFile, seed: int, run: RunTasks = run_here
) -> NDArray[np.uint32]:
    """Draw a file for each row, and write the order of each piece by file beside it.

    Args:
        pieces: The rows.
        strata: The rows that are drawn together, and where they go.
        counts: Rows of each stratum by piece.
        seed: Seed of the split.
        run: Runs a function for each piece. Default: in this process.

    Returns:
        Rows of each file in each piece with rows, [pieces, files].
    """
    generator, left = np.random.default_rng(seed), RowsLeft(strata.plan)
    draws = ((piece, draw_piece(left, of_piece, generator)) for piece, of_piece in counts.read())
    at_once = pieces.at_once(strata.names)
    return np.array([*run_in_groups(run, partial(_draw_order, pieces, strata, seed), draws, at_once)])


def _draw_order(pieces: PieceFiles, strata: Strata, seed: int, drawn: tuple[int, PieceDraw]) -> NDArray[np.uint32]:
    """Write the order of a piece by file, and return the rows of each file."""
    piece, rows_of_files = drawn
    rows, keys = pieces.read(piece, strata.names)
    of_rows = strata.of(rows) if strata.names else np.zeros(len(keys), np.int64)
    # Another stream of random numbers than those of the draw, the sample and the keys.
    found = drawn_order(of_rows, keys, rows_of_files, strata.plan.shards + 2, (seed, 3, piece))
    counts = found.rows.astype(np.uint32)
    pieces.keep(_order_name(piece), counts.tobytes() + found.order.tobytes())
    return counts


def _order_name(piece: int) -> str:
    return f"order-{piece}"


@dataclass(frozen=True)
class DrawnRows:
    """The rows with their files, in random order.

    Attributes:
        pieces: The rows.
        codes: For each category and the label, the index of a value by its code in the pieces.
        files: Number of files.
    """

    pieces: PieceFiles
    codes: Mapping[str, NDArray[np.int32]]
    files: int

    def read(self, piece: int, names: Sequence[str] | None = None) -> tuple[pa.RecordBatch, NDArray[np.uint16]]:
        """Return the rows of a piece in the form of the shards, with all values of the categories, and their files.

        The rows are sorted by their files. The rows of a file are in random order.

        Args:
            piece: Number of the piece.
            names: Names of the columns to read. Default: all columns.
        """
        numbers = np.frombuffer(self.pieces.kept(_order_name(piece)), np.uint32)
        rows = self.pieces.read(piece, names)[0].take(pa.array(numbers[self.files :]))
        for name in {*self.codes} & {*rows.schema.names}:
            position = rows.schema.names.index(name)
            codes = pa.array(self.codes[name][rows[name].to_numpy()])
            rows = rows.set_column(position, rows.schema.field(position), codes)
        return rows, np.repeat(np.arange(self.files, dtype=np.uint16), numbers[: self.files])

    def map(
        self,
        function: Callable[[pa.RecordBatch, NDArray[np.uint16]], Result],
        names: Sequence[str],
        run: RunTasks = run_here,
    ) -> Iterable[Result]:
        """Yield a function of the rows of each piece and their files, in the order of the pieces.

        Args:
            function: The function.
            names: Names of the columns to read.
            run: Runs a function for each piece. Default: in this process.
        """
        task = partial(_of_piece, self, function, tuple(names))
        return run_in_groups(run, task, self.pieces.numbers, self.pieces.at_once(names))


def _of_piece(
    drawn: DrawnRows,
    function: Callable[[pa.RecordBatch, NDArray[np.uint16]], Result],
    names: Sequence[str],
    piece: int,
) -> Result:
    return function(*drawn.read(piece, names))
