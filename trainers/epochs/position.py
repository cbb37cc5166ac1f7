"""The position of a checkpoint within an epoch, from which the built-in trainers resume."""

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kfp_distributed.storage.dataset import DatasetManifest


class Position(NamedTuple):
    """Where a training continues.

    Attributes:
        epoch: Number of finished epochs.
        step: Number of finished steps of the next epoch.
        plan: What the meaning of `step` depends on; "" without such steps.
        metrics: Metrics of the next epoch if all of its steps are finished, else {}.
    """

    epoch: int = 0
    step: int = 0
    plan: str = ""
    metrics: Mapping[str, float] = MappingProxyType({})

    def to_json(self) -> str:
        """Return the JSON text that `from_json` reads."""
        return json.dumps({**self._asdict(), "metrics": dict(self.metrics)})

    @classmethod
    def from_json(cls, text: str) -> "Position":
        """Return the position of a JSON text."""
        return cls(**json.loads(text))

    def resume(self, plan: str, steps: int) -> tuple[int, str]:
        """Decide where in the next epoch a training continues.

        Args:
            plan: Plan of the training that continues.
            steps: Number of steps of its epochs.

        Returns:
            Number of steps of the next epoch that are finished, and a text for the log. The number is 0 if the plan is
            another one, because the remaining rows of the epoch are unknown then.
        """
        if self.step and self.plan == plan:
            text = f"continues epoch {self.epoch + 1} after step {self.step} of {steps}"
            return self.step, text + ("" if self.metrics else "; its metrics are those of the remaining steps")
        text = f"continues after epoch {self.epoch}"
        if self.step:
            text += f", and not after step {self.step} of the next one: its rows are divided or ordered in another way"
        return 0, text


def plan_of_rows(
    manifest: DatasetManifest, batch_size: int, ranks: int, seed: int, devices: int = 1, order: str = ""
) -> str:
    """Return what decides which rows come in which step: the rows, and how they are divided and ordered.

    Args:
        manifest: Manifest of the training dataset.
        batch_size: Rows of a step over all ranks, as the user has set it.
        ranks: Number of processes that read a part of the rows each.
        seed: Seed of the order of the rows.
        devices: Devices of each rank. Default: 1.
        order: Name of the order that the seed determines, such as `order_of_rows`.
    """
    shards = hashlib.sha256("".join(shard.sha256 for shard in manifest.shards).encode()).hexdigest()
    division = f"batch_size={batch_size} ranks={ranks} devices={devices} seed={seed}"
    return f"{division} rows={manifest.rows} shards={shards}" + (f" order={order}" if order else "")
