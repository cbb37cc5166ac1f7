"""The rows of a rank as a dataset of PyTorch, whose position can be stored in a checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from kfp_distributed.trainers.rows import rows


class RowDataset(IterableDataset):  # type: ignore[misc]  # torch may be missing.
    """Batches of the rows of this rank. Each iteration is an epoch with an order of its own.

    Pass it to a DataLoader with batch_size=None and without worker processes: the rows are read ahead by threads. A
    worker process would have a copy, whose position the dataset of the program never gets.

    Args:
        train_dir: The folder `train_dir` of a training function.
        batch_size: Rows of a batch. The last one of an epoch may have fewer.
        seed: Seed of the order, at least 0. Default: 0.

    Attributes:
        epoch: Number of the epoch whose rows come next, from 0.
    """

    def __init__(self, train_dir: str | Path, batch_size: int, seed: int = 0) -> None:
        self._folder, self._batch_size, self._seed = str(train_dir), batch_size, seed
        self.epoch = self._rows = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs, float32 [n, width], and labels [n]: int64 class indices, or float64 numbers to predict.

        Raises:
            ValueError: This is a worker process of a DataLoader.
        """
        if worker := get_worker_info():
            raise ValueError(
                f"the DataLoader has num_workers={worker.num_workers}; allowed is 0: RowDataset reads the rows ahead "
                "by threads, and a worker process would have the same order in each epoch"
            )
        for inputs, labels in rows(self._folder, self._batch_size, self._seed, self.epoch, skipped=self._rows):
            # Before the batch is trained, as DataLoader counts, whose checkpoint is taken after it.
            self._rows += len(labels)
            target = torch.from_numpy(labels)
            yield torch.from_numpy(inputs), target if target.is_floating_point() else target.long()
        self.epoch, self._rows = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position for a checkpoint: the epoch, and the rows of it that were yielded."""
        return {"epoch": self.epoch, "rows": self._rows}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at a position. The rows that were yielded before it do not come again in its epoch."""
        self.epoch, self._rows = int(state["epoch"]), int(state["rows"])
