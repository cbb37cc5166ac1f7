"""The order in which updates take the rows (pure)."""

import numpy as np
from numpy.typing import NDArray


def update_order(rows: int, batch_size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the numbers of the rows in the order of an epoch, whose runs of batch_size rows are the updates.

    It depends on its arguments alone, and not on the number of ranks. The last update is filled with the first rows of
    the epoch, so that all updates have the same size.

    Args:
        rows: Number of all rows, at least 1.
        batch_size: Rows of an update, over all ranks.
        seed: Seed of the order.
        epoch: Number of the epoch, from 0.
    """
    order = np.random.default_rng((seed, epoch)).permutation(rows)
    return np.resize(order, -(-rows // batch_size) * batch_size)
