"""The updates of a fine-tuning, whatever its objective: their rows, learning rates and end."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import TrainerCallback

from kfp_distributed.trainers.epochs.divergence import end_if_diverged
from kfp_distributed.trainers.language_training.tuning_checkpoints import TuningCheckpoints
from kfp_distributed.trainers.language_training.update_order import update_order


class UpdateSampler(Sampler[int]):  # type: ignore[misc]  # Its types are those of an optional package.
    """The rows in the order of `update_order`, which accelerate divides among the ranks.

    The number of the epoch is that of the next update. A sampler with `set_epoch` would not always be told: accelerate
    does not forward it if batches of an epoch are skipped after a restart and there are several ranks.

    Args:
        rows: Number of all rows.
        batch_size: Rows of an update, over all ranks.
        seed: Seed of the order.
        updates: Returns the number of updates so far.
    """

    def __init__(self, rows: int, batch_size: int, seed: int, updates: Callable[[], int]) -> None:
        self._rows, self._batch_size, self._seed, self._updates = rows, batch_size, seed, updates

    def __iter__(self) -> Iterator[int]:
        epoch = self._updates() * self._batch_size // len(self)
        yield from update_order(self._rows, self._batch_size, self._seed, epoch).tolist()

    def __len__(self) -> int:
        return math.ceil(self._rows / self._batch_size) * self._batch_size


class TuningUpdates(TuningCheckpoints):
    """A Trainer whose updates have rows that depend on batch_size and seed alone."""

    def _get_train_sampler(self, train_dataset: Any = None) -> UpdateSampler:  # noqa: ANN401
        rows = len(self.train_dataset if train_dataset is None else train_dataset)
        arguments = self.args
        size = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
        return UpdateSampler(rows, size, arguments.seed, lambda: self.state.global_step)

    def _clip_grad_norm(self, model: Any) -> Any:  # noqa: ANN401
        """Return the norm of all gradients before they are clipped. On CPUs, that of a sharded model is divided."""
        norm = super()._clip_grad_norm(model)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:  # noqa: ANN401
        """Return the learning rates. Those of transformers begin with 0, so that the first rows would train nothing."""
        updates, warmup = num_training_steps, int(num_training_steps * self.args.warmup_steps)

        def rate(done: int) -> float:
            return min((done + 1) / (warmup + 1), (updates - done) / (updates - warmup))

        self.lr_scheduler, self._created_lr_scheduler = LambdaLR(optimizer or self.optimizer, rate), True
        return self.lr_scheduler


class EndIfDiverged(TrainerCallback):  # type: ignore[misc]  # Its types are those of an optional package.
    """Ends a training whose loss or gradients become NaN or infinite, before its model is saved."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:  # noqa: ANN401
        """End the training, in each rank at the same step: the loss is the mean and the norm is that of all ranks.

        See `end_if_diverged`.
        """
        if state.global_step == 1 and not math.isfinite(logs.get("loss", 0.0)):
            raise SystemExit(
                f"the loss of step 1, before any update, is {logs['loss']}: base_model has weights that are NaN, "
                "infinite or too large. Import or save it again"
            )
        if "loss" in logs:
            is_finite = math.isfinite(logs.get("grad_norm", 0.0))
            end_if_diverged(f"step {state.global_step}", logs["loss"], is_finite, args.learning_rate, "gradients")
