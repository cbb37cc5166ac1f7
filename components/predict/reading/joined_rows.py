"""Joins two passes over the same part by the numbers of the rows (pure)."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kfp_distributed.components.prepare_data.sources.read_rows import Rows


def joined_rows(
    rows: Iterator[Rows], others: Iterator[Rows] | None
) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch, pa.RecordBatch | None]]:
    """Yield the rows that both passes have, with their numbers.

    Each pass leaves out the rows that it cannot use, and has batches of its own sizes.

    Args:
        rows: The first pass, in the order of the numbers.
        others: The second pass, in the same order. None yields the first one alone.

    Yields:
        The numbers, and the columns of each pass.
    """
    if others is None:
        yield from ((numbers, batch, None) for batch, numbers in rows)
        return
    waiting: Rows | None = None
    for batch, numbers in rows:
        if not len(numbers):
            continue
        while waiting is None or not len(waiting.numbers) or waiting.numbers[-1] < numbers[-1]:
            following = next(others, None)
            if following is None:
                break
            waiting = _appended(waiting, following)
        if waiting is None:
            return
        positions = np.searchsorted(waiting.numbers, numbers)
        is_known = positions < len(waiting.numbers)
        is_known[is_known] = waiting.numbers[positions[is_known]] == numbers[is_known]
        if is_known.any():
            yield numbers[is_known], batch.filter(pa.array(is_known)), waiting.rows.take(pa.array(positions[is_known]))
        done = int(np.searchsorted(waiting.numbers, numbers[-1], "right"))
        waiting = Rows(waiting.rows.slice(done), waiting.numbers[done:])


def _appended(rows: Rows | None, later: Rows) -> Rows:
    if rows is None or not len(rows.numbers):
        return later
    return Rows(pa.concat_batches([rows.rows, later.rows]), np.concatenate([rows.numbers, later.numbers]))
